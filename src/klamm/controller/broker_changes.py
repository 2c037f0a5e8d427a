"""Brokers that start, die, bounce or change their addresses, and the consequences for their replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.controller import deletion, lost_tails, partition_state_machine, reassignment, replica_state_machine
from klamm.controller.context import ControllerContext
from klamm.controller.context.replica import PartitionReplica
from klamm.controller.effects import AddChannel, CloseChannel, Note, RegistrationsChanged, Steps
from klamm.controller.request_batch import ControllerBrokerRequestBatch, StopReplicaUpdate, send_all_metadata
from klamm.controller.states import PartitionState, ReplicaState
from klamm.controller.store import read_data
from klamm.controller.topic_store import read_brokers
from klamm.model import TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import BrokerInfo, decode_broker
from klamm.zk.model.znodes import ZnodeFormatError


def on_broker_change(ctx: ControllerContext) -> Steps[None]:
    """Find new, dead and bounced brokers by their epochs: a broker that returned unseen has another epoch."""
    now = yield from read_brokers(watch=True)
    known = ctx.brokers.live_or_shutting_down
    new = [b for b in sorted(now) if b not in known]
    dead = [b for b in sorted(known) if b not in now]
    bounced = [b for b in sorted(now) if b in known and now[b].broker.epoch > known[b].epoch]
    if not (new or dead or bounced):
        return
    yield Note(f"brokers: new {new}, dead {dead}, bounced {bounced}, live {sorted(now)}")
    yield RegistrationsChanged(
        gone=tuple((b, known[b].epoch) for b in (*bounced, *dead)),
        registered=tuple((b, now[b].broker.epoch) for b in (*new, *bounced)),
    )
    for broker in new:
        yield AddChannel(now[broker].broker)
    for broker in (*bounced, *dead):
        yield CloseChannel(broker)
    if new:
        yield from _add(ctx, new, now)
    if bounced:
        yield from _remove(ctx, bounced)
        for broker in bounced:  # only now, because a channel serves one incarnation
            yield AddChannel(now[broker].broker)
        yield from _add(ctx, bounced, now)
    if dead:
        yield from _remove(ctx, dead)


def _add(ctx: ControllerContext, ids: Sequence[int], now: dict[int, BrokerInfo]) -> Steps[None]:
    for broker in ids:
        ctx.brokers.add(now[broker].broker)
        if now[broker].unclean_shutdown:
            yield from lost_tails.on_unclean_shutdown(ctx, broker)
    yield from on_broker_startup(ctx, ids)


def _remove(ctx: ControllerContext, ids: Sequence[int]) -> Steps[None]:
    for broker in ids:
        ctx.remove_broker(broker)
    yield from on_replicas_become_offline(ctx, ctx.topics.replicas_on(ids))


def on_broker_startup(ctx: ControllerContext, ids: Sequence[int]) -> Steps[None]:
    """Announce new brokers to all others, then send the new ones their metadata and their roles.

    Their metadata includes topics that are being deleted: a broker that only lost its session may still know them.
    """
    for broker in ids:
        ctx.brokers.regain_all_logs(broker)
    others = [b for b in ctx.brokers.ids() if b not in ids]
    yield from ControllerBrokerRequestBatch.build(ctx, update_metadata=(), update_metadata_to=others).send()
    yield from send_all_metadata(ctx, ids)
    yield from _delete_strays(ctx, ids)
    yield from lost_tails.leave_isrs(ctx, ids)
    replicas = ctx.topics.replicas_on(ids)
    startable = [r for r in replicas if not _is_being_deleted(ctx, r)]
    yield from replica_state_machine.handle_state_changes(ctx, startable, ReplicaState.ONLINE)
    yield from partition_state_machine.trigger_online(ctx)
    yield from reassignment.resume_on_brokers(ctx, ids)
    yield from deletion.resume_for_topics(ctx, dict.fromkeys(r.partition.topic for r in replicas))


def _is_being_deleted(ctx: ControllerContext, replica: PartitionReplica) -> bool:
    deleting = (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL)
    return ctx.states.replica_state(replica) in deleting


def _delete_strays(ctx: ControllerContext, ids: Sequence[int]) -> Steps[None]:
    """Delete replicas that a reassignment took away, if their broker was down or has not answered since."""
    stops = [
        StopReplicaUpdate(broker, tp, delete=True)
        for broker in ids
        for tp in ctx.deletions.strays_on(broker)
        if broker not in ctx.topics.assignment(tp).replicas
    ]
    if stops:
        yield from ControllerBrokerRequestBatch.build(ctx, stop_replica=stops).send()


def on_replicas_become_offline(ctx: ControllerContext, replicas: Sequence[PartitionReplica]) -> Steps[None]:
    """Elect new leaders, take the replicas out of the other ISRs, and send both in one batch; deletions must wait.

    The batch also carries the list of live brokers, so it is sent even if no partition changed.
    """
    deleting = [r for r in replicas if ctx.deletions.is_queued(r.partition.topic)]
    others = [r for r in replicas if not ctx.deletions.is_queued(r.partition.topic)]
    leaderless = ctx.partitions_without_online_leader(r.replica for r in replicas)
    yield from partition_state_machine.handle_state_changes(ctx, leaderless, PartitionState.OFFLINE)
    outcome = partition_state_machine.Outcome()
    updates = yield from partition_state_machine.elect_missing_leaders(ctx, outcome)
    offline = yield from replica_state_machine.take_offline(ctx, others, outcome.elected)
    yield from ControllerBrokerRequestBatch.build(
        ctx,
        leader_and_isr=[*updates, *offline.leader_and_isr],
        stop_replica=offline.stop_replica,
        update_metadata=offline.update_metadata,
    ).send()
    yield from reassignment.maybe_complete(ctx, outcome.elected)  # after an unclean election the ISR has one member
    if deleting:
        yield from deletion.fail(ctx, deleting)


def on_replicas_come_back(ctx: ControllerContext, tps: Sequence[TopicPartition]) -> Steps[None]:
    """Replicas on a repaired log directory can be used again: they may lead partitions that have no leader."""
    yield from ControllerBrokerRequestBatch.build(ctx, update_metadata=tps).send()
    yield from partition_state_machine.trigger_online(ctx)


def send_live_brokers(ctx: ControllerContext, to: Iterable[int] | None = None) -> Steps[None]:
    """Send an UpdateMetadata without partitions: the live brokers and the controller."""
    yield from ControllerBrokerRequestBatch.build(ctx, update_metadata=(), update_metadata_to=to).send()


def on_broker_modifications(ctx: ControllerContext, broker_id: int) -> Steps[None]:
    """A broker changed its registration in place: new addresses, same incarnation."""
    (result,) = yield from read_data([paths.broker_path(broker_id)], watch=True)
    known = ctx.brokers.live_or_shutting_down.get(broker_id)
    if result is None or known is None or result.stat.czxid != known.epoch:
        return
    try:
        broker = decode_broker(broker_id, result.data, result.stat.czxid).broker
    except ZnodeFormatError as error:
        yield Note(str(error), True)
        return
    if broker != known:
        ctx.brokers.add(broker)
        yield AddChannel(broker)
        yield from send_live_brokers(ctx)
