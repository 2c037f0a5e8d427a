"""ControllerBrokerRequestBatch: all requests that follow from one decision, as a value built by one expression.

There is no batch object with a life cycle: a decision collects its changes in plain lists, builds the batch and sends
it, or fails before and sends nothing. Sending yields LeaderAndIsr for all brokers, then UpdateMetadata
for all, then StopReplica for all. Every LeaderAndIsr is accompanied by an UpdateMetadata of the same partitions to all
live brokers; the list of live brokers is always complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from klamm.controller.context import ControllerContext
from klamm.controller.effects import Note, Pause, Send, Steps
from klamm.controller.requests import (
    EncodedStates,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveLeader,
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import EPOCH_DURING_DELETE, LEADER_DURING_DELETE, NO_EPOCH, TopicPartition

MAX_NAMED: Final = 10
"""Partitions that a log line names."""
PARTITIONS_PER_STEP: Final = 250
"""Partitions that one step of a walk over all of them visits: less than a millisecond."""


class LeaderAndIsrUpdate(NamedTuple):
    """These brokers lead or follow the partition according to its cached state."""

    brokers: tuple[int, ...]
    partition: TopicPartition
    is_new: bool = False


@lazy_dataclass(frozen=True, slots=True)
class StopReplicaUpdate:
    broker: int
    partition: TopicPartition
    delete: bool


@lazy_dataclass(frozen=True, slots=True)
class ControllerBrokerRequestBatch:
    sends: tuple[Send, ...]
    without_leader: tuple[TopicPartition, ...] = ()
    """Partitions that no UpdateMetadata can carry yet."""

    @classmethod
    def build(
        cls,
        ctx: ControllerContext,
        *,
        leader_and_isr: Iterable[LeaderAndIsrUpdate] = (),
        stop_replica: Iterable[StopReplicaUpdate] = (),
        update_metadata: Iterable[TopicPartition] | None = None,
        update_metadata_to: Iterable[int] | None = None,
    ) -> ControllerBrokerRequestBatch:
        """`update_metadata`: partitions beyond those of `leader_and_isr`; an empty list sends the live brokers."""
        states = list(leader_and_isr)
        tps = dict.fromkeys(update.partition for update in states)
        tps.update(dict.fromkeys(update_metadata or ()))
        targets = ctx.brokers.ids() if update_metadata_to is None else tuple(sorted(update_metadata_to))
        metadata = _update_metadata_sends(ctx, tps, targets) if tps or update_metadata is not None else ()
        sends = (*_leader_and_isr_sends(ctx, states), *metadata, *_stop_replica_sends(ctx, stop_replica))
        return cls(sends, tuple([tp for tp in tps if tp not in ctx.states.leadership]))

    def send(self) -> Steps[None]:
        if self.without_leader:
            first = ", ".join(map(str, self.without_leader[:MAX_NAMED]))
            count = len(self.without_leader)
            yield Note(f"UpdateMetadata skips {count} partitions that have no leader yet: {first}")
        yield from self.sends


def send_all_metadata(ctx: ControllerContext, targets: Iterable[int]) -> Steps[None]:
    """Send brokers the metadata of all partitions, which is collected in steps: there may be very many."""
    states: list[UpdateMetadataPartition] = []
    topics: dict[str, None] = {}
    for tp in ctx.states.leadership:
        states.append(_update_metadata_partition(ctx, tp))
        topics[tp.topic] = None
        if len(states) % PARTITIONS_PER_STEP == 0:
            yield Pause()
    known = ctx.topics.ids
    ids = tuple([(topic, known[topic]) for topic in topics if topic in known])
    if len(ids) > PARTITIONS_PER_STEP:
        yield Pause()
    yield from _sends_of_metadata(ctx, tuple(states), ids, tuple(sorted(targets)))


def _head(ctx: ControllerContext, broker: int) -> RequestHead:
    return RequestHead(ctx.config.broker_id, ctx.epoch, ctx.brokers.live_or_shutting_down[broker].epoch)


def _topic_ids(ctx: ControllerContext, tps: Iterable[TopicPartition]) -> tuple[tuple[str, UUID], ...]:
    topics, known = dict.fromkeys(tp.topic for tp in tps), ctx.topics.ids
    return tuple([(topic, known[topic]) for topic in topics if topic in known])


def _leader_and_isr_sends(ctx: ControllerContext, updates: list[LeaderAndIsrUpdate]) -> list[Send]:
    by_broker: dict[int, dict[TopicPartition, LeaderAndIsrPartition]] = {}
    leadership, live = ctx.states.leadership, ctx.brokers.live_or_shutting_down
    for brokers, tp, is_new in updates:
        state = leadership.get(tp)
        if state is None:
            continue
        wanted = None
        for broker in brokers:
            if broker not in live:
                continue
            states = by_broker.get(broker)
            if states is None:
                states = by_broker[broker] = {}
            if not is_new and (before := states.get(tp)) is not None and before.is_new:
                continue  # once new, it stays new
            if wanted is None:
                assignment = ctx.topics.assignment(tp)
                moves = assignment.adding_replicas, assignment.removing_replicas
                epoch = state.controller_epoch
                wanted = LeaderAndIsrPartition(tp, state.leader_and_isr, epoch, assignment.replicas, *moves, is_new)
            states[tp] = wanted
    encoded: EncodedStates = {}
    return [
        Send(broker, _leader_and_isr_request(ctx, broker, tuple(by_broker[broker].values()), encoded))
        for broker in sorted(by_broker)
    ]


def _leader_and_isr_request(
    ctx: ControllerContext, broker: int, states: tuple[LeaderAndIsrPartition, ...], encoded: EncodedStates
) -> LeaderAndIsrRequest:
    leaders = sorted({state.leader_and_isr.leader for state in states})
    live = []
    for leader in leaders:
        known = ctx.brokers.live_or_shutting_down.get(leader)
        endpoint = known.endpoint(ctx.config.inter_broker_listener) if known else None
        if endpoint is not None:
            live.append(LiveLeader(leader, endpoint))
    ids = _topic_ids(ctx, (state.partition for state in states))
    return LeaderAndIsrRequest(_head(ctx, broker), states, ids, tuple(live), encoded)


def _update_metadata_sends(
    ctx: ControllerContext, tps: Iterable[TopicPartition], targets: tuple[int, ...]
) -> list[Send]:
    tps = [tp for tp in tps if tp in ctx.states.leadership]
    states = tuple(_update_metadata_partition(ctx, tp) for tp in tps)
    return _sends_of_metadata(ctx, states, _topic_ids(ctx, tps), targets)


def _sends_of_metadata(
    ctx: ControllerContext,
    states: tuple[UpdateMetadataPartition, ...],
    topic_ids: tuple[tuple[str, UUID], ...],
    targets: tuple[int, ...],
) -> list[Send]:
    live = tuple(ctx.brokers.live_or_shutting_down[b] for b in ctx.brokers.ids())
    body = UpdateMetadataBody(states, topic_ids, live)
    return [
        Send(b, UpdateMetadataRequest(_head(ctx, b), body)) for b in targets if b in ctx.brokers.live_or_shutting_down
    ]


def _update_metadata_partition(ctx: ControllerContext, tp: TopicPartition) -> UpdateMetadataPartition:
    cached = ctx.states.leadership[tp]
    state, replicas = cached.leader_and_isr, ctx.topics.assignment(tp).replicas
    online = ctx.brokers.online(replicas, tp)
    offline = () if online == replicas else tuple([r for r in replicas if r not in online])
    if ctx.deletions.is_queued(tp.topic):
        return UpdateMetadataPartition(
            tp, cached.controller_epoch, LEADER_DURING_DELETE, 0, state.isr, 0, replicas, offline
        )
    leader, epoch = state.leader, state.leader_epoch
    return UpdateMetadataPartition(
        tp, cached.controller_epoch, leader, epoch, state.isr, state.partition_epoch, replicas, offline
    )


def _stop_replica_sends(ctx: ControllerContext, updates: Iterable[StopReplicaUpdate]) -> list[Send]:
    by_broker: dict[int, dict[TopicPartition, bool]] = {}
    for update in updates:
        if update.broker in ctx.brokers.live_or_shutting_down:
            wanted = by_broker.setdefault(update.broker, {})
            wanted[update.partition] = wanted.get(update.partition, False) or update.delete
    return [
        Send(broker, request)
        for broker in sorted(by_broker)
        for request in _stop_replica_requests(ctx, broker, by_broker[broker])
    ]


def _stop_replica_requests(
    ctx: ControllerContext, broker: int, wanted: dict[TopicPartition, bool]
) -> list[StopReplicaRequest]:
    """One request with a flag per partition; before version 3 the flag is per request: deletions first, then stops."""
    states = tuple(StopReplicaPartition(tp, _stop_epoch(ctx, tp), delete) for tp, delete in wanted.items())
    if ctx.config.inter_broker_protocol.stop_replica_version >= 3:
        groups = [states]
    else:
        groups = [tuple(s for s in states if s.delete), tuple(s for s in states if not s.delete)]
    return [StopReplicaRequest(_head(ctx, broker), group) for group in groups if group]


def _stop_epoch(ctx: ControllerContext, tp: TopicPartition) -> int:
    if ctx.deletions.is_queued(tp.topic):
        return EPOCH_DURING_DELETE
    state = ctx.states.leadership.get(tp)
    return NO_EPOCH if state is None else state.leader_and_isr.leader_epoch
