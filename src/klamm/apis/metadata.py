"""Metadata (3): the brokers, topics and leaders this broker knows of.

v0-12: null topics (v1+; v0: an empty list) means all; auto creation may be forbidden from v4; offline replicas v5;
LISTENER_NOT_FOUND instead of LEADER_NOT_AVAILABLE v6; leader epochs v7; authorized operations v8; topic ids v10;
topics asked for by id with a null name v12. A topic that the client may not describe is left out of all topics, and
TOPIC_AUTHORIZATION_FAILED (29) if it is named, whether it exists or not; creating one needs CREATE.
Leaders are reported as seen through the listener that the client uses. A missing topic is created when the request
and `auto.create.topics.enable` allow it; the client meanwhile gets LEADER_NOT_AVAILABLE and asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from typing import Final, cast
from uuid import UUID

from klamm.apis import missing_topics
from klamm.apis.access import cluster_operations, may, may_on_cluster, operations
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext, at_once
from klamm.errors import ErrorCode
from klamm.metadata import MetadataSnapshot, PartitionState, TopicState
from klamm.model import INTERNAL_TOPICS, NO_LEADER, ZERO_UUID
from klamm.protocol.chunked import ChunkedList, SpreadDict, of_chunks
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.replica.topic_names import is_valid_topic_name
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import after

_SLICE: Final = 100
"""Topics and partitions that are answered in one slice of the loop."""
_FEW_TOPICS: Final = 200
_FEW_PARTITIONS: Final = 800
"""A response of at most so many topics, in a cluster of at most so many partitions, is not sliced."""
Errors = SpreadDict[str, ErrorCode]
NOT_ASKED: Final = -(1 << 31)
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


def handle(broker: Broker, ctx: RequestContext, req: MetadataRequest) -> Answer[MetadataResponse]:
    wants_all = req.topics is None or (ctx.api_version == 0 and not req.topics)
    steps: Generator[None, None, MetadataResponse | asyncio.Future[MetadataResponse]]
    steps = _all(broker, ctx, req) if wants_all else _create_and_name(broker, ctx, req)
    is_small = len(req.topics or ()) <= _FEW_TOPICS and broker.metadata.snapshot.partition_count <= _FEW_PARTITIONS
    return at_once(steps) if is_small else steps


def _all(broker: Broker, ctx: RequestContext, req: MetadataRequest) -> Generator[None, None, MetadataResponse]:
    snapshot = broker.metadata.snapshot
    answer = _Answer(broker, ctx, req, snapshot)
    # Sorted for human readers; sorting many names would hold the loop.
    states = snapshot.sorted_topics() if len(snapshot.topics) <= 1000 else snapshot.topics.values()
    topics: ChunkedList[MetadataResponseTopic] = ChunkedList()
    for state in states:
        if may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, state.name, is_probe=True):
            topics.append((yield from answer.topic(state)))
        else:
            yield from answer.pause(1)
    return answer.response(topics)


def _create_and_name(
    broker: Broker, ctx: RequestContext, req: MetadataRequest
) -> Generator[None, None, MetadataResponse | asyncio.Future[MetadataResponse]]:
    missing, refused = yield from _to_create(broker, ctx, req)
    if not missing:
        return (yield from _named(broker, ctx, req, refused))
    created = missing_topics.create_missing(broker, missing, quota=broker.quotas.mutation_quota(ctx))
    if len(req.topics or ()) <= _FEW_TOPICS:
        return after(created, lambda errors: at_once(_named(broker, ctx, req, _joined(refused, errors))))
    return after(created, lambda errors: cast(MetadataResponse, _named(broker, ctx, req, _joined(refused, errors))))


def _joined(refused: Errors, errors: Mapping[str, ErrorCode]) -> Errors:
    """Add the few errors of creations to those of refused names, which may be very many."""
    refused.update(errors)
    return refused


def _to_create(
    broker: Broker, ctx: RequestContext, req: MetadataRequest
) -> Generator[None, None, tuple[list[str], Errors]]:
    """Return unknown names that are to be created, and the errors of those that the client may not create.

    If there are very many, the rest follows with the client's retry.
    """
    refused: Errors = SpreadDict()
    if not (req.allow_auto_topic_creation and broker.config.auto_create_topics_enable):
        return [], refused
    topics = broker.metadata.snapshot.topics
    room = missing_topics.MAX_MISSING
    found: dict[str, None] = {}
    for index, topic in enumerate(req.topics or ()):
        if index % _SLICE == _SLICE - 1:
            yield
        name = topic.name
        if name is None or topic.topic_id != ZERO_UUID or name in topics or not is_valid_topic_name(name):
            continue
        if name in found or name in refused:
            continue
        if broker.acls is not None and not _may_create(broker, ctx, name):
            refused[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            continue
        if broker.topic_creation.is_under_way(name):
            found[name] = None
        elif room:
            found[name] = None
            room -= 1
    return list(found), refused


def _may_create(broker: Broker, ctx: RequestContext, name: str) -> bool:
    """Refuse topics that the client may not describe. The response does not disclose whether they exist."""
    return may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_probe=True) and (
        may_on_cluster(broker, ctx, AclOperation.CREATE, is_probe=True)
        or may(broker, ctx, AclOperation.CREATE, ResourceType.TOPIC, name)
    )


def _named(
    broker: Broker, ctx: RequestContext, req: MetadataRequest, errors: Errors
) -> Generator[None, None, MetadataResponse]:
    answer = _Answer(broker, ctx, req, broker.metadata.snapshot)
    asked: SpreadDict[tuple[str | None, UUID], MetadataRequestTopic] = SpreadDict()
    topics: ChunkedList[MetadataResponseTopic] = ChunkedList()
    for topic in req.topics or ():
        if asked.setdefault((topic.name, topic.topic_id), topic) is topic:
            topics.append((yield from answer.named_topic(topic, errors)))
    ctx.hold(*asked.dicts, *errors.dicts)
    return answer.response(topics)


class _Answer:
    """One response, from one snapshot, for one listener and version."""

    __slots__ = ("_broker", "_ctx", "_endpoint_ids", "_listener", "_req", "_room", "_snapshot", "_version")

    def __init__(self, broker: Broker, ctx: RequestContext, req: MetadataRequest, snapshot: MetadataSnapshot) -> None:
        self._broker = broker
        self._ctx = ctx
        self._req = req
        self._snapshot = snapshot
        self._listener = ctx.listener_name
        self._version = ctx.api_version
        self._room = _SLICE
        self._endpoint_ids = {
            broker_id for broker_id, node in snapshot.brokers.items() if node.endpoint(self._listener) is not None
        }

    def response(self, topics: Sequence[MetadataResponseTopic]) -> MetadataResponse:
        wants_operations = self._req.include_cluster_authorized_operations
        return MetadataResponse(
            brokers=self._brokers(),
            cluster_id=self._broker.cluster_id,
            controller_id=self._snapshot.controller_id,
            topics=topics,
            cluster_authorized_operations=(
                cluster_operations(self._broker, self._ctx, all_of_them=CLUSTER_OPERATIONS)
                if wants_operations
                else NOT_ASKED
            ),
        )

    def _brokers(self) -> list[MetadataResponseBroker]:
        found = ((node, node.endpoint(self._listener)) for node in self._snapshot.brokers.values())
        return [
            MetadataResponseBroker(node_id=node.id, host=endpoint.host, port=endpoint.port, rack=node.rack)
            for node, endpoint in found
            if endpoint is not None
        ]

    def named_topic(self, asked: MetadataRequestTopic, errors: Errors) -> Generator[None, None, MetadataResponseTopic]:
        yield from self.pause(1)
        name = asked.name
        if asked.topic_id != ZERO_UUID:
            name = self._snapshot.topic_name(asked.topic_id)
            if name is None:
                return self._failed(None, ErrorCode.UNKNOWN_TOPIC_ID, asked)
        if name is None:
            return self._failed(None, ErrorCode.INVALID_REQUEST, asked)
        if not may(self._broker, self._ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            return self._hidden(None if asked.topic_id != ZERO_UUID else name, asked)
        topic = self._snapshot.topic(name)
        if topic is not None:
            return (yield from self.topic(topic))
        if (error := errors.get(name)) is None:
            valid = is_valid_topic_name(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION
        return self._failed(name, error, asked)

    def _hidden(self, name: str | None, asked: MetadataRequestTopic) -> MetadataResponseTopic:
        """An id does not disclose the name of its topic, and a name does not disclose whether its topic exists."""
        return MetadataResponseTopic(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            name=name if name is not None or self._version >= 12 else "",
            topic_id=asked.topic_id if name is None else ZERO_UUID,
            is_internal=False,
            partitions=(),
        )

    def _failed(self, name: str | None, error: ErrorCode, asked: MetadataRequestTopic) -> MetadataResponseTopic:
        if name is None and self._version < 12:
            name = ""
        return MetadataResponseTopic(
            error_code=error, name=name, topic_id=asked.topic_id, is_internal=name in INTERNAL_TOPICS, partitions=()
        )

    def pause(self, elements: int) -> Generator[None, None, None]:
        """Yields when the slice is full."""
        self._room -= elements
        if self._room < 0:
            self._room = _SLICE
            yield

    def topic(self, topic: TopicState) -> Generator[None, None, MetadataResponseTopic]:
        wants_operations = self._req.include_topic_authorized_operations
        states = topic.sorted_partitions()
        parts: list[list[MetadataResponsePartition]] = []
        for start in range(0, len(states), _SLICE):
            part = states[start : start + _SLICE]
            yield from self.pause(len(part) + 1)
            parts.append([*map(self._partition, part)])
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=of_chunks(parts),
            topic_authorized_operations=(
                operations(self._broker, self._ctx, ResourceType.TOPIC, topic.name, all_of_them=TOPIC_OPERATIONS)
                if wants_operations
                else NOT_ASKED
            ),
        )

    def _partition(self, state: PartitionState) -> MetadataResponsePartition:
        replicas, isr = state.replicas, state.isr
        error = ErrorCode.NONE
        if self._version == 0:
            replicas, isr, error = self._reachable(replicas, isr)
        leader = state.leader
        if leader not in self._endpoint_ids:
            is_alive = leader in self._snapshot.brokers and self._version >= 6
            error = ErrorCode.LISTENER_NOT_FOUND if is_alive else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        return MetadataResponsePartition(
            error_code=error,
            partition_index=state.partition,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=state.offline_replicas,
        )

    def _reachable(
        self, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], ErrorCode]:
        """Clients of v0 fail on a broker id that the response does not list."""
        known = self._endpoint_ids
        is_complete = known.issuperset(replicas) and known.issuperset(isr)
        error = ErrorCode.NONE if is_complete else ErrorCode.REPLICA_NOT_AVAILABLE
        return tuple(r for r in replicas if r in known), tuple(r for r in isr if r in known), error


API = Api(MetadataRequest, MetadataResponse, versions=(0, 12), plane=Plane.DATA, handle=handle, is_read=True)
