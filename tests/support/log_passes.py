"""Passes over logs, without the steps of other work in between."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.errors import ErrorCode
from klamm.log import LogConfig, LogManager
from klamm.model import TopicPartition


def delete_logs(manager: LogManager, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """Delete logs as the replica manager does."""
    outcome = {tp: manager.delete_unrecorded(tp) for tp in partitions}
    write_deletions(manager)
    return outcome


def write_deletions(manager: LogManager) -> None:
    """Remove deleted logs from the checkpoints."""
    for _ in manager.checkpoints.deletion_pass():
        pass


def change_config(manager: LogManager, topic: str, config: LogConfig) -> None:
    """Give all logs of a topic another configuration."""
    for _ in manager.config_pass(topic, config):
        pass
