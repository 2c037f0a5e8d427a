"""UpdateMetadata (6): the controller sends this broker the state of the cluster, for its metadata cache.

v0-8: endpoints by security protocol v1, by listener name v3; rack v2; offline replicas v4; broker epoch and grouping
by topic v5; topic ids v7; KRaft flag and type v8 (read and not used: they are for migrations).
Errors: 77 stale broker, 11 stale controller, -1 a bug. Afterwards requests that wait for a topic or a leader are
checked again. The next snapshot of a large request is made in slices, and becomes visible in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.control import check_broker_epoch, from_controller
from klamm.apis.guards import FromPeer
from klamm.apis.slices import SLICE, each, each_partition
from klamm.control_log.records import ListedPartition, MetadataApplied, first
from klamm.errors import ErrorCode
from klamm.metadata import MetadataUpdate, PartitionState, TopicUpdate
from klamm.metadata.snapshot import AppliedUpdate
from klamm.metadata.update import SLICING_CLIENT
from klamm.model import LEADER_DURING_DELETE, ZERO_UUID, BrokerEndPoints, EndPoint, SecurityProtocol
from klamm.protocol.chunked import concatenated
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from klamm.waiting import Steps, begin

log = logging.getLogger("klamm.state_change")


def handle(broker: Broker, ctx: RequestContext, req: UpdateMetadataRequest) -> Answer[UpdateMetadataResponse]:
    return begin(_update(broker, ctx, req))


def _update(broker: Broker, ctx: RequestContext, req: UpdateMetadataRequest) -> Steps[Any]:
    """Make the next snapshot in slices; then apply it in one step, so that clients see all of it or nothing."""
    update = yield from in_slices(ctx.api_version, req, ctx.client_id)
    prepared = yield from broker.metadata.prepare(update)
    if sum(len(topic.partitions) for topic in update.topics) > SLICE:
        yield  # the last step of the snapshot and all that follows from it would be one long step

    def refuse(error: ErrorCode) -> UpdateMetadataResponse:
        return UpdateMetadataResponse(error_code=error)

    def apply() -> UpdateMetadataResponse | asyncio.Future[UpdateMetadataResponse]:
        return broker.replicas.exclusively(lambda: _apply(broker, ctx, req, update, prepared), in_order=False)

    return from_controller(broker, ctx, req, first_with_broker_epoch=5, handle=apply, refuse=refuse)


def _apply(
    broker: Broker,
    ctx: RequestContext,
    req: UpdateMetadataRequest,
    update: MetadataUpdate,
    prepared: AppliedUpdate,
) -> UpdateMetadataResponse:
    if error := check_broker_epoch(broker, req.broker_epoch):
        return UpdateMetadataResponse(error_code=error)
    if error := broker.replicas.check_controller_epoch(req.controller_epoch):
        return UpdateMetadataResponse(error_code=error)
    deleted = broker.metadata.update(update, prepared)
    log.log(
        logging.INFO if update.topics else logging.DEBUG,
        "metadata cache: %d partitions added or changed, %d deleted (UpdateMetadata of controller %d, epoch %d, "
        "correlation id %d)",
        sum([state.leader != LEADER_DURING_DELETE for topic in update.topics for state in topic.partitions]),
        len(deleted),
        req.controller_id,
        req.controller_epoch,
        ctx.correlation_id,
    )
    broker.replicas.on_metadata_change()
    if deleted:
        broker.groups.on_partitions_deleted(deleted)
    _wake(broker, update)
    if broker.control_log.is_enabled:
        broker.control_log.record(_applied(broker, update, ctx.correlation_id))
    return UpdateMetadataResponse(error_code=0)


def _applied(broker: Broker, update: MetadataUpdate, correlation_id: int) -> MetadataApplied:
    snapshot = broker.metadata.snapshot
    states = (state for topic in update.topics for state in topic.partitions)
    return MetadataApplied(
        update.controller_epoch,
        update.controller_id,
        correlation_id,
        snapshot.update_count,
        tuple(snapshot.brokers),
        sum(len(topic.partitions) for topic in update.topics),
        first(ListedPartition(s.topic, s.partition, s.leader, s.leader_epoch) for s in states),
    )


def _wake(broker: Broker, update: MetadataUpdate) -> None:
    for topic in update.topics:
        if broker.topic_purgatory.size:
            broker.topic_purgatory.check_and_complete(topic.name)
        if broker.election_purgatory.size:
            for state in topic.partitions:
                broker.election_purgatory.check_and_complete(state.topic_partition)


def in_slices(version: int, req: UpdateMetadataRequest, client_id: str | None = None) -> Steps[MetadataUpdate]:
    """Convert a request of any version into a value. The client id shows whether the controller is klamm's."""
    grouped: dict[str, list[UpdateMetadataPartitionState]] = {}
    yield from each(
        req.ungrouped_partition_states, lambda state: grouped.setdefault(state.topic_name, []).append(state)
    )
    controller_epoch, broker_epoch = req.controller_epoch, req.broker_epoch

    def convert(topic: _Topic, state: UpdateMetadataPartitionState) -> PartitionState:
        return PartitionState(
            topic.name,
            state.partition_index,
            controller_epoch,
            state.leader,
            state.leader_epoch,
            tuple(state.isr),
            state.zk_version,
            tuple(state.replicas),
            tuple(state.offline_replicas),
            broker_epoch,
        )

    ungrouped = yield from each(grouped.items(), lambda topic: _Topic(topic[0], ZERO_UUID, topic[1]))
    named = yield from each(req.topic_states, lambda t: _Topic(t.topic_name, t.topic_id, t.partition_states))
    topics = yield from each_partition(
        concatenated(ungrouped, named),
        lambda topic: topic.states,
        convert,
        lambda topic, states: TopicUpdate(topic.name, tuple(states), topic.topic_id),
    )
    return MetadataUpdate(
        controller_id=req.controller_id,
        controller_epoch=controller_epoch,
        live_brokers=tuple(_broker(version, node) for node in req.live_brokers),
        topics=tuple(topics),
        broker_epoch=broker_epoch,
        is_sliced=client_id is not None and client_id.startswith(SLICING_CLIENT),
    )


class _Topic(NamedTuple):
    """One topic of a request of any version."""

    name: str
    topic_id: UUID
    states: Sequence[UpdateMetadataPartitionState]


def _broker(version: int, node: UpdateMetadataBroker) -> BrokerEndPoints:
    if version == 0:
        return BrokerEndPoints(node.id_, (EndPoint("PLAINTEXT", node.v0_host, node.v0_port),))
    return BrokerEndPoints(node.id_, tuple(_endpoint(version, endpoint) for endpoint in node.endpoints), node.rack)


def _endpoint(version: int, endpoint: UpdateMetadataEndpoint) -> EndPoint:
    known = endpoint.security_protocol in SecurityProtocol._value2member_map_
    protocol = SecurityProtocol(endpoint.security_protocol) if known else SecurityProtocol.PLAINTEXT
    return EndPoint(endpoint.listener if version >= 3 else protocol.name, endpoint.host, endpoint.port, protocol)


_GUARD: Final = FromPeer(
    lambda ctx, req, error: UpdateMetadataResponse(error_code=error), sender=lambda req: req.controller_id
)
API = Api(
    UpdateMetadataRequest, UpdateMetadataResponse, versions=(0, 8), plane=Plane.CONTROL, handle=handle, guard=_GUARD
)
