"""DeleteRecords: move the log start now, answer when every replica has moved it too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from klamm.errors import ErrorCode
from klamm.model import INTERNAL_TOPICS, TopicPartition
from klamm.replica.replica_manager import ReplicaManager


class DeletedRecordsResult(NamedTuple):
    error: ErrorCode
    low_watermark: int = -1


DeletedRecords: TypeAlias = dict[TopicPartition, DeletedRecordsResult]


def delete_records(
    replicas: ReplicaManager, offsets: Mapping[TopicPartition, int], timeout_ms: int
) -> DeletedRecords | asyncio.Future[DeletedRecords]:
    """Delete records before each offset (-1: before the high watermark)."""
    results: DeletedRecords = {}
    waiting: dict[TopicPartition, int] = {}
    for tp, offset in offsets.items():
        moved = _move(replicas, tp, offset)
        if isinstance(moved, ErrorCode):
            results[tp] = DeletedRecordsResult(moved)
        else:
            waiting[tp] = moved

    def try_complete() -> DeletedRecords | None:
        return _try_complete(replicas, results, waiting)

    def on_expire() -> DeletedRecords:
        results.update({tp: DeletedRecordsResult(ErrorCode.REQUEST_TIMED_OUT) for tp in waiting})
        return results

    purgatory = replicas.delete_records_purgatory
    return purgatory.try_complete_else_watch(list(waiting), timeout_ms, try_complete, on_expire)


def _move(replicas: ReplicaManager, tp: TopicPartition, offset: int) -> int | ErrorCode:
    if tp.topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = replicas.partition_or_error(tp)
    return partition if isinstance(partition, ErrorCode) else partition.delete_records(offset)


def _try_complete(
    replicas: ReplicaManager, results: DeletedRecords, waiting: dict[TopicPartition, int]
) -> DeletedRecords | None:
    for tp, offset in list(waiting.items()):
        partition = replicas.partition_or_error(tp)
        if isinstance(partition, ErrorCode):
            results[tp] = DeletedRecordsResult(partition)
        elif not partition.is_leader:
            results[tp] = DeletedRecordsResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif partition.low_watermark >= offset:
            results[tp] = DeletedRecordsResult(ErrorCode.NONE, partition.low_watermark)
        else:
            continue
        del waiting[tp]
    return None if waiting else results
