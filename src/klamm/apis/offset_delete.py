"""OffsetDelete (47): an operator takes committed offsets of a group away (KIP-496).

v0 only. An empty group loses what is asked; a consumer group with members loses the offsets of topics that no member
subscribes to, the others are GROUP_SUBSCRIBED_TO_TOPIC; a group of another protocol type with members is
NON_EMPTY_GROUP. Unknown topics and partitions are UNKNOWN_TOPIC_OR_PARTITION. The answer waits until the tombstones
are written. An empty group that loses its last offset is gone, as in Kafka.
"""

from __future__ import annotations

import asyncio

from klamm.apis.registry import Api, Broker, Plane, RequestContext
from klamm.coordinator.deferred import deliver
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(
    broker: Broker, ctx: RequestContext, req: OffsetDeleteRequest
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    snapshot = broker.metadata.snapshot
    known = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in req.topics
        for partition in topic.partitions
        if snapshot.partition(topic.name, partition.partition_index) is not None
    ]
    groups: GroupCoordinator = broker.groups
    return deliver(broker.loop, groups.delete_offsets(req.group_id, known), lambda result: _response(req, result))


def _response(req: OffsetDeleteRequest, result: dict[TopicPartition, ErrorCode] | ErrorCode) -> OffsetDeleteResponse:
    if isinstance(result, ErrorCode):
        return OffsetDeleteResponse(error_code=result, throttle_time_ms=0, topics=())
    topics = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=result.get(
                        TopicPartition(topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    ),
                )
                for partition in topic.partitions
            ],
        )
        for topic in req.topics
    ]
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, throttle_time_ms=0, topics=topics)


API = Api(OffsetDeleteRequest, OffsetDeleteResponse, versions=(0, 0), plane=Plane.DATA, handle=handle)
