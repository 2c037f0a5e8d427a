"""Elections where the live in-sync replicas may have lost their tail: wait for the others, compare logs, then decide.

A broker that was not shut down cleanly may lack records that it had acknowledged. If another member of the ISR can
lead, it does, and the suspect leaves the ISR: it comes back when it has caught up. Otherwise the partition is held
without a leader, its ISR unchanged. Every live replica is asked where its log ends. When all members of the ISR are
back, or `klamm.unclean.replica.wait.ms` is over, the longest log of the newest epoch leads.

A new controller reconstructs all of this after a failover: a registration reports an unclean shutdown until no ISR
depends on that broker's old log, and the znode of a held partition contains its last ISR and no leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from klamm.controller import partition_state_machine, reassignment, replica_state_machine, topic_store
from klamm.controller.context import ControllerContext
from klamm.controller.effects import AskLogEnds, Note, Schedule, Steps
from klamm.controller.election import ElectionStrategy
from klamm.controller.events import LogEndsReceived, UncleanReplicaWaitOver
from klamm.controller.request_batch import ControllerBrokerRequestBatch, LeaderAndIsrUpdate
from klamm.controller.states import PartitionState
from klamm.controller.suspects import NOTHING_TO_COMPARE
from klamm.model import TopicPartition

TIMER_MARGIN_MS: Final = 10
"""A timer may fire a little early."""


def on_unclean_shutdown(ctx: ControllerContext, broker: int) -> Steps[None]:
    """A broker has reported an unclean shutdown: it is suspected in every ISR that it is in now."""
    states = ctx.states.leadership
    tps = [tp for tp in ctx.topics.partitions_on(broker) if tp in states and broker in states[tp].leader_and_isr.isr]
    ctx.suspects.add(broker, tps)
    if tps:
        yield Note(f"broker {broker} was not shut down cleanly and is in the ISR of {len(tps)} partitions")


def leave_isrs(ctx: ControllerContext, brokers: Iterable[int]) -> Steps[None]:
    """Remove suspects among new brokers from ISRs of partitions that others lead.

    Usually there are none: a broker leaves its ISRs when it dies. The others are informed here, the new ones later.
    """
    leaving: dict[TopicPartition, list[int]] = {}
    for broker in brokers:
        for tp in ctx.suspects.partitions.get(broker, ()):
            if ctx.has_online_leader(tp) and ctx.states.leadership[tp].leader_and_isr.leader != broker:
                leaving.setdefault(tp, []).append(broker)
    if leaving:
        yield from replica_state_machine.shrink_isr(ctx, leaving)
        others = {tp: tuple(r for r in ctx.topics.assignment(tp).replicas if r not in leaving[tp]) for tp in leaving}
        updates = [LeaderAndIsrUpdate(others[tp], tp) for tp in leaving]
        yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()
        for tp in leaving:
            ctx.suspects.forget(tp)


def on_log_ends(ctx: ControllerContext, event: LogEndsReceived) -> None:
    """Store the answers of the registered incarnation; `review` follows."""
    known = ctx.brokers.live_or_shutting_down.get(event.broker_id)
    if known is None or known.epoch != event.broker_epoch:
        return
    for tp, end in event.log_ends:
        hold = ctx.suspects.held.get(tp)
        if hold is not None:
            hold.log_ends[event.broker_id] = end


def review(ctx: ControllerContext) -> Steps[None]:
    """Hold partitions that must wait, ask the replicas not yet asked, and elect where the wait is over."""
    suspects = ctx.suspects
    if not suspects.unclean:
        suspects.keep_held(())  # replicas that return later start their own wait
        return
    for tp in suspects.all_partitions():
        if ctx.deletions.is_queued(tp.topic):
            suspects.forget(tp)
    waiting = dict.fromkeys(tp for tp in suspects.all_partitions() if _is_waiting(ctx, tp))
    suspects.keep_held(waiting)
    yield from _hold(ctx, [tp for tp in waiting if tp not in suspects.held])
    yield from _ask(ctx)
    yield from _elect(ctx)
    for broker in [b for b in suspects.unclean if not suspects.partitions.get(b)]:
        if (yield from topic_store.trust_registration(ctx, ctx.brokers.live_or_shutting_down[broker])):
            suspects.trust(broker)


def _is_waiting(ctx: ControllerContext, tp: TopicPartition) -> bool:
    return ctx.states.partition_state(tp) is PartitionState.OFFLINE and tp in ctx.states.leadership


def _hold(ctx: ControllerContext, tps: list[TopicPartition]) -> Steps[None]:
    if not tps:
        return
    wait_ms = ctx.config.unclean_replica_wait_ms
    deadline_s = ctx.clock.monotonic() + wait_ms / 1000
    for tp in tps:
        ctx.suspects.hold(tp, deadline_s)
        isr, live = ctx.states.leadership[tp].leader_and_isr.isr, tuple(_able(ctx, tp))
        yield Note(f"partition {tp} has no leader: {live} of its ISR {isr} are live and were not shut down cleanly")
    yield Schedule(wait_ms + TIMER_MARGIN_MS, UncleanReplicaWaitOver())


def _able(ctx: ControllerContext, tp: TopicPartition) -> list[int]:
    """Return the online members of the ISR, without those whose log is in a failed directory."""
    return [r for r in ctx.states.leadership[tp].leader_and_isr.isr if _is_able(ctx, tp, r)]


def _is_able(ctx: ControllerContext, tp: TopicPartition, replica: int) -> bool:
    has_answered_none = ctx.suspects.held[tp].log_ends.get(replica, NOTHING_TO_COMPARE) is None
    return not has_answered_none and ctx.brokers.is_replica_online(replica, tp)


def _is_missing_any(ctx: ControllerContext, tp: TopicPartition) -> bool:
    """Whether a replica is missing that may have everything: a member, or one that was a member until now."""
    assigned = ctx.topics.assignment(tp).replicas
    former = [r for r in ctx.suspects.left.get(tp, ()) if r in assigned]
    return not all(_is_able(ctx, tp, r) for r in (*ctx.states.leadership[tp].leader_and_isr.isr, *former))


def _ask(ctx: ControllerContext) -> Steps[None]:
    """Query every online replica that was not asked yet, also outside the ISR. One request per broker."""
    asked: dict[int, list[tuple[TopicPartition, int]]] = {}
    for tp, hold in ctx.suspects.held.items():
        for replica in ctx.online_replicas(tp):
            if replica not in hold.asked:
                hold.asked.add(replica)
                asked.setdefault(replica, []).append((tp, ctx.states.leadership[tp].leader_and_isr.leader_epoch))
    for broker, tps in sorted(asked.items()):
        yield AskLogEnds(ctx.brokers.live_or_shutting_down[broker], tuple(tps))


def _elect(ctx: ControllerContext) -> Steps[None]:
    held = ctx.suspects.held
    answered = [tp for tp, hold in held.items() if all(r in hold.log_ends for r in ctx.online_replicas(tp))]
    missing = [tp for tp in answered if _is_missing_any(ctx, tp)]
    hurried = yield from _may_lose_records(ctx, missing)
    waits = set(missing)
    ready = dict.fromkeys(tp for tp in answered if tp not in waits or tp.topic in hurried)
    now_s = ctx.clock.monotonic()
    ready |= dict.fromkeys(tp for tp, hold in held.items() if hold.deadline_s <= now_s)
    if not ready:
        return
    outcome = yield from partition_state_machine.handle_state_changes(
        ctx, ready, PartitionState.ONLINE, ElectionStrategy.LONGEST_LOG
    )
    for tp, state in outcome.elected.items():
        yield Note(f"partition {tp} is led by {state.leader}, which has its longest log")
    yield from reassignment.maybe_complete(ctx, outcome.elected)


def _may_lose_records(ctx: ControllerContext, tps: Iterable[TopicPartition]) -> Steps[frozenset[str]]:
    topics = dict.fromkeys(tp.topic for tp in tps)
    return (yield from partition_state_machine.topics_that_may_lose_records(ctx, topics))
