"""LeaderAndIsr and StopReplica: changes of the hosted partitions.

Epochs decide: a request of an older leader epoch changes nothing, and a partition adopts the new epoch only after its
transition has succeeded. Each partition has its own error code; a failure does not affect the others. A request of
thousands of partitions is applied in slices, between which the loop serves clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode, LogDirError
from klamm.log.log import Log
from klamm.model import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    ZERO_UUID,
    TopicPartition,
    encode_topic_id,
    make_topic_partition,
)
from klamm.replica.partition import Partition
from klamm.replica.problems import Problem
from klamm.replica.replica_manager import ReplicaManager
from klamm.replica.topic_names import is_valid_topic_name

if TYPE_CHECKING:
    from klamm.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState

log = logging.getLogger("klamm.state_change")


SLICE_S: Final = 0.00025
"""After this time a LeaderAndIsr or StopReplica gives the loop back. The partition at hand takes a little more.

Half of the time that a turn gives to sliced requests, because both can be in the same turn.
"""
STOPS: Final = 2
"""Replicas that are stopped without looking at the clock: about a fifth of a millisecond."""


class TopicPartitionStates(NamedTuple):
    """One topic of a LeaderAndIsr request; a zero id means none.

    Code that runs for every partition tests `topic_id.int`: a comparison with ZERO_UUID takes several times as long.
    """

    topic: str
    topic_id: UUID
    states: Sequence[LeaderAndIsrPartitionState]


class StopReplica(NamedTuple):
    topic_partition: TopicPartition
    leader_epoch: int = NO_EPOCH
    delete: bool = False


@dataclass(slots=True)
class StateChangeResult:
    """`error` is for the whole request; then `partitions` is empty."""

    error: ErrorCode = ErrorCode.NONE
    partitions: dict[TopicPartition, ErrorCode] = field(default_factory=dict)


# --- LeaderAndIsr --------------------------------------------------------------------------------------------


def become_leader_or_follower(
    replicas: ReplicaManager,
    controller_epoch: int,
    topics: Iterable[TopicPartitionStates],
    correlation_id: int | None = None,
) -> StateChangeResult | asyncio.Future[StateChangeResult]:
    """Make this broker leader or follower of each partition, as the controller decided.

    `correlation_id` is that of the request, for the log and the control log. Work that takes longer than a slice
    continues later; the caller excludes other changes of replicas meanwhile.
    """
    if error := replicas.check_controller_epoch(controller_epoch):
        return StateChangeResult(error)
    result = StateChangeResult()
    steps = _in_slices(replicas, controller_epoch, topics, result, correlation_id)
    return replicas.apply_in_slices(steps, result)


def _in_slices(
    replicas: ReplicaManager,
    controller_epoch: int,
    topics: Iterable[TopicPartitionStates],
    result: StateChangeResult,
    correlation_id: int | None,
) -> Generator[int]:
    """Yield between slices. Each is complete: its fetchers are restarted and its listeners notified."""
    clock = replicas.clock
    leader_count = follower_count = 0
    leaders: list[Partition] = []
    followers: list[Partition] = []
    until = clock.monotonic() + SLICE_S
    for topic, topic_id, states in topics:
        for state in states:
            if result.partitions and clock.monotonic() > until:
                leader_count, follower_count = leader_count + len(leaders), follower_count + len(followers)
                _complete(replicas, leaders, followers, correlation_id)
                leaders, followers = [], []
                yield len(result.partitions)
                until = clock.monotonic() + SLICE_S
            tp = make_topic_partition((topic, state.partition_index))
            result.partitions[tp] = _change_or_refuse(replicas, tp, topic_id, state, leaders, followers)
    _complete(replicas, leaders, followers, correlation_id)
    log.info(
        "LeaderAndIsr of controller epoch %d: %d leaders, %d followers, %d rejected (correlation id %s)",
        controller_epoch,
        leader_count + len(leaders),
        follower_count + len(followers),
        sum(code != ErrorCode.NONE for code in result.partitions.values()),
        correlation_id,
    )


def _complete(
    replicas: ReplicaManager, leaders: list[Partition], followers: list[Partition], correlation_id: int | None
) -> None:
    _restart_fetchers(replicas, leaders, followers)
    replicas.notify_leadership_listeners(leaders, followers, correlation_id)
    if replicas.logs.futures.logs:
        replicas.log_dir_moves.resume((*leaders, *followers))


def _change_or_refuse(
    replicas: ReplicaManager,
    tp: TopicPartition,
    topic_id: UUID,
    state: LeaderAndIsrPartitionState,
    leaders: list[Partition],
    followers: list[Partition],
) -> ErrorCode:
    """Limit an unexpected failure to its partition, so that the controller continues: a repetition would fail too."""
    try:
        return _change(replicas, tp, topic_id, state, leaders, followers)
    except Exception:
        log.exception("%s: changing to leader epoch %d failed", tp, state.leader_epoch)
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _change(
    replicas: ReplicaManager,
    tp: TopicPartition,
    topic_id: UUID,
    state: LeaderAndIsrPartitionState,
    leaders: list[Partition],
    followers: list[Partition],
) -> ErrorCode:
    if tp in replicas.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    partition = replicas.partitions.get(tp)
    is_first = partition is None
    if partition is None:
        if tp.partition < 0 or not is_valid_topic_name(tp.topic):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        partition = Partition(
            tp,
            replicas.broker_id,
            max_lag_ms=replicas.max_lag_ms,
            is_alive=replicas.metadata.has_alive_broker,
            lagging=replicas.lagging,
        )
    if error := _check(replicas, partition, topic_id, state):
        return error
    if state.leader_epoch == partition.leader_epoch:
        return _same_epoch(replicas, partition, topic_id)
    hosted = _log_for(replicas, tp, topic_id, is_new=state.is_new, is_first=is_first)
    if isinstance(hosted, ErrorCode):
        return hosted
    if (hosted.damages or hosted.lost_tail) and (error := replicas.damaged_logs.accept(tp, state, hosted)):
        return error
    if is_first or tp in replicas.damaged_logs.unled:
        replicas.damaged_logs.check_tail(tp, state, hosted, replicas.logs.checkpoints.high_watermark(tp))
    if state.leader != replicas.broker_id:
        if partition.make_follower(state, topic_id, hosted):
            followers.append(partition)
    elif (is_new := _lead(replicas, partition, state, topic_id, hosted)) is None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    elif is_new:
        leaders.append(partition)
    if is_first:
        replicas.host(partition)
    replicas.counters.refresh(partition)
    return ErrorCode.NONE


def _lead(
    replicas: ReplicaManager, partition: Partition, state: LeaderAndIsrPartitionState, topic_id: UUID, hosted: Log
) -> bool | None:
    """Make this broker the leader. Return whether the leader epoch is new; None if the disk failed."""
    try:
        return partition.make_leader(state, topic_id, hosted, elapsed_ms(replicas.clock))
    except OSError as failure:
        hosted.env.host.failed(hosted.log_dir, failure, f"noting a leader epoch in {hosted.dir}")
        replicas.offline[partition.topic_partition] = None
        return None


def _check(
    replicas: ReplicaManager, partition: Partition, topic_id: UUID, state: LeaderAndIsrPartitionState
) -> ErrorCode:
    local_id = partition.topic_id
    if local_id.int and topic_id.int and topic_id != local_id:
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if state.leader_epoch < partition.leader_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    if replicas.broker_id not in state.replicas:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _same_epoch(replicas: ReplicaManager, partition: Partition, topic_id: UUID) -> ErrorCode:
    """Assign a topic id that the log lacks; otherwise there is nothing new."""
    if topic_id != ZERO_UUID and partition.topic_id == ZERO_UUID and partition.log is not None:
        if (error := partition.log.assign_topic_id(topic_id)) == ErrorCode.NONE:
            partition.topic_id = topic_id
            partition.changed()
        return error
    return ErrorCode.STALE_CONTROLLER_EPOCH


def _log_for(
    replicas: ReplicaManager, tp: TopicPartition, topic_id: UUID, *, is_new: bool, is_first: bool
) -> Log | ErrorCode:
    """Return the log. `is_first`: the partition is not hosted yet, so its high watermark is that of the last run."""
    try:
        hosted = replicas.logs.get_or_create_log(tp, is_new=is_new)
    except LogDirError as failure:
        log.error("%s: opening or creating its log failed: %s", tp, failure)
        replicas.take_offline((tp,))
        replicas.offline[tp] = None
        return ErrorCode.KAFKA_STORAGE_ERROR
    if topic_id.int and (error := hosted.assign_topic_id(topic_id)):
        _report(replicas, tp, topic_id, hosted, error)
        return error
    if is_first:
        hosted.update_high_watermark(replicas.logs.checkpoints.high_watermark(tp))
    return hosted


def _report(replicas: ReplicaManager, tp: TopicPartition, topic_id: UUID, hosted: Log, error: ErrorCode) -> None:
    """Report a directory of another topic with that name: restored, copied or left over."""
    if error != ErrorCode.INCONSISTENT_TOPIC_ID or not replicas.problems.put(tp, Problem.TOPIC_ID):
        return
    log.error(
        "%s: %s/partition.metadata has topic id %s, but the topic's id is %s. If the directory is of a deleted "
        "topic, stop broker %d, move the directory away and start the broker: it copies the replica again",
        tp,
        hosted.dir,
        encode_topic_id(hosted.topic_id or ZERO_UUID),
        encode_topic_id(topic_id),
        replicas.broker_id,
    )


def _restart_fetchers(replicas: ReplicaManager, leaders: list[Partition], followers: list[Partition]) -> None:
    changed = [partition.topic_partition for partition in (*leaders, *followers)]
    replicas.fetchers.remove(changed)
    if replicas.has_waiting_requests:
        for tp in changed:
            replicas.complete_after_high_watermark(tp)
    replicas.fetchers.add(followers)


# --- StopReplica ---------------------------------------------------------------------------------------------


def stop_replicas(
    replicas: ReplicaManager, controller_epoch: int, stops: Iterable[StopReplica], correlation_id: int | None = None
) -> StateChangeResult | asyncio.Future[StateChangeResult]:
    """Stop following; with `delete`, delete the partition and its log. Long requests continue later, as above."""
    if error := replicas.check_controller_epoch(controller_epoch):
        return StateChangeResult(error)
    result = StateChangeResult()
    return replicas.apply_in_slices(_stop_in_slices(replicas, stops, result, correlation_id), result)


def delete_strays(replicas: ReplicaManager, partitions: Iterable[TopicPartition]) -> None:
    """Delete at once: the caller's checks still hold."""
    stops = [StopReplica(tp, delete=True) for tp in partitions]
    for _ in _stop_in_slices(replicas, stops, StateChangeResult()):
        pass


def _stop_in_slices(
    replicas: ReplicaManager,
    stops: Iterable[StopReplica],
    result: StateChangeResult,
    correlation_id: int | None = None,
) -> Generator[int]:
    clock, logs = replicas.clock, replicas.logs
    until = clock.monotonic() + SLICE_S
    some: list[StopReplica] = []
    has_deleted = False
    for stop in stops:
        code = result.partitions[stop.topic_partition] = _check_stop(replicas, stop)
        if code == ErrorCode.NONE:
            some.append(stop)
        if len(some) >= STOPS:
            has_deleted |= _stop(replicas, some, result, correlation_id)
            some = []
            if clock.monotonic() > until:
                yield len(result.partitions)
                until = clock.monotonic() + SLICE_S
    if _stop(replicas, some, result, correlation_id) or has_deleted:
        for _ in logs.checkpoints.deletion_pass():
            if len(result.partitions) > STOPS:
                yield len(result.partitions)


def _stop(
    replicas: ReplicaManager, stops: list[StopReplica], result: StateChangeResult, correlation_id: int | None
) -> bool:
    """Stop the replicas. Return whether logs were deleted."""
    replicas.fetchers.remove([stop.topic_partition for stop in stops])
    deleted = [stop.topic_partition for stop in stops if stop.delete]
    dropped = [replicas.drop(tp) for tp in deleted]
    result.partitions |= {tp: replicas.logs.delete_unrecorded(tp) for tp in deleted}
    for stop in stops:
        replicas.complete_after_high_watermark(stop.topic_partition)
    gone = [partition for partition in dropped if partition is not None]
    replicas.notify_leadership_listeners((), gone, correlation_id)
    return bool(deleted)


def _check_stop(replicas: ReplicaManager, stop: StopReplica) -> ErrorCode:
    if stop.topic_partition in replicas.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    partition = replicas.partitions.get(stop.topic_partition)
    if partition is None or stop.leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH):
        return ErrorCode.NONE
    is_older = stop.leader_epoch < partition.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.NONE
