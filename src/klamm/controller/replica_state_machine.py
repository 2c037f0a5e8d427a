"""The replica state machine: New, Online, Offline and the states of deletion.

As for partitions, a call moves many replicas to one state: a few fenced transactions, the cache, one batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from klamm.controller import store
from klamm.controller.context import ControllerContext
from klamm.controller.context.replica import PartitionReplica
from klamm.controller.effects import Note, Steps, report_leadership
from klamm.controller.election import remove_from_isr
from klamm.controller.request_batch import ControllerBrokerRequestBatch, LeaderAndIsrUpdate, StopReplicaUpdate
from klamm.controller.states import VALID_PREVIOUS_REPLICA_STATES, ReplicaState
from klamm.model import NO_LEADER, LeaderAndIsr, ReplicaAssignment, TopicPartition


@dataclass(slots=True)
class OfflineReplicas:
    """The requests after replicas went offline: the parts of one batch."""

    leader_and_isr: list[LeaderAndIsrUpdate] = field(default_factory=list)
    stop_replica: list[StopReplicaUpdate] = field(default_factory=list)
    update_metadata: list[TopicPartition] = field(default_factory=list)


def startup(ctx: ControllerContext) -> dict[TopicPartition, list[int]]:
    """Initialise the state of every replica after failover. Returns the offline replicas by partition."""
    offline: dict[TopicPartition, list[int]] = {}
    for tp, assignment in ctx.topics.all_assignments():
        replicas = assignment.replicas
        online = ctx.brokers.online(replicas, tp)
        states = dict.fromkeys(replicas, ReplicaState.ONLINE)
        if len(online) < len(replicas):
            offline[tp] = [replica for replica in replicas if replica not in online]
            states.update(dict.fromkeys(offline[tp], ReplicaState.OFFLINE))
        ctx.states.start_replica_states(tp, states)
    return offline


def leave_isrs(ctx: ControllerContext, offline: dict[TopicPartition, list[int]]) -> Steps[None]:
    """After failover, remove offline replicas and unassigned replicas from ISRs, without sending requests.

    Unassigned replicas remain if a controller died while it cancelled a move.
    """
    leaving: dict[TopicPartition, list[int]] = {}
    has_suspects = bool(ctx.suspects.unclean)
    for tp, state in ctx.states.leadership.items():
        gone = offline.get(tp, [])
        if has_suspects and (suspects := ctx.suspects.of(tp)):
            gone = [*gone, *suspects]
        if has_unassigned_isr(ctx, tp) or (gone and any([replica in state.leader_and_isr.isr for replica in gone])):
            leaving[tp] = gone
    yield from shrink_isr(ctx, leaving)
    for tp in leaving:
        if ctx.has_online_leader(tp):
            ctx.suspects.forget(tp)


def has_unassigned_isr(ctx: ControllerContext, tp: TopicPartition) -> bool:
    """Whether the ISR has a replica that was moved away: no leader notices its lag, yet it counts as a copy."""
    isr, replicas = ctx.states.leadership[tp].leader_and_isr.isr, ctx.topics.assignment(tp).replicas
    return isr != replicas and not set(isr).issubset(replicas)


def handle_state_changes(
    ctx: ControllerContext, replicas: Iterable[PartitionReplica], target: ReplicaState
) -> Steps[None]:
    legal = yield from _legal(ctx, replicas, target)
    if not legal:
        return
    match target:
        case ReplicaState.NEW:
            yield from _become_new(ctx, legal)
        case ReplicaState.ONLINE:
            yield from _become_online(ctx, legal)
        case ReplicaState.OFFLINE:
            offline = yield from _become_offline(ctx, legal)
            yield from ControllerBrokerRequestBatch.build(
                ctx,
                leader_and_isr=offline.leader_and_isr,
                stop_replica=offline.stop_replica,
                update_metadata=offline.update_metadata,
            ).send()
        case ReplicaState.DELETION_STARTED:
            yield from _start_deletion(ctx, legal)
        case ReplicaState.NON_EXISTENT:
            _forget(ctx, legal)
        case ReplicaState.DELETION_SUCCESSFUL | ReplicaState.DELETION_INELIGIBLE:
            for replica in legal:
                ctx.states.put_replica_state(replica, target)


def take_offline(
    ctx: ControllerContext, replicas: Iterable[PartitionReplica], elected: Collection[TopicPartition]
) -> Steps[OfflineReplicas]:
    """Move replicas to OFFLINE without sending anything; the caller sends the result together with its elections.

    The ISRs of `elected` partitions were settled by their elections, so their states are not written again.
    """
    legal = yield from _legal(ctx, replicas, ReplicaState.OFFLINE)
    return (yield from _become_offline(ctx, legal, elected))


def _legal(
    ctx: ControllerContext, replicas: Iterable[PartitionReplica], target: ReplicaState
) -> Steps[list[PartitionReplica]]:
    legal = []
    for replica in replicas:
        state = ctx.states.replica_state(replica)
        if state in VALID_PREVIOUS_REPLICA_STATES[target]:
            legal.append(replica)
        else:
            yield Note(f"replica {replica} cannot go from {state.name} to {target.name}")
    return legal


def _become_new(ctx: ControllerContext, replicas: list[PartitionReplica]) -> Steps[None]:
    updates = []
    for replica in replicas:
        state = ctx.states.leadership.get(replica.partition)
        if state is not None and state.leader_and_isr.leader == replica.replica:
            yield Note(f"replica {replica} cannot be NEW: it leads its partition")
            continue
        if state is not None:
            updates.append(LeaderAndIsrUpdate((replica.replica,), replica.partition, is_new=True))
        ctx.states.put_replica_state(replica, ReplicaState.NEW)
    yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()


def _become_online(ctx: ControllerContext, replicas: list[PartitionReplica]) -> Steps[None]:
    updates = []
    for replica in replicas:
        if ctx.states.replica_state(replica) is not ReplicaState.NEW and replica.partition in ctx.states.leadership:
            updates.append(LeaderAndIsrUpdate((replica.replica,), replica.partition))
        ctx.states.put_replica_state(replica, ReplicaState.ONLINE)
    yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()


def _become_offline(
    ctx: ControllerContext, replicas: list[PartitionReplica], elected: Collection[TopicPartition] = ()
) -> Steps[OfflineReplicas]:
    """Stop the replica and remove it from the ISR; the other replicas receive the new ISR."""
    by_partition: dict[TopicPartition, list[int]] = {}
    for replica in replicas:
        by_partition.setdefault(replica.partition, []).append(replica.replica)
    known = [tp for tp in by_partition if tp in ctx.states.leadership]
    unsettled = [tp for tp in known if tp not in elected or _is_any_in_sync(ctx, tp, by_partition[tp])]
    yield from shrink_isr(ctx, {tp: by_partition[tp] for tp in unsettled})
    updates = []
    for tp in known:
        if tp in ctx.states.leadership and not ctx.deletions.is_queued(tp.topic):
            others = tuple(r for r in ctx.topics.assignment(tp).replicas if r not in by_partition[tp])
            updates.append(LeaderAndIsrUpdate(others, tp))
    for replica in replicas:
        ctx.states.put_replica_state(replica, ReplicaState.OFFLINE)
    stops = [StopReplicaUpdate(r.replica, r.partition, delete=False) for r in replicas]
    return OfflineReplicas(updates, stops, list(by_partition))


def _is_any_in_sync(ctx: ControllerContext, tp: TopicPartition, replicas: list[int]) -> bool:
    """Whether one of these leads or is in sync by the cached state, such as a first state adopted from ZooKeeper."""
    state = ctx.states.leadership[tp].leader_and_isr
    return any(r in state.isr or r == state.leader for r in replicas)


def shrink_isr(ctx: ControllerContext, leaving: dict[TopicPartition, list[int]]) -> Steps[None]:
    """Remove replicas from ISRs in one write per partition. If no remaining replica can lead, the members stay.

    Replicas that are no longer assigned leave first: if one of them were the last, no replica could ever lead. A leader
    among them stays while no other replica can lead.
    """

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        assigned = ctx.topics.assignment(tp).replicas
        stays = state.leader if ctx.is_last_leader(tp, state) else NO_LEADER
        outside = [r for r in state.isr if r not in assigned and r != stays]
        suspects = ctx.suspects.of(tp)

        def can_lead(replica: int) -> bool:
            return replica not in suspects and ctx.brokers.is_replica_online(replica, tp, include_shutting_down=True)

        is_deleted = ctx.deletions.is_queued(tp.topic)
        return remove_from_isr(state, leaving[tp], can_lead, outside=outside, is_deleted=is_deleted)

    updated = yield from store.update_states(ctx, list(leaving), decide)
    for tp, state in updated.changed.items():
        if tp in ctx.states.leadership:
            ctx.suspects.on_state(tp, ctx.states.leadership[tp].leader_and_isr, state.leader_and_isr)
    changes = [ctx.states.put_leadership(tp, state) for tp, state in updated.changed.items()]
    changes += [ctx.states.put_leadership(tp, state) for tp, state in updated.unchanged.items()]
    yield from report_leadership(changes)
    for tp in updated.missing:
        if not ctx.deletions.is_queued(tp.topic):
            yield Note(f"partition {tp} has no state znode")


def _start_deletion(ctx: ControllerContext, replicas: list[PartitionReplica]) -> Steps[None]:
    for replica in replicas:
        ctx.states.put_replica_state(replica, ReplicaState.DELETION_STARTED)
    stops = [StopReplicaUpdate(r.replica, r.partition, delete=True) for r in replicas]
    yield from ControllerBrokerRequestBatch.build(ctx, stop_replica=stops).send()


def _forget(ctx: ControllerContext, replicas: list[PartitionReplica]) -> None:
    for tp, replica in replicas:
        old = ctx.topics.assignment(tp)
        kept = ReplicaAssignment(
            tuple(r for r in old.replicas if r != replica),
            tuple(r for r in old.adding_replicas if r != replica),
            tuple(r for r in old.removing_replicas if r != replica),
        )
        ctx.put_assignment(tp, kept)
        ctx.states.put_replica_state(PartitionReplica(tp, replica), ReplicaState.NON_EXISTENT)
