"""DeleteRecords (21): moves the start of partitions' logs, and answers when every replica has moved it.

v0-2. Offset -1 means the high watermark; beyond it is OFFSET_OUT_OF_RANGE (1); a topic that is only compacted says
POLICY_VIOLATION (44), an internal topic INVALID_TOPIC_EXCEPTION (17).
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, cast

from klamm.apis.registry import Api, Broker, Plane, RequestContext, Sliced, then
from klamm.apis.slices import Steps, begin, each, each_partition
from klamm.errors import ErrorCode
from klamm.model import INTERNAL_TOPICS, TopicPartition
from klamm.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from klamm.replica.delete_records import DeletedRecords, DeletedRecordsResult


def handle(
    broker: Broker, ctx: RequestContext, req: DeleteRecordsRequest
) -> DeleteRecordsResponse | asyncio.Future[DeleteRecordsResponse] | Sliced[DeleteRecordsResponse]:
    return begin(_delete(broker, req))


def _delete(broker: Broker, req: DeleteRecordsRequest) -> Steps[Any]:
    """Partitions that are not here are answered in slices; those that are, and their logs' work, are few."""
    offsets: dict[TopicPartition, int] = {}
    results: DeletedRecords = {}

    def sort(topic: DeleteRecordsTopic, asked: DeleteRecordsPartition) -> None:
        tp = TopicPartition(topic.name, asked.partition_index)
        error = broker.replicas.partition_or_error(tp)
        if isinstance(error, ErrorCode):
            is_internal = tp.topic in INTERNAL_TOPICS
            results[tp] = DeletedRecordsResult(ErrorCode.INVALID_TOPIC_EXCEPTION if is_internal else error)
        else:
            offsets[tp] = asked.offset

    yield from each_partition(req.topics, lambda topic: topic.partitions, sort, lambda *_: None)
    moved = broker.replicas.delete_records(offsets, req.timeout_ms)
    if isinstance(moved, asyncio.Future):
        return then(moved, lambda done: cast("DeleteRecordsResponse", begin(_response(results, done))))
    return (yield from _response(results, moved))


def _response(refused: DeletedRecords, moved: DeletedRecords) -> Steps[DeleteRecordsResponse]:
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}

    def add(answer: tuple[TopicPartition, DeletedRecordsResult]) -> None:
        tp, result = answer
        topics.setdefault(tp.topic, []).append(
            DeleteRecordsPartitionResult(
                partition_index=tp.partition, low_watermark=result.low_watermark, error_code=result.error
            )
        )

    yield from each(chain(moved.items(), refused.items()), add)
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=[DeleteRecordsTopicResult(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


API = Api(DeleteRecordsRequest, DeleteRecordsResponse, versions=(0, 2), plane=Plane.DATA, handle=handle)
