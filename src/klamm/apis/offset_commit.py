"""OffsetCommit (8): a group's positions, kept in `__consumer_offsets`; the answer waits until they are written.

v0-9:

- v0: treated like a v1 without member and generation. Kafka kept these offsets in ZooKeeper.
- v1: member and generation. Only this version has a commit timestamp.
- v2-4: a retention time for the offsets, which KIP-211 removed.
- v6: leader epoch (KIP-320).
- v7: group instance id (KIP-345).
- v8: flexible.
- v9: the same for classic groups (KIP-848).

Generation -1 without a member is a consumer that assigns its partitions itself. It is accepted while the group is
empty. Errors of single partitions: unknown topics and partitions are UNKNOWN_TOPIC_OR_PARTITION. Metadata above
`offset.metadata.max.bytes` is OFFSET_METADATA_TOO_LARGE.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import All, Needs, each_topic
from klamm.apis.slices import each_partition
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.errors import ErrorCode
from klamm.metadata import MetadataSnapshot
from klamm.model import TopicPartition
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin, result_of

INT64_MAX: Final = 2**63 - 1


def handle(broker: Broker, ctx: RequestContext, req: OffsetCommitRequest) -> Answer[OffsetCommitResponse]:
    return begin(_commit(broker, ctx, req))


def _commit(broker: Broker, ctx: RequestContext, req: OffsetCommitRequest) -> Steps[Any]:
    timestamp_ms = broker.clock.now_ms()
    expire_ms = None if req.retention_time_ms == -1 else min(timestamp_ms + req.retention_time_ms, INT64_MAX)
    offsets = yield from _known_offsets(broker.metadata.snapshot, req, timestamp_ms, expire_ms)
    ctx.hold(tuple(offsets), tuple(offsets.values()))
    if not offsets:
        return (yield from _response(ctx, req, {}))
    groups: GroupCoordinator = broker.groups
    committed = yield from groups.commit_offsets(
        req.group_id, req.member_id, req.group_instance_id, req.generation_id_or_member_epoch, offsets
    )
    return (yield from _response(ctx, req, (yield from result_of(committed.on(broker.loop)))))


def _known_offsets(
    snapshot: MetadataSnapshot, req: OffsetCommitRequest, timestamp_ms: int, expire_ms: int | None
) -> Steps[dict[TopicPartition, OffsetAndMetadata]]:
    known: dict[TopicPartition, OffsetAndMetadata] = {}

    def add(topic: OffsetCommitRequestTopic, partition: OffsetCommitRequestPartition) -> None:
        if snapshot.partition(topic.name, partition.partition_index) is not None:
            tp = TopicPartition(topic.name, partition.partition_index)
            known[tp] = _value(partition, timestamp_ms, expire_ms)

    yield from each_partition(req.topics, lambda topic: topic.partitions, add, lambda *_: None)
    return known


def _value(partition: OffsetCommitRequestPartition, timestamp_ms: int, expire_ms: int | None) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        timestamp_ms if partition.commit_timestamp == -1 else partition.commit_timestamp,
        expire_ms,
    )


def _response(
    ctx: RequestContext,
    req: OffsetCommitRequest,
    errors: dict[TopicPartition, ErrorCode],
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> Steps[OffsetCommitResponse]:
    ctx.hold(errors)
    topics = yield from each_partition(
        req.topics,
        lambda topic: topic.partitions,
        lambda topic, partition: OffsetCommitResponsePartition(
            partition_index=partition.partition_index,
            error_code=errors.get(TopicPartition(topic.name, partition.partition_index), otherwise),
        ),
        lambda topic, partitions: OffsetCommitResponseTopic(name=topic.name, partitions=partitions),
    )
    return OffsetCommitResponse(topics=topics)


def _refused(ctx: RequestContext, req: OffsetCommitRequest, error: ErrorCode) -> Any:
    return begin(_response(ctx, req, {}, error))


_GUARD: Final = All(
    (
        Needs(ResourceType.GROUP, AclOperation.READ, lambda req: req.group_id, _refused),
        each_topic(
            AclOperation.READ,
            lambda row, error: OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error),
            OffsetCommitResponseTopic,
        ),
    )
)
API = Api(OffsetCommitRequest, OffsetCommitResponse, versions=(0, 9), plane=Plane.DATA, handle=handle, guard=_GUARD)
