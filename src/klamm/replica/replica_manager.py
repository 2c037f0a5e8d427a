"""The partitions that this broker hosts. Owner of the Partition objects and of the requests that wait for them.

The work itself is done by functions over the manager: control requests change the set (`state_change`), Produce writes
(`append_path`), Fetch reads (`fetch_path`, `delayed_fetch`), DeleteRecords deletes (`delete_records`). No function here
waits: a request that has to wait is parked in a purgatory under its topic-partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from klamm.clock import Clock, elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.metadata import MetadataCache
from klamm.metrics import BrokerTopicStats, ConversionStats, MetricsRegistry
from klamm.model import TopicPartition
from klamm.purgatory import DelayedOperationPurgatory
from klamm.replica import gauges, isr
from klamm.replica.counters import PartitionCounters
from klamm.replica.damaged_logs import DamagedLogs
from klamm.replica.fetchers import NoFetchers, ReplicaFetchers
from klamm.replica.log_dir_moves import LogDirMoves
from klamm.replica.partition import Partition
from klamm.replica.problems import ReplicaProblems
from klamm.replica.record_checks import RecordChecks
from klamm.replica.replication_quota import ReplicationQuotas
from klamm.replica.transaction_watch import TransactionWatch
from klamm.replica.transactional_producers import TransactionalProducers
from klamm.waiting import after

if TYPE_CHECKING:
    from klamm.replica.replica_selector import ReplicaSelector

log = logging.getLogger(__name__)

T = TypeVar("T")
PARTITIONS_PER_SLICE: Final = 50
"""Partitions that are checked before the loop serves others: about half a millisecond."""
OFFLINE_PER_SLICE: Final = 50
"""The same for partitions of a failed directory: taking one offline takes 25 microseconds."""
Leadership: TypeAlias = Sequence[tuple[TopicPartition, int]]
LeadershipListener: TypeAlias = Callable[[Leadership, Leadership], None]
"""Called with the partitions that this broker leads now, and those it follows or stopped, with leader epochs."""
RoleListener: TypeAlias = Callable[[Leadership, Leadership, int | None], None]
"""The same, with the correlation id of the controller's request; None if there was none."""


class ReplicaManager:
    """`controller_epoch` is the highest of all control requests; requests with a lower one are rejected."""

    def __init__(
        self,
        *,
        broker_id: int,
        logs: LogManager,
        metadata: MetadataCache,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        metrics: MetricsRegistry,
        max_lag_ms: int = 30_000,
        quotas: ReplicationQuotas | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.logs = logs
        logs.passes.segments_deleted_listener = self.on_segments_deleted
        self.metadata = metadata
        self.clock = clock
        self.max_lag_ms = max_lag_ms
        self.fetchers: ReplicaFetchers = NoFetchers()
        self.replica_selector: ReplicaSelector | None = None
        self.quotas = quotas or ReplicationQuotas(clock, metrics)
        self.controller_epoch = 0
        self.partitions: dict[TopicPartition, Partition] = {}
        self._brokers: object = None
        self._last_shrink_ms = elapsed_ms(clock)
        self.offline: dict[TopicPartition, None] = {}
        self._failing: dict[str, object] = {}
        """Directories whose partitions are being taken offline, with the pass that does so."""
        self.lagging: dict[Partition, None] = {}
        """Partitions that may have a lagging in-sync follower or uncommitted records."""
        self._by_topic: dict[str, dict[TopicPartition, Partition]] = {}
        self.counters = PartitionCounters()
        self.topic_stats = BrokerTopicStats(metrics)
        self.metrics = metrics
        self.produce_purgatory = DelayedOperationPurgatory("Produce", loop)
        self.fetch_purgatory = DelayedOperationPurgatory("Fetch", loop)
        self.woken_fetches: dict[Hashable, None] = {}
        """Parked fetches (by their purgatory keys) that must be checked because their partitions changed."""
        self.delete_records_purgatory = DelayedOperationPurgatory("DeleteRecords", loop)
        self.loop = loop
        self._applying: asyncio.Future[Any] | None = None
        """A change of replicas that is applied in slices."""
        self._last_change: asyncio.Future[Any] | None = None
        """The last change that waits for its turn, or for something else, or is being applied."""
        self.leadership_listeners: list[LeadershipListener] = []
        self.role_listeners: list[RoleListener] = []
        self.isr_change_listener: Callable[[Partition, tuple[int, ...]], None] | None = None
        self.isr_meters = gauges.IsrMeters(metrics)
        self.problems = ReplicaProblems(metrics)
        self.damaged_logs = DamagedLogs(broker_id, metadata, self.problems)
        self.fetch_conversions = ConversionStats(metrics, self.topic_stats, "Fetch")
        produce_conversions = ConversionStats(metrics, self.topic_stats, "Produce")
        self.record_checks = RecordChecks(loop, clock, self.partitions, produce_conversions)
        self.transactional_producers = TransactionalProducers(loop)
        self.transaction_watch = TransactionWatch()
        self.log_dir_moves = LogDirMoves(logs, metadata, self.partitions, self.offline, lambda: self.fetchers, loop)
        gauges.register(
            metrics, self.counters, self.partitions, self.offline, self._purgatories, self.transaction_watch
        )

    @property
    def _purgatories(self) -> tuple[DelayedOperationPurgatory, ...]:
        return self.fetch_purgatory, self.produce_purgatory, self.delete_records_purgatory

    # --- lookup ------------------------------------------------------------------------------------------------

    def partition_or_error(self, tp: TopicPartition) -> Partition | ErrorCode:
        """Return the hosted partition, or the error for a client that asked this broker for it."""
        partition = self.partitions.get(tp)
        if partition is not None:
            return partition
        if tp in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.metadata.partition(tp.topic, tp.partition) is not None
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def hosted(self, tp: TopicPartition | None) -> Partition | None:
        return None if tp is None else self.partitions.get(tp)

    def leader_log(self, tp: TopicPartition) -> Log | ErrorCode:
        """Return the log of a partition that this broker leads, or why it does not."""
        partition = self.partition_or_error(tp)
        if isinstance(partition, ErrorCode):
            return partition
        if not partition.is_leader or partition.log is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition.log

    def is_confirmed_leader(self, tp: TopicPartition, within_ms: int) -> bool:
        """Whether this broker leads the partition, and did so for all in-sync replicas within this time."""
        partition = self.partitions.get(tp)
        return (
            partition is not None
            and partition.is_leader
            and isr.is_confirmed(partition.maximal_isr, partition.remotes, elapsed_ms(self.clock), within_ms)
        )

    def await_replication(self, tp: TopicPartition, timeout_ms: int) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Return NONE once all in-sync replicas have all records that are in the log now."""
        hosted = self.leader_log(tp)
        if isinstance(hosted, ErrorCode):
            return hosted
        end_offset = hosted.log_end_offset

        def outcome() -> ErrorCode | None:
            partition = self.partition_or_error(tp)
            if isinstance(partition, ErrorCode) or not partition.is_leader:
                return partition if isinstance(partition, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.NONE if partition.is_replicated(end_offset) else None

        return self.produce_purgatory.try_complete_else_watch(
            (tp, isr.Replication(tp)), timeout_ms, outcome, lambda: ErrorCode.REQUEST_TIMED_OUT
        )

    def host(self, partition: Partition) -> None:
        tp = partition.topic_partition
        if tp in self.partitions:
            return
        self.partitions[tp] = partition
        self._by_topic.setdefault(tp.topic, {})[tp] = partition

    def drop(self, tp: TopicPartition) -> Partition | None:
        """Stop hosting the partition. Its topic's meters go with the topic's last partition."""
        partition = self.partitions.pop(tp, None)
        self.problems.clear(tp)
        if partition is None:
            return None
        self.counters.forget(tp)
        self.lagging.pop(partition, None)
        partition.changed()
        siblings = self._by_topic[tp.topic]
        del siblings[tp]
        if not siblings:
            del self._by_topic[tp.topic]
            self.topic_stats.remove(tp.topic)
        return partition

    # --- control -----------------------------------------------------------------------------------------------

    def check_controller_epoch(self, controller_epoch: int) -> ErrorCode:
        """Reject a deposed controller, else remember the epoch."""
        if controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = controller_epoch
        return ErrorCode.NONE

    def exclusively(
        self,
        change: Callable[[], T | asyncio.Future[T]],
        *,
        wait_for: asyncio.Future[None] | None = None,
        in_order: bool = True,
    ) -> T | asyncio.Future[T]:
        """Run `change` while no other change of the hosted replicas is half applied; at once if none is.

        A change `in_order` also waits for all such changes that were submitted before it, and for `wait_for`: a
        LeaderAndIsr may have to read the configuration of a topic first, and a StopReplica that arrives meanwhile, on
        another connection, must not overtake it. A change that is not in order has to be complete when it returns.
        """
        waits = [self._applying, self._last_change, wait_for] if in_order else [self._applying]
        pending = [future for future in waits if future is not None and not future.done()]
        if not pending:
            result = change()
        else:
            turn: asyncio.Future[Any] = asyncio.gather(*pending, return_exceptions=True)
            result = after(turn, lambda _: change() if in_order else self.exclusively(change, in_order=False))
        if in_order and isinstance(result, asyncio.Future):
            self._last_change = result
        return result

    def apply_in_slices(self, slices: Generator[object], result: T) -> T | asyncio.Future[T]:
        """Run a change of replicas to its end and return `result`, or a future of it if one slice is not enough.

        The loop serves others between the slices. The caller excludes other changes (`exclusively`).
        """
        if next(slices, None) is None:
            return result
        done: asyncio.Future[T] = self.loop.create_future()
        self._applying = done
        self.loop.call_soon(self._next_slice, slices, result, done)
        return done

    def _next_slice(self, slices: Generator[object], result: T, done: asyncio.Future[T]) -> None:
        if done.done():  # the broker stops
            slices.close()
            return
        try:
            is_over = next(slices, None) is None
        except Exception as failure:
            done.set_exception(failure)
            return
        if is_over:
            done.set_result(result)
        else:
            self.loop.call_soon(self._next_slice, slices, result, done)

    def notify_leadership_listeners(
        self, leaders: Iterable[Partition], followers: Iterable[Partition], correlation_id: int | None = None
    ) -> None:
        became_leader = [(partition.topic_partition, partition.leader_epoch) for partition in leaders]
        became_follower = [(partition.topic_partition, partition.leader_epoch) for partition in followers]
        if became_leader or became_follower:
            for listener in self.leadership_listeners:
                listener(became_leader, became_follower)
            for role_listener in self.role_listeners:
                role_listener(became_leader, became_follower, correlation_id)

    def on_metadata_change(self) -> None:
        """Look again for addresses of leaders, and stop waiting for followers that are no longer alive."""
        self.fetchers.on_metadata_change()
        self.damaged_logs.on_metadata_change()
        brokers = self.metadata.snapshot.brokers
        if brokers is self._brokers:  # a snapshot shares them with the one before unless they changed
            return
        self._brokers = brokers
        self._stop_waiting_for_dead(list(self.lagging))
        self.delete_records_purgatory.check_all()

    def _stop_waiting_for_dead(self, partitions: list[Partition]) -> None:
        """Advance high watermarks that a dead broker held back, in slices: after an election all may lag."""
        now_ms = elapsed_ms(self.clock)
        for partition in partitions[-PARTITIONS_PER_SLICE:]:
            if partition.maybe_increment_high_watermark(now_ms):
                self.complete_after_high_watermark(partition.topic_partition)
        del partitions[-PARTITIONS_PER_SLICE:]
        if partitions:
            self.loop.call_soon(self._stop_waiting_for_dead, partitions)

    def topic_config_pass(self, topic: str) -> Iterator[None]:
        """Check counts and waiting requests again, one partition per step: `min.insync.replicas` may have changed."""
        for tp, partition in list(self._by_topic.get(topic, {}).items()):
            if self.partitions.get(tp) is not partition:
                continue
            self.counters.refresh(partition)
            partition.changed()
            self.produce_purgatory.check_and_complete(tp)
            self.complete_woken_fetches()
            yield

    def on_segments_deleted(self, tp: TopicPartition) -> None:
        """Notify the readers of a log whose start retention moved."""
        if (partition := self.partitions.get(tp)) is not None:
            partition.changed()
            self.complete_woken_fetches()

    def log_dir_failure_pass(self, log_dir: str) -> Iterator[None]:
        """Take the partitions of a failed directory offline, in slices; they stay so until the broker restarts.

        Their logs have failed already: until its turn, a partition answers with the same error. If the directory comes
        back meanwhile, the partitions that are left stay online, unless they would not work before a new leader epoch.
        Those are dropped, and the next LeaderAndIsr starts them again.
        """
        count = 0
        current = self._failing[log_dir] = object()
        hosted = list(self.partitions)
        for start in range(0, len(hosted), OFFLINE_PER_SLICE):
            newest = self._failing.get(log_dir)
            if newest not in (current, None):  # it has failed again
                return
            is_back = newest is None
            failed = [tp for tp in hosted[start : start + OFFLINE_PER_SLICE] if self._has_failed(tp, log_dir, is_back)]
            if failed:
                self.take_offline(failed)
                count += len(failed)
            if is_back:
                self._accept(failed)
            yield
        if self._failing.get(log_dir) is current:
            del self._failing[log_dir]
        log.error("log directory %s failed: %d partitions went offline", log_dir, count)

    def take_offline(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop hosting partitions whose directory failed, and notify readers, writers and coordinators."""
        gone = [partition for tp in partitions if (partition := self.drop(tp)) is not None]
        for partition in gone:
            self.offline[partition.topic_partition] = None
        self.fetchers.remove([partition.topic_partition for partition in gone])
        for partition in gone:
            self.complete_after_high_watermark(partition.topic_partition)
        self.notify_leadership_listeners((), gone)

    def _has_failed(self, tp: TopicPartition, log_dir: str, is_back: bool) -> bool:
        """If the directory is back, a partition has failed whose log was loaded again or whose fetcher has stopped."""
        partition = self.partitions.get(tp)
        hosted = None if partition is None else partition.log
        if hosted is None or hosted.log_dir != log_dir:
            return False
        return not is_back or hosted is not self.logs.get_log(tp) or self.fetchers.has_failed(tp)

    def on_log_dir_revival(self, log_dir: str) -> None:
        """Accept the partitions of a failed directory again: it can be used now."""
        self._failing.pop(log_dir, None)
        self._accept(list(self.offline))

    def _accept(self, partitions: Iterable[TopicPartition]) -> None:
        """Accept those of the partitions again whose log can be used."""
        for tp in partitions:
            if not self.logs.is_offline(tp):
                self.offline.pop(tp, None)

    # --- ISR ---------------------------------------------------------------------------------------------------

    def on_isr_change_wanted(self, partition: Partition, isr: tuple[int, ...]) -> None:
        if self.isr_change_listener is not None:
            self.isr_change_listener(partition, isr)

    def isr_pass(self) -> Iterator[bool] | None:
        """The `isr-expiration` task, every half of the lag limit. Returns the slices that are left after the first.

        Its cost follows the number of partitions that lag or were written since: all of them after many elections.
        A broker that was stalled itself cannot judge others, so it first lets them fetch. The times are not
        those of the wall clock: after a correction backwards, a follower that is gone would seem in sync for as long.
        """
        now_ms = elapsed_ms(self.clock)
        late_ms, self._last_shrink_ms = now_ms - self._last_shrink_ms, now_ms
        if late_ms > self.max_lag_ms:
            return None
        slices = self._shrink_in_slices(now_ms)
        return slices if next(slices, False) else None

    def _shrink_in_slices(self, now_ms: int) -> Iterator[bool]:
        for count, partition in enumerate(list(self.lagging), 1):
            if self.partitions.get(partition.topic_partition) is not partition or not partition.has_lagging_follower():
                self.lagging.pop(partition, None)
            elif (wanted := partition.isr_to_shrink_to(now_ms)) is not None:
                self.on_isr_change_wanted(partition, wanted)
            if count % PARTITIONS_PER_SLICE == 0:
                yield True

    # --- what waits --------------------------------------------------------------------------------------------

    def complete_after_append(self, tp: TopicPartition, *, has_high_watermark_moved: bool = True) -> None:
        """Wake readers of new records: followers, and consumers and producers where the high watermark moved.

        Otherwise no producer is checked: behind a slow follower thousands may wait, and each append would check all.
        """
        if self.woken_fetches:
            self.complete_woken_fetches()
        if has_high_watermark_moved and self.produce_purgatory.size:
            self.produce_purgatory.check_and_complete(tp)

    @property
    def has_waiting_requests(self) -> bool:
        """Whether `complete_after_high_watermark` may have something to wake."""
        return bool(self.woken_fetches or self.produce_purgatory.size or self.delete_records_purgatory.size)

    def complete_after_high_watermark(self, tp: TopicPartition) -> None:
        """Wake all requests that wait for the high watermark or for a follower's log start."""
        self.produce_purgatory.check_and_complete(tp)
        self.complete_woken_fetches()
        self.delete_records_purgatory.check_and_complete(tp)

    def complete_woken_fetches(self) -> None:
        """Check the parked fetches whose partitions changed."""
        woken = self.woken_fetches
        while woken:
            delayed = next(iter(woken))
            del woken[delayed]
            self.fetch_purgatory.check_and_complete(delayed)

    def on_flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        """Wake produces that wait for the disk: the log's recovery point moved."""
        if self.produce_purgatory.size:
            self.produce_purgatory.check_and_complete(tp)

    # --- tasks -------------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        """Write `replication-offset-checkpoint` of every live directory."""
        self.logs.checkpoints.write_high_watermarks(self.high_watermarks())

    def high_watermark_pass(self) -> Iterator[None]:
        """Write the same checkpoints slice by slice."""
        return self.logs.checkpoints.high_watermark_pass(self._has_partition)

    def _has_partition(self, log: Log) -> bool:
        partition = self.partitions.get(log.topic_partition)
        return partition is not None and partition.log is log

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {tp: p.log.high_watermark for tp, p in self.partitions.items() if p.log is not None}

    def shutdown(self) -> None:
        """Answer all waiting requests and write the high watermarks to disk."""
        self.log_dir_moves.stop()
        if self._applying is not None:
            self._applying.cancel()
        self.fetchers.remove(list(self.partitions))
        self.transactional_producers.close()
        self.record_checks.shutdown()
        for purgatory in self._purgatories:
            purgatory.shutdown()
        self.checkpoint_high_watermarks()
