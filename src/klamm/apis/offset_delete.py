"""OffsetDelete (47): deletes committed offsets of a group (KIP-496).

v0 only. An empty group loses all named offsets; a consumer group with members loses the offsets of topics that no
member subscribes to, the others are GROUP_SUBSCRIBED_TO_TOPIC; a group of another protocol type with members is
NON_EMPTY_GROUP. Unknown topics and partitions are UNKNOWN_TOPIC_OR_PARTITION. The answer waits until the tombstones are
written. An empty group that loses its last offset is deleted, as in Kafka.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import All, Needs, each_topic
from klamm.apis.slices import each_partition
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin, result_of

Result = dict[TopicPartition, ErrorCode] | ErrorCode


def handle(broker: Broker, ctx: RequestContext, req: OffsetDeleteRequest) -> Answer[OffsetDeleteResponse]:
    return begin(_delete(broker, ctx, req))


def _delete(broker: Broker, ctx: RequestContext, req: OffsetDeleteRequest) -> Steps[Any]:
    snapshot = broker.metadata.snapshot
    known: dict[TopicPartition, None] = {}
    ctx.hold(known)

    def add(topic: OffsetDeleteRequestTopic, partition: OffsetDeleteRequestPartition) -> None:
        if snapshot.partition(topic.name, partition.partition_index) is not None:
            known[TopicPartition(topic.name, partition.partition_index)] = None

    yield from each_partition(req.topics, lambda topic: topic.partitions, add, lambda *_: None)
    groups: GroupCoordinator = broker.groups
    deleted: Any = (yield from groups.delete_offsets(req.group_id, list(known))).on(broker.loop)
    result: Result = yield from result_of(deleted)
    return (yield from _response(ctx, req, result))


def _response(ctx: RequestContext, req: OffsetDeleteRequest, result: Result) -> Steps[OffsetDeleteResponse]:
    if isinstance(result, ErrorCode):
        return OffsetDeleteResponse(error_code=result, throttle_time_ms=0, topics=())
    ctx.hold(result)
    topics = yield from each_partition(
        req.topics,
        lambda topic: topic.partitions,
        lambda topic, partition: OffsetDeleteResponsePartition(
            partition_index=partition.partition_index,
            error_code=result.get(
                TopicPartition(topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ),
        ),
        lambda topic, partitions: OffsetDeleteResponseTopic(name=topic.name, partitions=partitions),
    )
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, throttle_time_ms=0, topics=topics)


_GUARD: Final = All(
    (
        Needs(
            ResourceType.GROUP,
            AclOperation.DELETE,
            lambda req: req.group_id,
            lambda ctx, req, error: OffsetDeleteResponse(error_code=error, throttle_time_ms=0, topics=()),
        ),
        each_topic(
            AclOperation.READ,
            lambda row, error: OffsetDeleteResponsePartition(partition_index=row.partition_index, error_code=error),
            OffsetDeleteResponseTopic,
        ),
    )
)
API = Api(OffsetDeleteRequest, OffsetDeleteResponse, versions=(0, 0), plane=Plane.DATA, handle=handle, guard=_GUARD)
