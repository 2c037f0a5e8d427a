"""Deletes logs as the replica manager does, in one go."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.errors import ErrorCode
from klamm.log import LogManager
from klamm.model import TopicPartition


def delete_logs(manager: LogManager, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    outcome = {tp: manager.delete_unrecorded(tp) for tp in partitions}
    manager.checkpoints.write_deletions()
    return outcome
