"""ListOffsets (2): an offset by time, or the earliest, the latest, or that of the largest timestamp.

v0-9:

- v0: the answer is a list of offsets, the end and then the starts of segments.
- v2: isolation level.
- v4: leader epoch.
- v5: OFFSET_NOT_AVAILABLE (78) right after an election. In earlier versions it is LEADER_NOT_AVAILABLE (5).
- v7: the offset of the largest timestamp (-3).
- v8: earliest local (-4), which is the same as earliest.
- v9: latest tiered (-5), which is never known: there is no remote storage.

A negative timestamp that the version does not have is UNSUPPORTED_VERSION (35). A partition that is named twice is
INVALID_REQUEST (42).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import each_topic
from klamm.apis.slices import LOGS, are_few, each_partition
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from klamm.replica.partition_reader import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    Isolation,
    offset_for_timestamp,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin

_DEBUGGING_CONSUMER: Final = -2
_NONE_TWICE: Final[frozenset[TopicPartition]] = frozenset()
# Members under names of their own: Python 3.11 takes ten times as long to find `Isolation.LOG_END`.
_LOG_END: Final = Isolation.LOG_END
_HIGH_WATERMARK: Final = Isolation.HIGH_WATERMARK
_TXN_COMMITTED: Final = Isolation.TXN_COMMITTED
_TIMESTAMP_SINCE: Final = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}


def handle(broker: Broker, ctx: RequestContext, req: ListOffsetsRequest) -> Answer[ListOffsetsResponse]:
    topics = req.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        topic = topics[0]
        answer = _partition(broker, ctx, req, topic, topic.partitions[0], _NONE_TWICE)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[answer])])
    if not are_few(topics, LOGS):
        return begin(_answer(broker, ctx, req))
    asked_twice = _asked_twice_of_few(topics)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[_partition(broker, ctx, req, topic, asked, asked_twice) for asked in topic.partitions],
            )
            for topic in topics
        ]
    )


def _asked_twice_of_few(topics: Sequence[ListOffsetsTopic]) -> Set[TopicPartition]:
    asked = Counter(TopicPartition(topic.name, row.partition_index) for topic in topics for row in topic.partitions)
    return {tp for tp, count in asked.items() if count > 1}


def _answer(broker: Broker, ctx: RequestContext, req: ListOffsetsRequest) -> Steps[ListOffsetsResponse]:
    asked_twice = yield from _asked_twice(ctx, req)
    topics = yield from each_partition(
        req.topics,
        lambda topic: topic.partitions,
        lambda topic, asked: _partition(broker, ctx, req, topic, asked, asked_twice),
        lambda topic, partitions: ListOffsetsTopicResponse(name=topic.name, partitions=partitions),
        LOGS,
    )
    return ListOffsetsResponse(topics=topics)


def _asked_twice(ctx: RequestContext, req: ListOffsetsRequest) -> Steps[set[TopicPartition]]:
    seen: set[TopicPartition] = set()
    twice: set[TopicPartition] = set()
    ctx.hold(seen, twice)

    def count(topic: ListOffsetsTopic, asked: ListOffsetsPartition) -> None:
        tp = TopicPartition(topic.name, asked.partition_index)
        (twice if tp in seen else seen).add(tp)

    yield from each_partition(req.topics, lambda topic: topic.partitions, count, lambda *_: None)
    return twice


def _partition(
    broker: Broker,
    ctx: RequestContext,
    req: ListOffsetsRequest,
    topic: ListOffsetsTopic,
    asked: ListOffsetsPartition,
    asked_twice: Set[TopicPartition],
) -> ListOffsetsPartitionResponse:
    tp = TopicPartition(topic.name, asked.partition_index)
    if tp in asked_twice:
        return _failed(asked, ErrorCode.INVALID_REQUEST)
    if asked.timestamp < 0 and ctx.api_version < _TIMESTAMP_SINCE.get(asked.timestamp, 1 << 15):
        return _failed(asked, ErrorCode.UNSUPPORTED_VERSION)
    if ctx.api_version == 0:
        return _old_style(broker, req, tp, asked)
    partition = broker.replicas.partition_or_error(tp)
    if isinstance(partition, ErrorCode):
        return _failed(asked, partition)
    found = offset_for_timestamp(
        partition,
        asked.timestamp,
        _isolation(req),
        asked.current_leader_epoch,
        require_leader=req.replica_id != _DEBUGGING_CONSUMER,
    )
    if found.error and ctx.api_version < 5 and found.error == ErrorCode.OFFSET_NOT_AVAILABLE:
        return _failed(asked, ErrorCode.LEADER_NOT_AVAILABLE)
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=found.error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _isolation(req: ListOffsetsRequest) -> Isolation:
    if req.replica_id >= 0 or req.replica_id == _DEBUGGING_CONSUMER:
        return _LOG_END
    return _TXN_COMMITTED if req.isolation_level == 1 else _HIGH_WATERMARK


def _failed(asked: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error)


def _old_style(
    broker: Broker, req: ListOffsetsRequest, tp: TopicPartition, asked: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    log = broker.replicas.leader_log(tp)
    if isinstance(log, ErrorCode):
        return _failed(asked, log)
    end = log.log_end_offset if req.replica_id >= 0 else log.high_watermark
    if asked.timestamp == EARLIEST_TIMESTAMP:
        offsets = [log.log_start_offset]
    else:
        is_latest = asked.timestamp == LATEST_TIMESTAMP
        starts = log.segment_starts(None if is_latest else asked.timestamp)
        if isinstance(starts, ErrorCode):
            return _failed(asked, starts)
        offsets = sorted({*starts, *([end] if is_latest else ())}, reverse=True)
    return ListOffsetsPartitionResponse(
        partition_index=tp.partition,
        error_code=ErrorCode.NONE,
        old_style_offsets=offsets[: max(0, asked.max_num_offsets)],
    )


_GUARD: Final = each_topic(AclOperation.DESCRIBE, _failed, ListOffsetsTopicResponse)
API = Api(
    ListOffsetsRequest,
    ListOffsetsResponse,
    versions=(0, 9),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
    guard=_GUARD,
)
