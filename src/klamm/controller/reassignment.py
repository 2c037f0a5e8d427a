"""Moving replicas (KIP-455): add the new ones, wait until the whole target is in sync, then remove the old ones.

While a partition moves, its replicas are the target followed by the leftover originals; the topic znode holds what is
added and removed, so any controller can continue. A move ends when the target is a subset of the ISR in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from klamm.controller import partition_state_machine, replica_state_machine, store, topic_store
from klamm.controller.context import ControllerContext
from klamm.controller.context.replica import PartitionReplica
from klamm.controller.effects import Enqueue, Note, Steps, report_leadership
from klamm.controller.election import ElectionStrategy
from klamm.controller.events import ZkPartitionReassignment
from klamm.controller.request_batch import ControllerBrokerRequestBatch, LeaderAndIsrUpdate
from klamm.controller.states import PartitionState, ReplicaState
from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from klamm.zk.model import paths


def on_partition_reassignment(ctx: ControllerContext, tp: TopicPartition, new: ReplicaAssignment) -> Steps[None]:
    """Start, replace, continue, cancel or complete the move of one partition."""
    if new != ctx.topics.assignment(tp) and not (yield from _update_current(ctx, tp, new)):
        return
    if (yield from _is_complete(ctx, tp, new)):
        yield from _complete(ctx, tp, new)
    elif tp in ctx.topics.reassigning:
        yield from _begin(ctx, [tp])


def _update_current(ctx: ControllerContext, tp: TopicPartition, new: ReplicaAssignment) -> Steps[bool]:
    """Returns False if the topic is gone or its znode cannot be written."""
    old = ctx.topics.assignment(tp)
    znode = yield from topic_store.rewrite_topic(ctx, tp.topic, lambda current: {**current, tp.partition: new})
    if znode is None or znode.assignment.get(tp.partition) != new:
        yield Note(f"partition {tp} cannot be moved: its topic is gone or cannot be written")
        return False
    ctx.put_assignment(tp, new)
    dropped = [r for r in old.replicas if r not in new.replicas]
    yield from _remove_replicas(ctx, tp, dropped)
    ctx.topics.start_reassignment(tp)
    if not ctx.config.inter_broker_protocol.has_alter_partition:
        yield from store.read_data([paths.partition_state_path(*tp)], watch=True)
    return True


def _is_complete(ctx: ControllerContext, tp: TopicPartition, new: ReplicaAssignment) -> Steps[bool]:
    return _is_in_sync(ctx, tp, new, (yield from store.read_states([tp])).get(tp))


def _is_in_sync(
    ctx: ControllerContext, tp: TopicPartition, new: ReplicaAssignment, state: LeaderIsrAndControllerEpoch | None
) -> bool:
    """Whether the target is in sync and one of its replicas can lead.

    Otherwise removing the others would lose the partition.
    """
    if state is None or tp not in ctx.topics.reassigning:
        return False
    isr, target = state.leader_and_isr.isr, new.target_replicas
    able = not ctx.suspects.of(tp) and any(ctx.brokers.is_replica_online(r, tp) for r in target if r in isr)
    return able and (not new.is_being_reassigned or set(target) <= set(isr))


def _begin(ctx: ControllerContext, tps: Sequence[TopicPartition]) -> Steps[None]:
    """Send the new replica lists with new leader epochs; added replicas start to fetch."""
    begun = yield from _bump_leader_epochs(ctx, {tp: ctx.topics.assignment(tp).replicas for tp in tps})
    updates: list[LeaderAndIsrUpdate] = []
    fresh: list[PartitionReplica] = []
    for tp in begun:
        new = ctx.topics.assignment(tp)
        updates.append(LeaderAndIsrUpdate(tuple(r for r in new.replicas if r not in new.adding_replicas), tp))
        updates.append(LeaderAndIsrUpdate(new.adding_replicas, tp, is_new=True))
        adding = (PartitionReplica(tp, r) for r in new.adding_replicas)
        fresh += (r for r in adding if ctx.states.replica_state(r) is ReplicaState.NON_EXISTENT)
    yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()
    yield from replica_state_machine.handle_state_changes(ctx, fresh, ReplicaState.NEW)
    yield from _elect_added(ctx, [tp for tp in begun if ctx.states.partition_state(tp) is PartitionState.OFFLINE])


def _elect_added(ctx: ControllerContext, tps: Sequence[TopicPartition]) -> Steps[None]:
    """Partitions without a leader have more replicas now: with unclean election enabled, one of them leads."""
    outcome = yield from partition_state_machine.handle_state_changes(ctx, tps, PartitionState.ONLINE)
    yield from maybe_complete(ctx, outcome.elected)


def _bump_leader_epochs(
    ctx: ControllerContext, replicas: Mapping[TopicPartition, tuple[int, ...]]
) -> Steps[list[TopicPartition]]:
    """Return the partitions that have a new leader epoch.

    A leader that writes its ISR itself may have added a replica that was just dropped: it is removed.
    """

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr:
        return state.with_leader(state.leader, tuple(r for r in state.isr if r in replicas[tp]) or state.isr)

    updated = yield from store.update_states(ctx, list(replicas), decide)
    bumped = [tp for tp in replicas if tp in updated.changed]
    yield from report_leadership([ctx.states.put_leadership(tp, updated.changed[tp]) for tp in bumped])
    for tp in replicas:
        if tp not in updated.changed:
            yield Note(f"partition {tp} has no state znode: its reassignment waits")
    return bumped


def _complete(ctx: ControllerContext, tp: TopicPartition, new: ReplicaAssignment) -> Steps[None]:
    target = ReplicaAssignment(new.target_replicas)
    added = [PartitionReplica(tp, r) for r in new.adding_replicas]
    yield from replica_state_machine.handle_state_changes(ctx, added, ReplicaState.ONLINE)
    ctx.put_assignment(tp, target)
    yield from _move_leader(ctx, tp, target, new.replicas)
    yield from _remove_replicas(ctx, tp, new.removing_replicas)
    yield from topic_store.rewrite_topic(ctx, tp.topic, lambda current: {**current, tp.partition: target})
    ctx.topics.end_reassignment(tp)
    yield from ControllerBrokerRequestBatch.build(ctx, update_metadata=[tp]).send()
    yield Note(f"reassignment of {tp} to {list(target.replicas)} is complete")
    if ctx.topics.has_zk_reassignment:
        yield Enqueue(ZkPartitionReassignment())


def _move_leader(
    ctx: ControllerContext, tp: TopicPartition, target: ReplicaAssignment, replicas: tuple[int, ...]
) -> Steps[None]:
    leader = ctx.states.leadership[tp].leader_and_isr.leader
    if leader in target.replicas and ctx.brokers.is_replica_online(leader, tp):
        if (yield from _bump_leader_epochs(ctx, {tp: replicas})):
            updates = [LeaderAndIsrUpdate(target.replicas, tp)]
            yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()
        return
    outcome = yield from partition_state_machine.handle_state_changes(
        ctx, [tp], PartitionState.ONLINE, ElectionStrategy.REASSIGN
    )
    if tp in outcome.failed:
        ctx.states.put_partition_state(tp, PartitionState.OFFLINE)


def _remove_replicas(ctx: ControllerContext, tp: TopicPartition, removed: Iterable[int]) -> Steps[None]:
    """Stop and delete replicas that left the assignment. Until a broker confirms, the deletion is repeated whenever
    it starts."""
    replicas = [PartitionReplica(tp, r) for r in removed]
    led = ctx.states.leadership.get(tp)
    leader_epoch = 0 if led is None else led.leader_and_isr.leader_epoch
    for replica in replicas:
        ctx.deletions.add_stray(replica.replica, tp, leader_epoch)
    for state in (
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_STARTED,
        ReplicaState.DELETION_SUCCESSFUL,
        ReplicaState.NON_EXISTENT,
    ):
        yield from replica_state_machine.handle_state_changes(ctx, replicas, state)


def maybe_complete(ctx: ControllerContext, tps: Iterable[TopicPartition]) -> Steps[None]:
    """Complete moves whose target is in sync after an ISR change.

    One read covers all, so that moves that continue cost nothing more.
    """
    moving = [tp for tp in tps if tp in ctx.topics.reassigning]
    for tp, state in (yield from store.read_states(moving)).items():
        current = ctx.topics.assignment(tp)
        if _is_in_sync(ctx, tp, current, state):
            yield from on_partition_reassignment(ctx, tp, current)


def resume_on_brokers(ctx: ControllerContext, brokers: Iterable[int]) -> Steps[None]:
    """Continue the moves to brokers that have started."""
    started = frozenset(brokers)
    yield from _resume(
        ctx, [tp for tp in ctx.topics.reassigning if started.intersection(ctx.topics.assignment(tp).target_replicas)]
    )


def resume_all(ctx: ControllerContext) -> Steps[None]:
    """At failover: continue every move that the topic znodes contain."""
    yield from _resume(ctx, list(ctx.topics.reassigning))


def _resume(ctx: ControllerContext, tps: Sequence[TopicPartition]) -> Steps[None]:
    """Read all at once; complete those whose target is in sync, start the others together."""
    states = yield from store.read_states(tps)
    waiting = []
    for tp in tps:
        if _is_in_sync(ctx, tp, ctx.topics.assignment(tp), states.get(tp)):
            yield from on_partition_reassignment(ctx, tp, ctx.topics.assignment(tp))
        else:
            waiting.append(tp)
    if waiting := [tp for tp in waiting if tp in ctx.topics.reassigning]:
        yield from _begin(ctx, waiting)
