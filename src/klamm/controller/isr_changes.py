"""ISR changes: requested by AlterPartition, written by leaders themselves, or caused by failed log directories."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from klamm.controller import former_members, reassignment, replica_state_machine, store
from klamm.controller.broker_changes import on_replicas_become_offline, on_replicas_come_back
from klamm.controller.context import ControllerContext
from klamm.controller.context.partition_states import KnownVersion
from klamm.controller.context.replica import PartitionReplica
from klamm.controller.deletion import is_current
from klamm.controller.effects import Note, Reply, Steps, report_leadership
from klamm.controller.events import (
    AlterPartition,
    AlterPartitionItem,
    LeaderAndIsrResponseReceived,
    UpdateMetadataResponseReceived,
)
from klamm.controller.replies import AlterPartitionResult, AlterPartitionResults
from klamm.controller.request_batch import ControllerBrokerRequestBatch, LeaderAndIsrUpdate
from klamm.controller.states import ReplicaState
from klamm.errors import ErrorCode
from klamm.model import LeaderAndIsr, LeaderRecoveryState, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.znodes import ZnodeFormatError, decode_log_dir_event, decode_partitions

_OTHER_VERSION: Final = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NOT_CONTROLLER)


def on_alter_partition(ctx: ControllerContext, event: AlterPartition) -> Steps[None]:
    """Leaders change their ISR through the controller. The leader gets the answer, the others the metadata."""
    broker = ctx.brokers.live_or_shutting_down.get(event.broker_id)
    if broker is None or broker.epoch != event.broker_epoch:
        yield Reply(AlterPartitionResults(ErrorCode.STALE_BROKER_EPOCH))
        return
    results: dict[int, AlterPartitionResult] = {}
    wanted: dict[TopicPartition, tuple[int, LeaderAndIsr]] = {}
    seen: set[TopicPartition] = set()
    stuck: dict[TopicPartition, AlterPartitionItem] = {}
    for index, item in enumerate(event.partitions):
        topic = item.topic or ctx.topics.names.get(item.topic_id, "")
        tp = TopicPartition(topic, item.partition)
        outcome = ErrorCode.INVALID_REQUEST if tp in seen else _judge(ctx, event, item, tp)
        seen.add(tp)
        if isinstance(outcome, ErrorCode) or outcome is None:
            if outcome in _OTHER_VERSION and _is_stuck(ctx, event.broker_id, item, tp):
                stuck[tp] = item
            if outcome is ErrorCode.INVALID_UPDATE_VERSION:
                outcome = ErrorCode.UNKNOWN_SERVER_ERROR  # A leader waits after the other error, and asks again here.
            results[index] = _result(ctx, item, tp, outcome or ErrorCode.NONE)
        else:
            wanted[tp] = (index, outcome)
    written, recreated = yield from _write(ctx, {tp: state for tp, (_, state) in wanted.items()})
    for tp, (index, _) in wanted.items():
        error = ErrorCode.NONE if tp in written else ErrorCode.UNKNOWN_SERVER_ERROR  # The leader asks again.
        results[index] = _result(ctx, event.partitions[index], tp, error)
    if written:
        yield from ControllerBrokerRequestBatch.build(ctx, update_metadata=written).send()
    yield Reply(AlterPartitionResults(partitions=tuple(results[i] for i in range(len(event.partitions)))))
    yield from reassignment.maybe_complete(ctx, written)
    stuck.update({tp: event.partitions[wanted[tp][0]] for tp in recreated})
    yield from _renew(ctx, event.broker_id, stuck)


def _judge(
    ctx: ControllerContext, event: AlterPartition, item: AlterPartitionItem, tp: TopicPartition
) -> LeaderAndIsr | ErrorCode | None:
    """The state to write, an error, or None if the request changes nothing."""
    if not tp.topic:
        return ErrorCode.UNKNOWN_TOPIC_ID
    cached = ctx.states.leadership.get(tp)
    if cached is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    current = cached.leader_and_isr
    if (item.leader_epoch, item.partition_epoch) > (current.leader_epoch, current.partition_epoch):
        return ErrorCode.NOT_CONTROLLER
    if item.leader_epoch < current.leader_epoch or event.broker_id != current.leader:
        return ErrorCode.FENCED_LEADER_EPOCH
    if not _is_well_formed(item, current.leader):
        return ErrorCode.INVALID_REQUEST
    recovery = item.leader_recovery_state
    if set(item.new_isr) == set(current.isr) and recovery == current.leader_recovery_state:
        return None
    if item.partition_epoch < current.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    recovering = recovery is LeaderRecoveryState.RECOVERING
    if recovering and (len(item.new_isr) > 1 or recovery != current.leader_recovery_state):
        return ErrorCode.INVALID_REQUEST
    if not _is_eligible(ctx, item, tp):
        return ErrorCode.INELIGIBLE_REPLICA if event.version >= 2 else ErrorCode.OPERATION_NOT_ATTEMPTED
    return replace(current, isr=item.new_isr, leader_recovery_state=recovery)


def _is_stuck(ctx: ControllerContext, broker_id: int, item: AlterPartitionItem, tp: TopicPartition) -> bool:
    """Whether a leader asks again with a version of its state that is not the cached one.

    Only this controller writes the states, and the leader receives each of them. So somebody else wrote, or restored an
    older one. A leader ignores states of a leader epoch that it has, and of lower ones, and its own changes are
    refused: only a new epoch helps. The first request may be one that was late in the network.
    """
    if ctx.states.leadership[tp].leader_and_isr.leader != broker_id:
        return False
    return ctx.states.is_asked_again(tp, KnownVersion(broker_id, item.leader_epoch, item.partition_epoch))


def _is_well_formed(item: AlterPartitionItem, leader: int) -> bool:
    """An ISR contains the leader, no duplicates, and, if broker epochs are given, one per member."""
    epochs = item.isr_broker_epochs
    once = len(set(item.new_isr)) == len(item.new_isr)
    return leader in item.new_isr and once and (not epochs or len(epochs) == len(item.new_isr))


def _is_eligible(ctx: ControllerContext, item: AlterPartitionItem, tp: TopicPartition) -> bool:
    """Whether replicas are eligible: working directory, live broker of that incarnation, not shutting down."""
    epochs = item.isr_broker_epochs or (-1,) * len(item.new_isr)
    for replica, epoch in zip(item.new_isr, epochs, strict=True):
        broker = ctx.brokers.live_or_shutting_down.get(replica)
        if broker is None or replica in ctx.brokers.shutting_down or replica not in ctx.topics.assignment(tp).replicas:
            return False
        if epoch not in (-1, broker.epoch) or tp in ctx.brokers.offline_logs.get(replica, ()):
            return False
    return True


def _write(
    ctx: ControllerContext, wanted: dict[TopicPartition, LeaderAndIsr]
) -> Steps[tuple[list[TopicPartition], list[TopicPartition]]]:
    """Compare and swap at the version the leader knows.

    Only this controller writes the states: its epoch fences others. So a state of another version was written by
    somebody else, and its ISR is not believed. With the same leader and leader epoch the new ISR replaces it.
    Otherwise nothing is written until the state is restored.

    Return the written partitions, and those whose znode was created again: the leader would ignore the low version.
    """

    def is_same(new: LeaderAndIsr, state: LeaderAndIsr) -> bool:
        return (state.leader, state.leader_epoch) == (new.leader, new.leader_epoch)

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        new = wanted[tp]
        is_replaced = is_same(new, state) and state.partition_epoch >= new.partition_epoch
        return new.with_partition_epoch(state.partition_epoch) if is_replaced else None

    updated = yield from store.update_states(ctx, list(wanted), decide)
    yield from report_leadership([ctx.states.put_leadership(tp, state) for tp, state in updated.changed.items()])
    recreated = [tp for tp, state in updated.unchanged.items() if is_same(wanted[tp], state.leader_and_isr)]
    foreign = wanted.keys() - updated.changed.keys() - updated.refused.keys() - set(recreated)
    yield from _note_foreign(ctx, {tp: wanted[tp] for tp in foreign})
    for tp in updated.changed:
        ctx.suspects.on_leader_answered(tp)  # it knows its epoch, or it would not ask
    return list(updated.changed), recreated


def _note_foreign(ctx: ControllerContext, expected: dict[TopicPartition, LeaderAndIsr]) -> Steps[None]:
    """Log once that a znode holds another leadership, or is missing."""
    for tp, state in expected.items():
        if tp not in ctx.states.foreign:
            ctx.states.foreign.add(tp)
            yield Note(
                f"{paths.partition_state_path(*tp)} was changed by somebody else: the ISR of {tp} cannot change until "
                f"the znode holds leader {state.leader} and leader epoch {state.leader_epoch} again",
                True,
            )


def _renew(ctx: ControllerContext, leader: int, items: dict[TopicPartition, AlterPartitionItem]) -> Steps[None]:
    """Give this leader a new epoch of these partitions: with it, it adopts the version of their states.

    Nobody knows whose ISR is right. The leader's may have a replica that the controller has removed, because it lost
    records; the one in the znode may be forged. So a member must be in both; others join again when they have caught
    up. If nothing can be written, the leader asks again.
    """
    items = {tp: item for tp, item in items.items() if not ctx.deletions.is_queued(tp.topic)}
    if not items:
        return
    known = {tp: ctx.states.leadership[tp].leader_and_isr for tp in items}

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        if (state.leader, state.leader_epoch) != (leader, known[tp].leader_epoch):
            return None
        epoch = max(state.leader_epoch, items[tp].leader_epoch) + 1
        isr = (leader, *(r for r in known[tp].isr if r != leader and r in items[tp].new_isr))
        return replace(known[tp], leader_epoch=epoch, isr=isr, partition_epoch=state.partition_epoch)

    updated = yield from store.update_states(ctx, list(items), decide)
    yield from report_leadership([ctx.states.put_leadership(tp, state) for tp, state in updated.changed.items()])
    for tp in updated.changed:
        yield Note(f"{paths.partition_state_path(*tp)} was changed by somebody else: {tp} has a new leader epoch")
    yield from _note_foreign(ctx, {tp: known[tp] for tp in (*updated.unchanged, *updated.missing)})
    updates = [LeaderAndIsrUpdate(ctx.topics.assignment(tp).replicas, tp) for tp in updated.changed]
    yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()


def _result(
    ctx: ControllerContext, item: AlterPartitionItem, tp: TopicPartition, error: ErrorCode
) -> AlterPartitionResult:
    cached = ctx.states.leadership.get(tp)
    state = cached.leader_and_isr if cached is not None and error is ErrorCode.NONE else None
    topic_id = ctx.topics.ids.get(tp.topic, item.topic_id)
    return AlterPartitionResult(tp.topic, topic_id, tp.partition, error, state)


def on_isr_change_notification(ctx: ControllerContext) -> Steps[None]:
    """Leaders of older protocol versions write the ISR themselves and then create a notification.

    A leader that does not know yet that a move was cancelled may have added the moved replica: it is removed again.
    """
    names = yield from store.read_children(paths.ISR_CHANGE_NOTIFICATION, watch=True)
    if not names:
        return
    notes = [paths.isr_change_path(name) for name in names]
    results = yield from store.read_data(notes)
    tps: dict[TopicPartition, None] = {}
    for path, result in zip(notes, results, strict=True):
        try:
            tps.update(dict.fromkeys(decode_partitions(path, result.data) if result else ()))
        except ZnodeFormatError as error:
            yield Note(str(error), True)
    states = yield from store.read_states([tp for tp in tps if ctx.topics.has_assignment(tp)])
    yield from report_leadership([ctx.states.put_leadership(tp, state) for tp, state in states.items()])
    staying = (tp for tp in states if not ctx.deletions.is_queued(tp.topic))
    unassigned = [tp for tp in staying if replica_state_machine.has_unassigned_isr(ctx, tp)]
    yield from replica_state_machine.shrink_isr(ctx, {tp: [] for tp in unassigned})
    if states:
        updates = [LeaderAndIsrUpdate(ctx.topics.assignment(tp).replicas, tp) for tp in unassigned]
        yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates, update_metadata=list(states)).send()
        yield from reassignment.maybe_complete(ctx, states)
    yield from store.delete_all(ctx, notes)


def on_log_dir_event(ctx: ControllerContext) -> Steps[None]:
    """A broker lost a log directory: send it all its replicas again; the answers name those that are gone."""
    names = yield from store.read_children(paths.LOG_DIR_EVENT_NOTIFICATION, watch=True)
    if not names:
        return
    notes = [paths.log_dir_event_path(name) for name in names]
    results = yield from store.read_data(notes)
    brokers = set()
    for path, result in zip(notes, results, strict=True):
        try:
            if result is not None:
                brokers.add(decode_log_dir_event(path, result.data))
        except ZnodeFormatError as error:
            yield Note(str(error), True)
    replicas = [r for r in ctx.topics.replicas_on(sorted(brokers)) if not ctx.deletions.is_queued(r.partition.topic)]
    added: list[PartitionReplica] = []
    online: list[PartitionReplica] = []
    for replica in replicas:  # a new replica stays new until it is in sync
        (added if ctx.states.replica_state(replica) is ReplicaState.NEW else online).append(replica)
    yield from replica_state_machine.handle_state_changes(ctx, online, ReplicaState.ONLINE)
    updates = [LeaderAndIsrUpdate((r.replica,), r.partition, is_new=True) for r in added]
    yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()
    yield from store.delete_all(ctx, notes)


def on_leader_and_isr_response(ctx: ControllerContext, event: LeaderAndIsrResponseReceived) -> Steps[None]:
    if not is_current(ctx, event.broker_id, event.head):
        return
    if event.error is not ErrorCode.NONE:
        yield Note(f"broker {event.broker_id} answered LeaderAndIsr with {event.error.name}")
        return
    _note_leaders(ctx, event)
    yield from former_members.settle(ctx)
    offline = ctx.brokers.offline_logs.get(event.broker_id, frozenset())
    lost = []
    came_back = []
    for tp, error in event.partition_errors:
        if error == ErrorCode.KAFKA_STORAGE_ERROR and tp not in offline and ctx.topics.has_assignment(tp):
            lost.append(PartitionReplica(tp, event.broker_id))
        elif error == ErrorCode.NONE and tp in offline:
            came_back.append(tp)
    for replica in lost:
        ctx.brokers.lose_log(event.broker_id, replica.partition)
    for tp in came_back:
        ctx.brokers.regain_log(event.broker_id, tp)
    if lost:
        yield Note(f"broker {event.broker_id} lost the log directory of {', '.join(str(r.partition) for r in lost)}")
        yield from on_replicas_become_offline(ctx, lost)
    if came_back:
        yield from on_replicas_come_back(ctx, came_back)


def _note_leaders(ctx: ControllerContext, event: LeaderAndIsrResponseReceived) -> None:
    """Note leaders that know their epoch: from now on they may commit without replicas outside their ISR."""
    if not ctx.suspects.left:
        return
    known = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
    for (tp, error), epoch in zip(event.partition_errors, event.leader_epochs, strict=False):
        if tp in ctx.suspects.left and error in known and tp in ctx.states.leadership:
            state = ctx.states.leadership[tp].leader_and_isr
            if (state.leader, state.leader_epoch) == (event.broker_id, epoch):
                ctx.suspects.on_leader_answered(tp)


def on_update_metadata_response(event: UpdateMetadataResponseReceived) -> Steps[None]:
    if event.error is not ErrorCode.NONE:
        yield Note(f"broker {event.broker_id} answered UpdateMetadata with {event.error.name}")
