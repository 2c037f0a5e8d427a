"""OffsetFetch (9): the committed offsets of a group, of the partitions asked for or of all it has.

v0-9:

- v0: treated like v1. Kafka read these offsets from ZooKeeper.
- v2: null topics means all. The answer has an error for the whole request; in v0 and v1 every partition has it.
- v5: leader epochs (KIP-320).
- v6: flexible.
- v7: require_stable (KIP-447). An offset that an open transaction or an unfinished commit may change is
  UNSTABLE_OFFSET_COMMIT.
- v8: several groups in one request (KIP-709).
- v9: member id and epoch (KIP-848). They mean nothing for classic groups.

A partition without a committed offset has offset -1 and no error. A group that is named several times is answered once.
The group's state does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from klamm.apis.access import may, remembering
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.slices import SLICE, each, each_partition
from klamm.coordinator.group_coordinator import FetchedOffset, GroupCoordinator
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.chunked import ChunkedList, SpreadDict
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
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin

_GROUPS_PER_SLICE = 20
_NO_OFFSET = -1
_NO_EPOCH = -1
_REFUSED = FetchedOffset(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

P = TypeVar("P", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)


Offsets = ChunkedList[tuple[TopicPartition, FetchedOffset]]
AskedTopics = Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None


def handle(broker: Broker, ctx: RequestContext, req: OffsetFetchRequest) -> Answer[OffsetFetchResponse]:
    return begin(_several(broker, ctx, req) if ctx.api_version >= 8 else _one(broker, ctx, req))


def _one(broker: Broker, ctx: RequestContext, req: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
    partitions = yield from _partitions(ctx, req.topics)
    offsets = yield from _fetch(broker, ctx, req.group_id, partitions, req.require_stable)
    if isinstance(offsets, ErrorCode):
        if ctx.api_version >= 2:
            return OffsetFetchResponse(error_code=offsets)
        failed = FetchedOffset(None, offsets)
        offsets = ChunkedList((yield from each(partitions or (), lambda tp: (tp, failed))))
    topics = yield from each_partition(
        (yield from _by_topic(ctx, offsets)).items(),
        lambda topic: topic[1],
        lambda _, partition: _partition(OffsetFetchResponsePartition, *partition),
        lambda topic, found: OffsetFetchResponseTopic(name=topic[0], partitions=found),
    )
    return OffsetFetchResponse(topics=topics)


def _several(broker: Broker, ctx: RequestContext, req: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
    asked: dict[str, OffsetFetchRequestGroup] = {}
    ctx.hold(asked)
    yield from each(req.groups, lambda group: _merge(asked, group))
    answers: list[OffsetFetchResponseGroup] = []
    for group in asked.values():
        if answers and len(answers) % _GROUPS_PER_SLICE == 0:
            yield
        answers.append((yield from _group(broker, ctx, group, req.require_stable)))
    return OffsetFetchResponse(groups=answers)


def _merge(groups: dict[str, OffsetFetchRequestGroup], asked: OffsetFetchRequestGroup) -> None:
    """Collect each group once, with the partitions of all mentions.

    Otherwise a short request could exhaust the memory.
    """
    known = groups.setdefault(asked.group_id, asked)
    if known is asked or known.topics is None:
        return
    if asked.topics is None:
        known.topics = None
    else:
        if not isinstance(known.topics, ChunkedList):
            known.topics = ChunkedList(known.topics)
        known.topics.extend(asked.topics)


def _hold_large(ctx: RequestContext, collection: Collection[Any]) -> None:
    """Hold a large collection.

    A request may name very many groups with small ones, which are freed with their group.
    """
    if len(collection) > SLICE:
        ctx.hold(collection)


def _partitions(ctx: RequestContext, topics: AskedTopics) -> Steps[Sequence[TopicPartition] | None]:
    """Return the partitions that are asked for, each once, or None for all."""
    if topics is None:
        return None
    once: SpreadDict[TopicPartition, int] = SpreadDict()
    wanted: ChunkedList[TopicPartition] = ChunkedList()

    def add(topic: OffsetFetchRequestTopic | OffsetFetchRequestTopics, index: int) -> None:
        tp = TopicPartition(topic.name, index)
        number = len(wanted)
        if once.setdefault(tp, number) == number:
            wanted.append(tp)

    yield from each_partition(topics, lambda topic: topic.partition_indexes, add, lambda *_: None)
    _hold_large(ctx, wanted)
    for part in once.dicts:
        _hold_large(ctx, part)
    return wanted


def _fetch(
    broker: Broker,
    ctx: RequestContext,
    group_id: str,
    partitions: Sequence[TopicPartition] | None,
    require_stable: bool,
) -> Steps[Offsets | ErrorCode]:
    """Return the offsets of some partitions or of all, a slice at a time."""
    groups: GroupCoordinator = broker.groups
    if broker.acls is not None and not may(broker, ctx, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    is_listing = partitions is None
    may_describe = remembering(broker, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, is_probe=is_listing)
    asked = groups.committed_partitions(group_id) if partitions is None else partitions
    if isinstance(asked, ErrorCode):
        return asked
    found: Offsets = ChunkedList()
    for start in range(0, max(len(asked), 1), SLICE):
        if start:
            yield
        part = asked[start : start + SLICE]
        allowed = part if broker.acls is None else [tp for tp in part if may_describe(tp.topic)]
        offsets = groups.fetch_offsets(group_id, allowed, require_stable=require_stable)
        if isinstance(offsets, ErrorCode):
            return offsets
        if partitions is None:  # an offset may have been deleted meanwhile
            found.extend((tp, offset) for tp, offset in offsets.items() if offset.value is not None or offset.error)
            continue
        found.extend(offsets.items())
        if len(allowed) < len(part):
            found.extend((tp, _REFUSED) for tp in part if not may_describe(tp.topic))
    return found


def _by_topic(ctx: RequestContext, offsets: Offsets) -> Steps[SpreadDict[str, list[tuple[int, FetchedOffset]]]]:
    by_topic: SpreadDict[str, list[tuple[int, FetchedOffset]]] = SpreadDict()

    def add(found: tuple[TopicPartition, FetchedOffset]) -> None:
        by_topic.setdefault(found[0].topic, []).append((found[0].partition, found[1]))

    yield from each(offsets, add)
    _hold_large(ctx, offsets)
    yield from each(by_topic.items(), lambda found: _hold_large(ctx, found[1]))
    for part in by_topic.dicts:
        _hold_large(ctx, part)
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


def _group(
    broker: Broker, ctx: RequestContext, asked: OffsetFetchRequestGroup, require_stable: bool
) -> Steps[OffsetFetchResponseGroup]:
    partitions = yield from _partitions(ctx, asked.topics)
    offsets = yield from _fetch(broker, ctx, asked.group_id, partitions, require_stable)
    if isinstance(offsets, ErrorCode):
        return OffsetFetchResponseGroup(group_id=asked.group_id, topics=(), error_code=offsets)
    topics = yield from each_partition(
        (yield from _by_topic(ctx, offsets)).items(),
        lambda topic: topic[1],
        lambda _, partition: _partition(OffsetFetchResponsePartitions, *partition),
        lambda topic, found: OffsetFetchResponseTopics(name=topic[0], partitions=found),
    )
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


API = Api(OffsetFetchRequest, OffsetFetchResponse, versions=(0, 9), plane=Plane.DATA, handle=handle, is_read=True)
