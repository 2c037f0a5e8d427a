"""The partition state machine: NonExistent, New, Online, Offline.

A call moves many partitions to one state: it decides, writes in fenced transactions, then changes the cache, then sends
one batch. Illegal transitions are logged and skipped; a partition that could not be moved keeps its state and is
returned with an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from klamm.controller import store
from klamm.controller.context import ControllerContext
from klamm.controller.effects import Note, Steps, report_leadership
from klamm.controller.election import (
    INITIAL,
    Election,
    ElectionStrategy,
    elect_for_controlled_shutdown,
    elect_for_reassignment,
    elect_longest_log,
    elect_offline,
    elect_preferred,
    initial_leader_and_isr,
)
from klamm.controller.request_batch import ControllerBrokerRequestBatch, LeaderAndIsrUpdate
from klamm.controller.states import VALID_PREVIOUS_PARTITION_STATES, PartitionState
from klamm.errors import ErrorCode
from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition

KnownElections: TypeAlias = dict[
    tuple[int, int, tuple[int, ...], frozenset[int], bool], tuple[Election | None, ReplicaAssignment, LeaderAndIsr]
]
"""Elections by the identities of assignment and state, the online replicas, the suspects, and `allow_unclean`.

Partitions with equal states share one value (`store.read_states`), so that after a restart one election decides for
thousands. The entries keep assignment and state alive, so that their identities stay theirs.
"""


@dataclass(slots=True)
class Outcome:
    """The result per partition: its new state, or the error."""

    elected: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    failed: dict[TopicPartition, ErrorCode] = field(default_factory=dict)


def startup(
    ctx: ControllerContext, returned: frozenset[TopicPartition] = frozenset()
) -> Steps[frozenset[TopicPartition]]:
    """After failover: set the states from ZooKeeper, then try to elect where there is no online leader.

    Leaders of `returned` partitions restarted unnoticed: they count as gone, and may be elected again. A leader that is
    no longer assigned counts as gone as well, if another replica can lead.

    Nothing is sent: the caller sends everything to every broker. Returns the partitions that got their first state.
    """
    leadership = ctx.states.leadership
    for tp, assignment in ctx.topics.all_assignments():
        known = leadership.get(tp)
        if known is None:
            ctx.states.put_partition_state(tp, PartitionState.NEW)
            continue
        state = known.leader_and_isr
        online = (
            tp not in returned
            and (state.leader in assignment.replicas or ctx.is_last_leader(tp, state))
            and ctx.has_online_leader(tp)
        )
        ctx.states.put_partition_state(tp, PartitionState.ONLINE if online else PartitionState.OFFLINE)
    updates = yield from _bring_online(ctx, _to_bring_online(ctx), ElectionStrategy.OFFLINE, Outcome())
    return frozenset(update.partition for update in updates if update.is_new)


def elect_missing_leaders(ctx: ControllerContext, outcome: Outcome) -> Steps[list[LeaderAndIsrUpdate]]:
    """Elect as `trigger_online` does, but send nothing: the caller sends the result with its own changes."""
    return (yield from _bring_online(ctx, _to_bring_online(ctx), ElectionStrategy.OFFLINE, outcome))


def _to_bring_online(ctx: ControllerContext, topic: str | None = None) -> list[TopicPartition]:
    return [tp for tp in ctx.states.not_online if topic in (None, tp.topic) and not ctx.deletions.is_queued(tp.topic)]


def trigger_online(ctx: ControllerContext, topic: str | None = None) -> Steps[Outcome]:
    """Try to bring every offline or new partition online, except for topics queued for deletion."""
    tps = _to_bring_online(ctx, topic)
    return (yield from handle_state_changes(ctx, tps, PartitionState.ONLINE, ElectionStrategy.OFFLINE))


def handle_state_changes(
    ctx: ControllerContext,
    tps: Iterable[TopicPartition],
    target: PartitionState,
    strategy: ElectionStrategy = ElectionStrategy.OFFLINE,
) -> Steps[Outcome]:
    legal, outcome = [], Outcome()
    for tp in tps:
        state = ctx.states.partition_state(tp)
        if state in VALID_PREVIOUS_PARTITION_STATES[target]:
            legal.append(tp)
        else:
            outcome.failed[tp] = ErrorCode.UNKNOWN_SERVER_ERROR
            yield Note(f"partition {tp} cannot go from {state.name} to {target.name}")
    if target is not PartitionState.ONLINE:
        for tp in legal:
            ctx.states.put_partition_state(tp, target)
        return outcome
    if legal:
        updates = yield from _bring_online(ctx, legal, strategy, outcome)
        if updates:
            yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()
    return outcome


def _bring_online(
    ctx: ControllerContext, tps: list[TopicPartition], strategy: ElectionStrategy, outcome: Outcome
) -> Steps[list[LeaderAndIsrUpdate]]:
    """Decide and write; return the requests, which the caller sends."""
    new: list[TopicPartition] = []
    old: list[TopicPartition] = []
    states = ctx.states.partitions
    for tp in tps:
        (new if states.get(tp) is PartitionState.NEW else old).append(tp)
    updates = yield from _initialise(ctx, new, outcome)
    updates += yield from _elect(ctx, old, strategy, outcome)
    return updates


def _initialise(ctx: ControllerContext, tps: list[TopicPartition], outcome: Outcome) -> Steps[list[LeaderAndIsrUpdate]]:
    """Give new partitions their first leader and ISR from the online replicas."""
    wanted = {}
    for tp in tps:
        first = initial_leader_and_isr(ctx.topics.assignment(tp).replicas, ctx.online_replicas(tp))
        if first is None:
            outcome.failed[tp] = ErrorCode.LEADER_NOT_AVAILABLE
            yield Note(f"partition {tp} stays NEW: none of its replicas {ctx.topics.assignment(tp).replicas} is online")
        else:
            wanted[tp] = first
    created = yield from store.create_states(ctx, wanted)
    outcome.failed.update({tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for tp in wanted if tp not in created})
    updates, changes = [], []
    for tp, state in created.items():
        changes.append(ctx.states.put_leadership(tp, state, INITIAL))
        ctx.states.put_partition_state(
            tp, PartitionState.ONLINE if ctx.has_online_leader(tp) else PartitionState.OFFLINE
        )
        outcome.elected[tp] = state.leader_and_isr
        updates.append(LeaderAndIsrUpdate(state.leader_and_isr.isr, tp, is_new=True))
    yield from report_leadership(changes)
    return updates


def _elect(
    ctx: ControllerContext, tps: list[TopicPartition], strategy: ElectionStrategy, outcome: Outcome
) -> Steps[list[LeaderAndIsrUpdate]]:
    unclean = yield from _unclean_topics(ctx, tps, strategy)
    elections: dict[TopicPartition, Election] = {}
    known: KnownElections = {}

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        election = run_strategy(ctx, tp, state, strategy, allow_unclean=tp.topic in unclean, known=known)
        if election is None:
            elections.pop(tp, None)
            return None
        elections[tp] = election
        return election.leader_and_isr

    updated = yield from store.update_states(ctx, tps, decide)
    if stale := (yield from _refresh(ctx, updated.unchanged)):
        unclean = yield from _unclean_topics(ctx, stale, strategy)
        again = yield from store.update_states(ctx, [tp for tp in stale if tp.topic in unclean], decide)
        updated.changed |= again.changed
    updates, changes = [], []
    states, suspects, name = ctx.states, ctx.suspects, strategy.value
    for tp in tps:
        state = updated.changed.get(tp)
        if state is None:
            missing = tp in updated.missing
            outcome.failed[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else ErrorCode.LEADER_NOT_AVAILABLE
            continue
        suspects.on_state(tp, states.leadership[tp].leader_and_isr, state.leader_and_isr)
        changes.append(states.put_leadership(tp, state, name))
        states.put_partition_state(tp, PartitionState.ONLINE)
        suspects.forget(tp)
        election = elections[tp]
        if election.unclean:
            ctx.count_unclean_election()
        outcome.elected[tp] = state.leader_and_isr
        updates.append(LeaderAndIsrUpdate(election.recipients, tp))
    yield from report_leadership(changes)
    return updates


def _refresh(
    ctx: ControllerContext, found: dict[TopicPartition, LeaderIsrAndControllerEpoch]
) -> Steps[list[TopicPartition]]:
    """Cache states as they were found and return those with a new ISR: with older protocols leaders write it
    themselves."""
    stale = [
        tp for tp, state in found.items() if ctx.states.leadership[tp].leader_and_isr.isr != state.leader_and_isr.isr
    ]
    yield from report_leadership([ctx.states.put_leadership(tp, found[tp]) for tp in stale])
    return stale


def run_strategy(
    ctx: ControllerContext,
    tp: TopicPartition,
    state: LeaderAndIsr,
    strategy: ElectionStrategy,
    *,
    allow_unclean: bool,
    known: KnownElections | None = None,
) -> Election | None:
    """Decide for one partition. `known` has the offline elections of the same event, for partitions that are alike."""
    assignment = ctx.topics.assignment(tp)
    online = ctx.brokers.online(assignment.replicas, tp)
    suspects = ctx.suspects.of(tp)
    if suspects and len(online) == 1 and state.isr == online and tp not in ctx.suspects.left:
        suspects = frozenset()  # the last in-sync replica: there is no other to compare it with
    able = [r for r in online if r not in suspects] if suspects else online
    recovery = allow_unclean and ctx.config.inter_broker_protocol.has_leader_recovery_state
    match strategy:
        case ElectionStrategy.OFFLINE:
            key = id(assignment), id(state), online, suspects, allow_unclean
            if known is not None and (found_before := known.get(key)) is not None:
                return found_before[0]
            election = elect_offline(
                assignment, state, online, allow_unclean=allow_unclean, mark_recovering=recovery, suspects=suspects
            )
            if known is not None:
                known[key] = election, assignment, state
            return election
        case ElectionStrategy.LONGEST_LOG | ElectionStrategy.OFFLINE_UNCLEAN:
            if suspects and not any(r in able for r in state.isr):
                hold = ctx.suspects.held.get(tp)
                ends = {} if hold is None else hold.log_ends
                found = elect_longest_log(assignment, state, online, ends)
                if found is not None or strategy is ElectionStrategy.LONGEST_LOG:
                    return found
            return elect_offline(assignment, state, online, allow_unclean=allow_unclean, mark_recovering=recovery)
        case ElectionStrategy.REASSIGN:
            return elect_for_reassignment(assignment, state, able)
        case ElectionStrategy.PREFERRED:
            return elect_preferred(assignment, state, able)
        case ElectionStrategy.CONTROLLED_SHUTDOWN:
            everyone = ctx.online_replicas(tp, include_shutting_down=True)
            return elect_for_controlled_shutdown(assignment, state, everyone, ctx.brokers.shutting_down | suspects)


def _unclean_topics(
    ctx: ControllerContext, tps: list[TopicPartition], strategy: ElectionStrategy
) -> Steps[frozenset[str]]:
    """Return topics with unclean election enabled. Configurations are read only if needed.

    A topic with an unreadable configuration is excluded: it is unknown whether its data may be lost.
    """
    if strategy is ElectionStrategy.OFFLINE_UNCLEAN:
        return frozenset(tp.topic for tp in tps)
    if strategy is not ElectionStrategy.OFFLINE:
        return frozenset()
    lost = dict.fromkeys(tp.topic for tp in tps if not _has_online_isr(ctx, tp))
    return (yield from topics_that_may_lose_records(ctx, lost))


def topics_that_may_lose_records(ctx: ControllerContext, topics: Iterable[str]) -> Steps[frozenset[str]]:
    """Return the `topics` with `unclean.leader.election.enable`."""
    configs = yield from store.read_topic_configs(topics)
    default = "true" if ctx.config.unclean_leader_election_enable else "false"
    key = "unclean.leader.election.enable"
    return frozenset(topic for topic, config in configs.items() if config.get(key, default).lower() == "true")


def _has_online_isr(ctx: ControllerContext, tp: TopicPartition) -> bool:
    cached = ctx.states.leadership.get(tp)
    if cached is not None:
        for replica in cached.leader_and_isr.isr:
            if ctx.brokers.is_replica_online(replica, tp):
                return True
    return False
