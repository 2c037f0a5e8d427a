"""DeleteRecords (21): moves the start of partitions' logs, and answers when every replica has moved it.

v0-2. Offset -1 means the high watermark; beyond it is OFFSET_OUT_OF_RANGE (1); a topic that is only compacted is
POLICY_VIOLATION (44), an internal topic INVALID_TOPIC_EXCEPTION (17).
"""

from __future__ import annotations

import asyncio
from itertools import chain, islice
from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.deadlines import Deadline
from klamm.apis.guards import each_topic
from klamm.apis.slices import LOGS, each, each_partition
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
from klamm.replica.delete_records import DeletedRecords, DeletedRecordsResult, delete_records
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, all_results, begin, result_of


def handle(broker: Broker, ctx: RequestContext, req: DeleteRecordsRequest) -> Answer[DeleteRecordsResponse]:
    return begin(_delete(broker, ctx, req))


def _delete(broker: Broker, ctx: RequestContext, req: DeleteRecordsRequest) -> Steps[Any]:
    """Logs per slice: moving the start of a log may open it and write files."""
    offsets: dict[TopicPartition, int] = {}
    results: DeletedRecords = {}
    deadline = Deadline(broker.loop, req.timeout_ms)

    def sort(topic: DeleteRecordsTopic, asked: DeleteRecordsPartition) -> None:
        tp = TopicPartition(topic.name, asked.partition_index)
        error = broker.replicas.partition_or_error(tp)
        if isinstance(error, ErrorCode):
            is_internal = tp.topic in INTERNAL_TOPICS and error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results[tp] = DeletedRecordsResult(ErrorCode.INVALID_TOPIC_EXCEPTION if is_internal else error)
        else:
            offsets[tp] = asked.offset

    yield from each_partition(req.topics, lambda topic: topic.partitions, sort, lambda *_: None)
    moved: DeletedRecords = {}
    ctx.hold(offsets, results, moved)
    waiting: list[DeletedRecords | asyncio.Future[DeletedRecords]] = []
    rest = iter(offsets.items())
    while some := dict(islice(rest, LOGS)):
        if moved or waiting:
            yield
        answer = delete_records(broker.replicas, some, deadline.remaining_ms)
        if isinstance(answer, asyncio.Future):
            waiting.append(answer)
        else:
            moved |= answer
    late = yield from result_of(all_results(waiting))
    return (yield from _response(ctx, moved, *late, results))


def _response(ctx: RequestContext, *results: DeletedRecords) -> Steps[DeleteRecordsResponse]:
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    ctx.hold(topics)

    def add(answer: tuple[TopicPartition, DeletedRecordsResult]) -> None:
        tp, result = answer
        topics.setdefault(tp.topic, []).append(
            DeleteRecordsPartitionResult(
                partition_index=tp.partition, low_watermark=result.low_watermark, error_code=result.error
            )
        )

    yield from each(chain.from_iterable(result.items() for result in results), add)
    answers = yield from each(
        topics.items(), lambda topic: DeleteRecordsTopicResult(name=topic[0], partitions=topic[1])
    )
    return DeleteRecordsResponse(throttle_time_ms=0, topics=answers)


_GUARD: Final = each_topic(
    AclOperation.DELETE,
    lambda row, error: DeleteRecordsPartitionResult(
        partition_index=row.partition_index, low_watermark=-1, error_code=error
    ),
    DeleteRecordsTopicResult,
)
API = Api(DeleteRecordsRequest, DeleteRecordsResponse, versions=(0, 2), plane=Plane.DATA, handle=handle, guard=_GUARD)
