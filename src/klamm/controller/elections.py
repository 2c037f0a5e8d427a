"""Elections without a dead leader: preferred leaders, on request or by the balance check, and unclean ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from klamm.controller import partition_state_machine, reassignment
from klamm.controller.context import ControllerContext
from klamm.controller.effects import Enqueue, Note, Pause, Reply, Schedule, Steps
from klamm.controller.election import ElectionStrategy
from klamm.controller.events import (
    AutoPreferredReplicaLeaderElection,
    ElectionTrigger,
    ElectionType,
    ReplicaLeaderElection,
)
from klamm.controller.replies import PartitionResult, PartitionResults
from klamm.controller.request_batch import PARTITIONS_PER_STEP
from klamm.controller.states import PartitionState
from klamm.controller.store import delete_all, read, read_data
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import Exists, ExistsResult
from klamm.zk.model.znodes import ZnodeFormatError, decode_partitions

FIRST_BALANCE_CHECK_MS = 5_000

_UNAVAILABLE = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}

_STRATEGIES = {
    ElectionType.PREFERRED: "strategy PreferredReplicaPartitionLeaderElectionStrategy",
    ElectionType.UNCLEAN: "strategy OfflinePartitionLeaderElectionStrategy(true)",
}
_TEXTS = {
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic is being deleted",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The partition does not exist.",
}


def on_replica_leader_election(ctx: ControllerContext, event: ReplicaLeaderElection) -> Steps[None]:
    asked_by_client = event.trigger is ElectionTrigger.ADMIN_CLIENT
    if asked_by_client:
        wanted: Iterable[TopicPartition] = ctx.states.leadership if event.partitions is None else event.partitions
    else:
        listed = yield from _read_election_znode()
        if listed is None:
            return
        wanted = listed
    results = yield from elect(ctx, list(wanted), event.election_type, event.trigger)
    if event.partitions is None:
        results = {tp: error for tp, error in results.items() if error is not ErrorCode.ELECTION_NOT_NEEDED}
    yield Reply(PartitionResults(tuple(_result(tp, error, event.election_type) for tp, error in results.items())))


def _result(tp: TopicPartition, error: ErrorCode, election_type: ElectionType) -> PartitionResult:
    """With Kafka's text for each error."""
    if error in _UNAVAILABLE.values():
        return PartitionResult(
            tp, error, f"Failed to elect leader for partition {tp} under {_STRATEGIES[election_type]}"
        )
    return PartitionResult(tp, error, _TEXTS.get(error))


def _read_election_znode() -> Steps[list[TopicPartition] | None]:
    """Read the partitions that tools wrote to `/admin/preferred_replica_election`, and watch for the next ones."""
    (there,) = yield from read([Exists(paths.PREFERRED_REPLICA_ELECTION, watch=True)])
    if not isinstance(there, ExistsResult) or there.stat is None:
        return None
    (result,) = yield from read_data([paths.PREFERRED_REPLICA_ELECTION])
    if result is None:
        return None
    try:
        return list(decode_partitions(paths.PREFERRED_REPLICA_ELECTION, result.data))
    except ZnodeFormatError as error:
        yield Note(str(error), True)
        return []


def elect(
    ctx: ControllerContext, wanted: list[TopicPartition], election_type: ElectionType, trigger: ElectionTrigger
) -> Steps[dict[TopicPartition, ErrorCode]]:
    """Elect where it is needed and possible; one error per partition, NONE where there is a new leader."""
    results = {tp: _precheck(ctx, tp, election_type) for tp in wanted}
    candidates = [tp for tp, error in results.items() if error is ErrorCode.NONE]
    if election_type is ElectionType.PREFERRED:
        strategy = ElectionStrategy.PREFERRED
    elif trigger is ElectionTrigger.ADMIN_CLIENT:
        strategy = ElectionStrategy.OFFLINE_UNCLEAN
    else:
        strategy = ElectionStrategy.OFFLINE
    outcome = yield from partition_state_machine.handle_state_changes(ctx, candidates, PartitionState.ONLINE, strategy)
    yield from reassignment.maybe_complete(ctx, outcome.elected)
    for tp, error in outcome.failed.items():
        results[tp] = _UNAVAILABLE[election_type] if error is ErrorCode.LEADER_NOT_AVAILABLE else error
    if trigger is ElectionTrigger.ZK:
        refused = yield from delete_all(ctx, [paths.PREFERRED_REPLICA_ELECTION])
        if not refused:  # a new request may have been written before this one was deleted
            yield Enqueue(ReplicaLeaderElection(None, ElectionType.PREFERRED, ElectionTrigger.ZK))
    return results


def _precheck(ctx: ControllerContext, tp: TopicPartition, election_type: ElectionType) -> ErrorCode:
    if not ctx.topics.has_assignment(tp):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if ctx.deletions.is_queued(tp.topic):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    state = ctx.states.leadership.get(tp)
    if state is None:
        return ErrorCode.NONE
    leader = state.leader_and_isr.leader
    if election_type is ElectionType.PREFERRED:
        fine = leader == ctx.topics.assignment(tp).replicas[0]
    else:
        fine = leader in ctx.brokers.live_ids
    return ErrorCode.ELECTION_NOT_NEEDED if fine else ErrorCode.NONE


def on_auto_preferred_election(ctx: ControllerContext) -> Steps[None]:
    """Return preferred leadership to brokers that miss more than the allowed share of it."""
    yield Schedule(ctx.config.leader_imbalance_check_interval_seconds * 1000, AutoPreferredReplicaLeaderElection())
    if ctx.states.preferred_replica_imbalance_count:
        for tps in (yield from _imbalanced(ctx)):
            yield from elect(ctx, tps, ElectionType.PREFERRED, ElectionTrigger.AUTO)


def _imbalanced(ctx: ControllerContext) -> Steps[list[list[TopicPartition]]]:
    """For each broker over the threshold, the partitions that it can lead again now."""
    preferred: Counter[int] = Counter()
    led_elsewhere: dict[int, list[TopicPartition]] = {}
    for number, (tp, state) in enumerate(ctx.states.leadership.items(), 1):
        replicas = ctx.topics.assignment(tp).replicas
        if replicas and not ctx.deletions.is_queued(tp.topic):
            preferred[replicas[0]] += 1
            if state.leader_and_isr.leader != replicas[0]:
                led_elsewhere.setdefault(replicas[0], []).append(tp)
        if number % PARTITIONS_PER_STEP == 0:
            yield Pause()
    groups = []
    for broker, elsewhere in sorted(led_elsewhere.items()):
        if len(elsewhere) / preferred[broker] <= ctx.config.leader_imbalance_per_broker_percentage / 100:
            continue
        ready = [
            tp
            for tp in elsewhere
            if ctx.brokers.is_replica_online(broker, tp) and broker in ctx.states.leadership[tp].leader_and_isr.isr
        ]
        if ready:
            groups.append(ready)
    return groups


def on_unclean_allowed(ctx: ControllerContext, topic: str | None = None) -> Steps[None]:
    """Elect for partitions that wait for a lost leader: of one topic or, by the brokers' default, of all."""
    outcome = yield from partition_state_machine.trigger_online(ctx, topic)
    yield from reassignment.maybe_complete(ctx, outcome.elected)


def on_failover(ctx: ControllerContext) -> Steps[None]:
    """Resume a tool's preferred election that the last controller did not finish."""
    listed = yield from _read_election_znode()
    if listed is None:
        return
    pending = [tp for tp in listed if _precheck(ctx, tp, ElectionType.PREFERRED) is ErrorCode.NONE]
    yield from elect(ctx, pending, ElectionType.PREFERRED, ElectionTrigger.ZK)
