"""One partition on this broker: its log, its leader, its in-sync replicas, and how far records are committed.

Owner of leader epoch, ISR, high watermark and the followers' progress. No method waits; errors are values. Reading
lives in `partition_reader`, the pure rules of the ISR in `isr`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from klamm.errors import ErrorCode
from klamm.log.appending import Checkable, append_as_follower, append_as_leader, find_duplicate
from klamm.log.log import Log
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.log.verification_state import TransactionCheck
from klamm.model import NO_EPOCH, NO_LEADER, ZERO_UUID, ConnectionOrder, TopicPartition
from klamm.protocol.record_batch import batches
from klamm.replica import isr as isr_rules
from klamm.replica.remote_replica import RemoteReplica

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from klamm.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState


class PartitionReader(Protocol):
    """A fetch, or a fetch session, that has read all there was of a partition."""

    def on_change(self) -> None:
        """Called once, at the first change. It must not read: the change may be incomplete."""


class Standing(NamedTuple):
    """The contribution of a partition to Kafka's gauges. Only its leader counts it."""

    leader: bool
    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    reassigning: bool


NOT_LEADING: Final = Standing(False, False, False, False, False)


class Partition:
    """Before its first LeaderAndIsr it has leader epoch -1, so that any epoch of a controller is newer.

    The partition adds itself to `lagging` if an in-sync follower may lag. The ISR pass removes it. Every change that a
    reader could see (log end, high watermark, log start, leader, epoch, ISR) is reported to the `readers` by `changed`.
    """

    __slots__ = (
        "_is_alive",
        "_lagging",
        "_max_lag_ms",
        "adding_replicas",
        "broker_id",
        "controller_epoch",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "led_after",
        "log",
        "partition_epoch",
        "pending_isr",
        "readers",
        "remotes",
        "removing_replicas",
        "replicas",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        *,
        max_lag_ms: int,
        is_alive: Callable[[int], bool] = lambda broker_id: True,
        lagging: dict[Partition, None] | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self._max_lag_ms = max_lag_ms
        self._is_alive = is_alive
        self._lagging: dict[Partition, None] = {} if lagging is None else lagging
        self.topic_id: UUID = ZERO_UUID
        self.log: Log | None = None
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.controller_epoch = NO_EPOCH
        self.leader_epoch_start_offset: int | None = None
        self.led_after: ConnectionOrder = 0
        """The youngest connection of this broker when it became the leader in this epoch."""
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.pending_isr: tuple[int, ...] | None = None
        self.remotes: dict[int, RemoteReplica] = {}
        self.readers: dict[PartitionReader, None] = {}
        """Readers that wait for the next change. A reader that is notified has to register again."""

    def changed(self) -> None:
        """Notify the readers. Code that changes the log directly must call it too."""
        if readers := self.readers:
            self.readers = {}
            for reader in readers:
                reader.on_change()

    @property
    def is_leader(self) -> bool:
        return self.leader == self.broker_id and self.log is not None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The ISR including a change in flight: the larger of both sets."""
        if self.pending_isr is None or len(self.pending_isr) <= len(self.isr):
            return self.isr
        return self.pending_isr

    @property
    def standing(self) -> Standing:
        """The contribution to the gauges. Adding replicas are not missing: they have never been in sync."""
        if not self.is_leader:
            return NOT_LEADING
        in_sync, least, adding = len(self.isr), self.effective_min_isr, self.adding_replicas
        is_missing_any = in_sync < len(self.replicas) - len(adding)
        return Standing(True, is_missing_any, in_sync < least, in_sync == least, bool(adding or self.removing_replicas))

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas (as Kafka since 3.7)."""
        return 1 if self.log is None else min(self.log.config.min_insync_replicas, len(self.remotes) + 1)

    # --- transitions -------------------------------------------------------------------------------------------

    def make_leader(self, state: LeaderAndIsrPartitionState, topic_id: UUID, log: Log, now_ms: int) -> bool:
        """Make this broker the leader; returns whether the leader epoch is new. An OSError changes nothing."""
        if state.partition_epoch < self.partition_epoch and state.leader_epoch <= self.leader_epoch:
            return False
        was_leader = self.is_leader
        leads_on = was_leader and state.leader_epoch == self.leader_epoch + 1  # Nobody else led in between.
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if is_new_epoch:
            log.assign_epoch(state.leader_epoch, log.log_end_offset)
        self._assign(state, topic_id, log)
        self.isr = tuple(state.isr)
        if is_new_epoch:
            self.leader_epoch_start_offset = log.log_end_offset
            if not leads_on:
                self.led_after = log.env.host.youngest_connection()
            if self.remotes:
                self._reset_remotes(now_ms, forget_offsets=not was_leader)
        self._lagging[self] = None
        if self.readers:
            self.changed()
        self.maybe_increment_high_watermark(now_ms)
        return is_new_epoch

    def make_follower(self, state: LeaderAndIsrPartitionState, topic_id: UUID, log: Log) -> bool:
        """Make this broker a follower. Return whether fetching must start again, which is the case if the leader epoch
        is new.
        """
        if state.partition_epoch < self.partition_epoch and state.leader_epoch <= self.leader_epoch:
            return False
        is_new_epoch = state.leader_epoch > self.leader_epoch
        self._assign(state, topic_id, log)
        self.isr = ()
        self.leader_epoch_start_offset = None
        self.changed()
        return is_new_epoch

    def _assign(self, state: LeaderAndIsrPartitionState, topic_id: UUID, log: Log) -> None:
        self.log = log
        if topic_id.int:
            self.topic_id = topic_id
        self.controller_epoch = state.controller_epoch
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = replicas = tuple(state.replicas)
        self.adding_replicas = tuple(state.adding_replicas)
        self.removing_replicas = tuple(state.removing_replicas)
        self.pending_isr = None
        if replicas != (self.broker_id,) or self.remotes:
            known = self.remotes
            self.remotes = {r: known.get(r) or RemoteReplica(r) for r in replicas if r != self.broker_id}

    def _reset_remotes(self, now_ms: int, *, forget_offsets: bool) -> None:
        for remote in self.remotes.values():
            caught_up_ms = now_ms if remote.broker_id in self.isr else 0
            if forget_offsets:
                remote.reset(caught_up_ms)
            else:
                remote.last_caught_up_time_ms = caught_up_ms

    # --- leader ------------------------------------------------------------------------------------------------

    def is_late_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, connection: ConnectionOrder
    ) -> bool:
        """Whether a marker on this connection may be one that its coordinator has repeated to an earlier leader.

        The transaction that it belongs to has ended here then, and the next one of an old client has the same epoch.
        """
        log = self.log
        if not 0 < connection <= self.led_after or log is None or not log.is_open:
            return False
        return log.producers.is_next_open(producer_id, producer_epoch, coordinator_epoch)

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare a client's leader epoch (-1: not given) with this broker's."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def append_records_to_leader(
        self,
        records: Checkable,
        required_acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction: TransactionCheck | None = None,
    ) -> AppendResult | ErrorCode:
        """Return the log's result, or an error if this partition cannot append."""
        log = self.log
        if log is None or self.leader != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if required_acks == -1 and self.remotes and len(self.isr) < self.effective_min_isr:
            # A record that is already in the log was not rejected, even if its first response was lost. A client that
            # receives an error may write it again under another producer epoch; a duplicate waits like the original.
            # Batches of coordinators have no sequence of their own, so that none repeats another.
            known = find_duplicate(log, records) if origin is AppendOrigin.CLIENT else None
            return known or ErrorCode.NOT_ENOUGH_REPLICAS
        result = append_as_leader(log, records, self.leader_epoch, origin=origin, transaction=transaction)
        if not self.remotes:
            log.update_high_watermark(log.log_end_offset)
        elif result.error == ErrorCode.NONE:
            self._lagging[self] = None
            self.maybe_increment_high_watermark(now_ms)
        if self.readers:
            self.changed()
        return result

    def check_enough_replicas(self, required_offset: int) -> ErrorCode | None:
        """Return the result of a produce with acks=all up to `required_offset`; None while it must wait."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert self.log is not None
        if self.log.high_watermark < required_offset:
            return None
        if len(self.maximal_isr) < self.effective_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def is_replicated(self, end_offset: int) -> bool:
        """Whether all in-sync replicas have the log up to `end_offset`: no election among them can lose it.

        With fewer members than `min.insync.replicas` the high watermark does not show it.
        """
        assert self.log is not None
        in_sync = (self.remotes[each] for each in self.maximal_isr if each in self.remotes)
        return self.log.high_watermark >= end_offset or all(each.log_end_offset >= end_offset for each in in_sync)

    def maybe_increment_high_watermark(self, now_ms: int) -> bool:
        """Advance the high watermark if enough replicas are in sync; it never goes back while this broker leads."""
        log = self.log
        if log is None or self.leader != self.broker_id or len(self.isr) < self.effective_min_isr:
            return False
        candidate = log.log_end_offset
        if self.remotes:
            candidate = isr_rules.high_watermark_candidate(
                candidate, self.remotes, self.maximal_isr, now_ms, self._max_lag_ms, self._is_alive
            )
        if candidate <= log.high_watermark:
            return False
        log.update_high_watermark(candidate)
        self.changed()
        return True

    def on_follower_fetch(
        self, replica_id: int, fetch_offset: int, log_start_offset: int, now_ms: int, broker_epoch: int
    ) -> bool:
        """Record a follower's progress; returns whether the high watermark moved.

        It is computed even if the follower has not moved: another replica may have left the ISR.
        """
        remote = self.remotes.get(replica_id)
        if remote is None or self.log is None:
            return False
        if fetch_offset < remote.log_end_offset:  # it was truncated, or started again
            self._lagging[self] = None
        remote.on_fetch(fetch_offset, log_start_offset, self.log.log_end_offset, now_ms, broker_epoch)
        return self.log.high_watermark < fetch_offset and self.maybe_increment_high_watermark(now_ms)

    # --- follower ----------------------------------------------------------------------------------------------

    def append_records_to_follower(
        self, records: memoryview | bytes | bytearray, leader_high_watermark: int, leader_log_start_offset: int
    ) -> AppendResult:
        """Apply the leader's response: its records unchanged, its high watermark, its log start."""
        log = self.log
        assert log is not None and self.leader != self.broker_id, "only a follower appends as follower"
        result = append_as_follower(log, records)
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE and log.log_start_offset == log.log_end_offset:
            result = self._append_around_start(log, records)
        if result.error == ErrorCode.NONE:
            log.update_high_watermark(leader_high_watermark)
            log.increment_log_start_offset(min(leader_log_start_offset, log.high_watermark))
        self.changed()
        return result

    def _append_around_start(self, log: Log, records: memoryview | bytes | bytearray) -> AppendResult:
        """Append a whole batch to an empty follower, if the leader's log starts within that batch (DeleteRecords)."""
        start = log.log_start_offset
        first = next(batches(memoryview(records)))
        if not first.base_offset < start <= first.last_offset:
            return AppendResult(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start)
        if error := log.truncate_fully_and_start_at(first.base_offset, start):
            return AppendResult(error, log_start_offset=start)
        return append_as_follower(log, records)

    # --- ISR: decisions and their outcomes -----------------------------------------------------------------------

    def isr_to_expand_to(self, replica_id: int) -> tuple[int, ...] | None:
        """Return the ISR with `replica_id`, if the replica has caught up and no other change is in flight."""
        remote = self.remotes.get(replica_id)
        if remote is None or not self.is_leader or replica_id in self.maximal_isr or self.pending_isr is not None:
            return None
        assert self.log is not None
        if not isr_rules.may_join(remote, self.log.high_watermark, self.leader_epoch_start_offset):
            return None
        return (*self.isr, replica_id)

    def has_lagging_follower(self) -> bool:
        """Whether an in-sync follower lags, so that it may have to be removed later.

        A follower that only holds back the high watermark counts too.
        """
        if not self.is_leader or self.log is None:
            return False
        end = self.log.log_end_offset
        return self.log.high_watermark < end or any(
            r.log_end_offset != end and r.broker_id in self.maximal_isr for r in self.remotes.values()
        )

    def isr_to_shrink_to(self, now_ms: int) -> tuple[int, ...] | None:
        """Return the ISR without members that lag too long, if any and no other change is in flight."""
        if not self.is_leader or self.pending_isr is not None or len(self.isr) < 2:
            return None
        assert self.log is not None
        lost = isr_rules.out_of_sync(self.isr, self.remotes, self.log.log_end_offset, now_ms, self._max_lag_ms)
        return tuple(replica for replica in self.isr if replica not in lost) if lost else None

    def propose_isr(self, isr: tuple[int, ...]) -> None:
        """Note an ISR change in flight: until its decision the larger set counts."""
        self.pending_isr = isr

    def commit_isr(self, isr: Sequence[int], leader_epoch: int, partition_epoch: int, now_ms: int) -> bool:
        """Apply the committed ISR; returns whether it was newer."""
        if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self.pending_isr = None
        self._lagging[self] = None
        self.maybe_increment_high_watermark(now_ms)
        self.changed()
        return True

    def reject_isr(self) -> None:
        """Drop a proposed change that was refused: the last committed ISR counts again."""
        self.pending_isr = None

    # --- log start --------------------------------------------------------------------------------------------------

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset among the replicas of live brokers. DeleteRecords waits for it."""
        assert self.log is not None
        alive = (r.log_start_offset for r in self.remotes.values() if self._is_alive(r.broker_id))
        return min([self.log.log_start_offset, *alive])

    def delete_records(self, offset: int) -> int | ErrorCode:
        """Move the log start to `offset` (-1: the high watermark) and return the resolved offset."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert self.log is not None
        if not self.log.config.is_deleted:
            return ErrorCode.POLICY_VIOLATION
        wanted = self.log.high_watermark if offset == -1 else offset
        if wanted < 0 or wanted > self.log.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if error := self.log.increment_log_start_offset(wanted):
            return error
        self.changed()
        return wanted
