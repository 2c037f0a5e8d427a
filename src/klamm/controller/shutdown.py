"""Controlled shutdown: other brokers take over the leadership of a broker before its request is answered."""

from __future__ import annotations

from klamm.controller import partition_state_machine, replica_state_machine
from klamm.controller.context import ControllerContext
from klamm.controller.context.replica import PartitionReplica
from klamm.controller.effects import Note, Reply, Steps
from klamm.controller.election import ElectionStrategy
from klamm.controller.events import ControlledShutdown
from klamm.controller.replies import ControlledShutdownResult
from klamm.controller.request_batch import ControllerBrokerRequestBatch, StopReplicaUpdate
from klamm.controller.states import PartitionState, ReplicaState
from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH, TopicPartition


def on_controlled_shutdown(ctx: ControllerContext, event: ControlledShutdown) -> Steps[None]:
    error = _check(ctx, event)
    if error is not ErrorCode.NONE:
        yield Reply(ControlledShutdownResult(error))
        return
    broker = event.broker_id
    ctx.brokers.start_shutdown(broker)
    tps = [tp for tp in ctx.topics.partitions_on(broker) if _can_move(ctx, tp)]
    led = [tp for tp in tps if ctx.states.leadership[tp].leader_and_isr.leader == broker]
    followed = [tp for tp in tps if ctx.states.leadership[tp].leader_and_isr.leader != broker]
    yield from partition_state_machine.handle_state_changes(
        ctx, led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
    )
    stops = [StopReplicaUpdate(broker, tp, delete=False) for tp in followed]
    yield from ControllerBrokerRequestBatch.build(ctx, stop_replica=stops).send()
    replicas = [PartitionReplica(tp, broker) for tp in followed]
    yield from replica_state_machine.handle_state_changes(ctx, replicas, ReplicaState.OFFLINE)
    remaining = tuple(tp for tp in ctx.states.led_by(broker) if _can_move(ctx, tp))
    yield Note(f"broker {broker} shuts down: {len(led) - len(remaining)} partitions moved, {len(remaining)} remain")
    yield Reply(ControlledShutdownResult(remaining=remaining))


def _can_move(ctx: ControllerContext, tp: TopicPartition) -> bool:
    """Partitions with a single replica are neither moved nor waited for."""
    replicas = ctx.topics.assignment(tp).replicas
    return len(replicas) > 1 and tp in ctx.states.leadership and not ctx.deletions.is_queued(tp.topic)


def _check(ctx: ControllerContext, event: ControlledShutdown) -> ErrorCode:
    known = ctx.brokers.live_or_shutting_down.get(event.broker_id)
    if event.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return ErrorCode.BROKER_NOT_AVAILABLE if known is None else ErrorCode.NONE
    if known is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    # Kafka accepts a higher epoch. A broker whose registration this controller has not seen yet retries soon.
    return ErrorCode.NONE if event.broker_epoch == known.epoch else ErrorCode.STALE_BROKER_EPOCH
