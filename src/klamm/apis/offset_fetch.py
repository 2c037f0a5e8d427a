"""OffsetFetch (9): the committed offsets of a group, of the partitions asked for or of all it has.

v0-9: null topics means all, and an error of the whole request, v2 (v0 and v1 carry it in every partition; v0, which
Kafka read from ZooKeeper, is treated like v1); leader epochs v5 (KIP-320); flexible v6; require_stable v7 (KIP-447):
an offset that an open transaction or an unfinished commit may change is UNSTABLE_OFFSET_COMMIT; several groups in one
request v8 (KIP-709); member id and epoch v9 (KIP-848), which mean nothing for classic groups. A partition without a
committed offset has offset -1 and no error. The group's state does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from klamm.apis.registry import Api, Broker, Plane, RequestContext
from klamm.coordinator.group_coordinator import FetchedOffset, GroupCoordinator
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_NO_OFFSET = -1
_NO_EPOCH = -1

P = TypeVar("P", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)


def handle(broker: Broker, ctx: RequestContext, req: OffsetFetchRequest) -> OffsetFetchResponse:
    groups: GroupCoordinator = broker.groups
    if ctx.api_version >= 8:
        return OffsetFetchResponse(groups=[_group(groups, group, req.require_stable) for group in req.groups])
    partitions = _partitions(req.topics)
    offsets = groups.fetch_offsets(req.group_id, partitions, require_stable=req.require_stable)
    if isinstance(offsets, ErrorCode):
        if ctx.api_version >= 2:
            return OffsetFetchResponse(error_code=offsets)
        offsets = {tp: FetchedOffset(None, offsets) for tp in partitions or ()}
    return OffsetFetchResponse(topics=_topics(offsets))


def _partitions(
    topics: Sequence[OffsetFetchRequestTopic] | Sequence[OffsetFetchRequestTopics] | None,
) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes]


def _by_topic(offsets: dict[TopicPartition, FetchedOffset]) -> dict[str, list[tuple[int, FetchedOffset]]]:
    by_topic: dict[str, list[tuple[int, FetchedOffset]]] = {}
    for tp, offset in offsets.items():
        by_topic.setdefault(tp.topic, []).append((tp.partition, offset))
    return by_topic


def _partition(cls: type[P], index: int, fetched: FetchedOffset) -> P:
    value = fetched.value
    return cls(
        partition_index=index,
        committed_offset=_NO_OFFSET if value is None else value.offset,
        committed_leader_epoch=_NO_EPOCH if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=fetched.error,
    )


def _topics(offsets: dict[TopicPartition, FetchedOffset]) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=name, partitions=[_partition(OffsetFetchResponsePartition, *partition) for partition in partitions]
        )
        for name, partitions in _by_topic(offsets).items()
    ]


def _group(groups: GroupCoordinator, asked: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
    offsets = groups.fetch_offsets(asked.group_id, _partitions(asked.topics), require_stable=require_stable)
    if isinstance(offsets, ErrorCode):
        return OffsetFetchResponseGroup(group_id=asked.group_id, topics=(), error_code=offsets)
    topics = [
        OffsetFetchResponseTopics(
            name=name, partitions=[_partition(OffsetFetchResponsePartitions, *partition) for partition in partitions]
        )
        for name, partitions in _by_topic(offsets).items()
    ]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


API = Api(OffsetFetchRequest, OffsetFetchResponse, versions=(0, 9), plane=Plane.DATA, handle=handle, is_read=True)
