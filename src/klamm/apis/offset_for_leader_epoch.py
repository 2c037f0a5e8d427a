"""OffsetForLeaderEpoch (23): where a leader epoch ends, so that a reader finds where its log diverges (KIP-101/320).

v0-4: leader epoch in the response v1; the reader's current leader epoch v2, checked (74, 75); replica id v3. A
debugging consumer (replica id -2) that asks for epoch 2^31-1 gets the epoch of the last record and the end of the log.
A controller compares logs this way before an election. It is refused with UNKNOWN_LEADER_EPOCH (75) until the replica
knows the consumer's current leader epoch.
"""

from __future__ import annotations

from typing import Any

from klamm.apis.access import is_peer
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import Each, FromPeer, Handle
from klamm.apis.slices import LOGS, are_few, each_partition
from klamm.errors import ErrorCode
from klamm.model import NO_EPOCH, TopicPartition
from klamm.protocol.messages.offset_for_leader_epoch import (
    DEBUGGING_CONSUMER,
    LATEST_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from klamm.replica.partition_reader import offset_for_leader_epoch
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin


def handle(
    broker: Broker, ctx: RequestContext, req: OffsetForLeaderEpochRequest
) -> Answer[OffsetForLeaderEpochResponse]:
    if not are_few(req.topics, LOGS):
        return begin(_answer(broker, ctx, req))
    require_leader = _requires_leader(ctx, req)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_partition(broker, topic.topic, asked, require_leader) for asked in topic.partitions],
            )
            for topic in req.topics
        ]
    )


def _answer(
    broker: Broker, ctx: RequestContext, req: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    require_leader = _requires_leader(ctx, req)
    topics = yield from each_partition(
        req.topics,
        lambda topic: topic.partitions,
        lambda topic, asked: _partition(broker, topic.topic, asked, require_leader),
        lambda topic, partitions: OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions),
        LOGS,
    )
    return OffsetForLeaderEpochResponse(topics=topics)


def _requires_leader(ctx: RequestContext, req: OffsetForLeaderEpochRequest) -> bool:
    return ctx.api_version < 3 or req.replica_id != DEBUGGING_CONSUMER


def _partition(broker: Broker, topic: str, asked: OffsetForLeaderPartition, require_leader: bool) -> EpochEndOffset:
    if asked.leader_epoch == LATEST_EPOCH and not require_leader:
        return _log_end(broker, TopicPartition(topic, asked.partition), asked.current_leader_epoch)
    partition = broker.replicas.partition_or_error(TopicPartition(topic, asked.partition))
    if isinstance(partition, ErrorCode):
        return EpochEndOffset(error_code=partition, partition=asked.partition)
    found = offset_for_leader_epoch(
        partition, asked.current_leader_epoch, asked.leader_epoch, require_leader=require_leader
    )
    return EpochEndOffset(
        error_code=found.error,
        partition=asked.partition,
        leader_epoch=found.leader_epoch,
        end_offset=found.end_offset,
    )


def _log_end(broker: Broker, tp: TopicPartition, current_leader_epoch: int) -> EpochEndOffset:
    """Return the end of the log of a replica that knows the epoch without a leader, or a later one.

    Before that, it may still append records of an older epoch. A log with a gap counts up to the gap: a follower
    truncates there.
    """
    if tp in broker.replicas.offline:
        return EpochEndOffset(error_code=ErrorCode.KAFKA_STORAGE_ERROR, partition=tp.partition)
    partition = broker.replicas.partitions.get(tp)
    log = None if partition is None else partition.log
    if partition is None or log is None or partition.leader_epoch < current_leader_epoch:
        return EpochEndOffset(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH, partition=tp.partition)
    epoch, end_offset = log.gapless_end
    return EpochEndOffset(
        error_code=ErrorCode.NONE,
        partition=tp.partition,
        leader_epoch=NO_EPOCH if epoch is None else epoch,
        end_offset=end_offset,
    )


def _row(asked: OffsetForLeaderPartition, error: ErrorCode) -> EpochEndOffset:
    return EpochEndOffset(error_code=error, partition=asked.partition)


def _refuse_all(ctx: RequestContext, req: OffsetForLeaderEpochRequest, error: ErrorCode) -> Any:
    return begin(_refusal(req, error))


def _refusal(req: OffsetForLeaderEpochRequest, error: ErrorCode) -> Steps[OffsetForLeaderEpochResponse]:
    topics = yield from each_partition(
        req.topics,
        lambda topic: topic.partitions,
        lambda _, asked: _row(asked, error),
        lambda topic, rows: OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows),
    )
    return OffsetForLeaderEpochResponse(topics=topics)


class _Guard:
    """Followers are peers. With an authorizer, all others need DESCRIBE on the topics (KIP-320)."""

    _each = Each(
        kind=ResourceType.TOPIC,
        operation=AclOperation.DESCRIBE,
        asked="topics",
        answers="topics",
        name=lambda topic: topic.topic,
        rows=lambda topic: topic.partitions,
        refuse=_row,
        gather=lambda topic, rows: OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows),
    )
    _peer = FromPeer(_refuse_all, sender=lambda req: req.replica_id)

    def is_needed(self, broker: Broker) -> bool:
        return self._peer.is_needed(broker)

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: OffsetForLeaderEpochRequest) -> Any:
        if broker.acls is None:
            return self._peer(broker, handle, ctx, req) if req.replica_id >= 0 else handle(ctx, req)
        if is_peer(broker, ctx, req.replica_id if req.replica_id >= 0 else None, is_probe=True):
            return handle(ctx, req)
        return self._each(broker, handle, ctx, req)


API = Api(
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    versions=(0, 4),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
    guard=_Guard(),
)
