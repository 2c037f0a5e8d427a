"""The partitions this broker hosts. Owner of the Partition objects and of what waits for them.

Control requests change the set (`state_change`), Produce writes (`append_path`), Fetch reads (`fetch_path`).
Nothing here waits: what must wait is parked in a purgatory under its topic-partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from klamm.clock import Clock
from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.log.producer_state import AppendOrigin
from klamm.metadata import MetadataCache
from klamm.metrics import BrokerTopicStats, MetricsRegistry
from klamm.model import TopicPartition
from klamm.purgatory import DelayedOperationPurgatory
from klamm.replica import gauges
from klamm.replica.append_path import AppendPath
from klamm.replica.counters import PartitionCounters
from klamm.replica.damaged_logs import DamagedLogs
from klamm.replica.delete_records import DeleteRecordsPath
from klamm.replica.fetch_path import FetchPath
from klamm.replica.log_dir_moves import LogDirMoves
from klamm.replica.partition import Partition
from klamm.replica.problems import ReplicaProblems
from klamm.replica.replication_quota import ReplicationQuotas
from klamm.replica.state_change import StateChange, StateChangeResult, StopReplica, TopicPartitionStates

if TYPE_CHECKING:
    from klamm.replica.delete_records import DeletedRecords
    from klamm.replica.record_checks import AppendResults, RecordsBytes
    from klamm.replica.replica_selector import ReplicaSelector

log = logging.getLogger(__name__)

T = TypeVar("T")
PARTITIONS_PER_SLICE: Final = 200
"""Partitions that are looked at before the loop serves others: well below a millisecond."""
OFFLINE_PER_SLICE: Final = 50
"""The same for partitions of a failed directory: to take one offline takes 25 microseconds."""
Leadership: TypeAlias = Sequence[tuple[TopicPartition, int]]
LeadershipListener: TypeAlias = Callable[[Leadership, Leadership], None]
"""Called with (became leader, became follower or stopped), each as (partition, leader epoch)."""


class ReplicaFetchers(Protocol):
    """Those who copy from other brokers' leaders. A cluster of one has none."""

    def remove(self, partitions: Collection[TopicPartition]) -> None: ...

    def add(self, partitions: Iterable[Partition]) -> None: ...

    def on_metadata_change(self) -> None: ...


class NoFetchers:
    def remove(self, partitions: Collection[TopicPartition]) -> None: ...

    def add(self, partitions: Iterable[Partition]) -> None: ...

    def on_metadata_change(self) -> None: ...


class ReplicaManager:
    """`controller_epoch` is the newest a control request of any kind brought; older ones are refused."""

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
        fetchers: ReplicaFetchers | None = None,
        replica_selector: ReplicaSelector | None = None,
        quotas: ReplicationQuotas | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.logs = logs
        logs.passes.segments_deleted_listener = self.on_segments_deleted
        self.metadata = metadata
        self.clock = clock
        self.max_lag_ms = max_lag_ms
        self.fetchers: ReplicaFetchers = fetchers or NoFetchers()
        self.replica_selector = replica_selector
        self.quotas = quotas or ReplicationQuotas(clock, metrics)
        self.controller_epoch = 0
        self.partitions: dict[TopicPartition, Partition] = {}
        self._brokers: object = None
        self._last_shrink_ms = clock.now_ms()
        self.offline: dict[TopicPartition, None] = {}
        self._failing: dict[str, object] = {}
        """Directories whose partitions are being taken offline, with the pass that does so."""
        self.lagging: dict[Partition, None] = {}
        """Partitions that may have an in-sync follower that fell behind, or records that are not committed."""
        self._by_topic: dict[str, dict[TopicPartition, Partition]] = {}
        self.counters = PartitionCounters()
        self.topic_stats = BrokerTopicStats(metrics)
        self.metrics = metrics
        self.produce_purgatory = DelayedOperationPurgatory("Produce", loop)
        self.fetch_purgatory = DelayedOperationPurgatory("Fetch", loop)
        self.delete_records_purgatory = DelayedOperationPurgatory("DeleteRecords", loop)
        self.loop = loop
        self.changing: asyncio.Future[StateChangeResult] | None = None
        """A LeaderAndIsr that is applied in slices; no other control request may be handled until it is done."""
        self.leadership_listeners: list[LeadershipListener] = []
        self.isr_change_listener: Callable[[Partition, tuple[int, ...]], None] | None = None
        self.isr_meters = gauges.IsrMeters(metrics)
        self.problems = ReplicaProblems(metrics)
        self.damaged_logs = DamagedLogs(broker_id, metadata, self.problems)
        self.log_dir_moves = LogDirMoves(self)
        gauges.register(self)
        self._append_path = AppendPath(self)
        self.fetch_path = FetchPath(self)
        self._delete_path = DeleteRecordsPath(self)
        self._state_change = StateChange(self)

    # --- lookup ------------------------------------------------------------------------------------------------

    def partition_or_error(self, tp: TopicPartition) -> Partition | ErrorCode:
        """The hosted partition, or what to tell a client that came to this broker for it."""
        partition = self.partitions.get(tp)
        if partition is not None:
            return partition
        if tp in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.metadata.partition(tp.topic, tp.partition) is not None
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def leader_log(self, tp: TopicPartition) -> Log | ErrorCode:
        """The log of a partition that this broker leads."""
        partition = self.partition_or_error(tp)
        if isinstance(partition, ErrorCode):
            return partition
        if not partition.is_leader or partition.log is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition.log

    def host(self, partition: Partition) -> None:
        tp = partition.topic_partition
        if tp in self.partitions:
            return
        self.partitions[tp] = partition
        self._by_topic.setdefault(tp.topic, {})[tp] = partition

    def drop(self, tp: TopicPartition) -> Partition | None:
        """Forgets the partition; its topic's meters go with the topic's last partition."""
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

    # --- data --------------------------------------------------------------------------------------------------

    def append_records(
        self,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        records: Mapping[TopicPartition, RecordsBytes],
        timeout_ms: int = 30_000,
        *,
        convert: bool = False,
    ) -> AppendResults | asyncio.Future[AppendResults]:
        """See AppendPath.append_records."""
        return self._append_path.append_records(
            required_acks, internal_topics_allowed, origin, records, timeout_ms, convert=convert
        )

    def run_record_work(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a pure function of record bytes in the thread that validates large batches."""
        return self._append_path.checks.submit(work)

    def start_record_checks(self, worker: Executor) -> None:
        """From now on `worker` validates batches that would keep the loop for too long."""
        self._append_path.checks.start(worker)

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int
    ) -> DeletedRecords | asyncio.Future[DeletedRecords]:
        """See DeleteRecordsPath.delete_records."""
        return self._delete_path.delete_records(offsets, timeout_ms)

    # --- control -----------------------------------------------------------------------------------------------

    def check_controller_epoch(self, controller_epoch: int) -> ErrorCode:
        """Refuses a controller that has been succeeded, else remembers the epoch."""
        if controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = controller_epoch
        return ErrorCode.NONE

    def become_leader_or_follower(
        self, controller_epoch: int, topics: Iterable[TopicPartitionStates]
    ) -> StateChangeResult | asyncio.Future[StateChangeResult]:
        """See StateChange.become_leader_or_follower."""
        return self._state_change.become_leader_or_follower(controller_epoch, topics)

    def stop_replicas(
        self, controller_epoch: int, stops: Iterable[StopReplica]
    ) -> StateChangeResult | asyncio.Future[StateChangeResult]:
        """See StateChange.stop_replicas."""
        return self._state_change.stop_replicas(controller_epoch, stops)

    def delete_strays(self, partitions: Iterable[TopicPartition]) -> None:
        """See StateChange.delete_strays."""
        self._state_change.delete_strays(partitions)

    def on_metadata_change(self) -> None:
        """Leaders that were unknown may have an address now, and nobody waits for followers that are gone."""
        self.fetchers.on_metadata_change()
        self.damaged_logs.on_metadata_change()
        brokers = self.metadata.snapshot.brokers
        if brokers is self._brokers:  # a snapshot shares them with the one before unless they changed
            return
        self._brokers = brokers
        self._stop_waiting_for_the_gone(list(self.lagging))
        self.delete_records_purgatory.check_all()

    def _stop_waiting_for_the_gone(self, partitions: list[Partition]) -> None:
        """High watermarks that a broker that is gone held back, slice by slice: after an election all may lag."""
        now_ms = self.clock.now_ms()
        for partition in partitions[-PARTITIONS_PER_SLICE:]:
            if partition.maybe_increment_high_watermark(now_ms):
                self.complete_after_high_watermark(partition.topic_partition)
        del partitions[-PARTITIONS_PER_SLICE:]
        if partitions:
            self.loop.call_soon(self._stop_waiting_for_the_gone, partitions)

    def on_topic_config_change(self, topic: str) -> None:
        """`min.insync.replicas` may have changed: counts and waiting produces look again."""
        for tp, partition in self._by_topic.get(topic, {}).items():
            self.counters.refresh(partition)
            partition.changed()
            self.produce_purgatory.check_and_complete(tp)
        self.fetch_path.complete_woken()

    def on_segments_deleted(self, tp: TopicPartition) -> None:
        """Retention moved the start of a log."""
        if (partition := self.partitions.get(tp)) is not None:
            partition.changed()
            self.fetch_path.complete_woken()

    def on_log_dir_failure(self, log_dir: str) -> None:
        """`log_dir_failure_pass` at once."""
        for _ in self.log_dir_failure_pass(log_dir):
            pass

    def log_dir_failure_pass(self, log_dir: str) -> Iterator[None]:
        """Takes the partitions of a failed directory offline, in slices; they stay so until the broker restarts.

        Their logs have failed already: until its turn, a partition answers with the same error. If the directory comes
        back meanwhile, the partitions that are left stay online.
        """
        count = 0
        current = self._failing[log_dir] = object()
        hosted = list(self.partitions)
        for start in range(0, len(hosted), OFFLINE_PER_SLICE):
            if self._failing.get(log_dir) is not current:
                return
            failed = [tp for tp in hosted[start : start + OFFLINE_PER_SLICE] if self._is_in(tp, log_dir)]
            if failed:
                self._state_change.take_offline(failed)
                count += len(failed)
            yield
        self._failing.pop(log_dir, None)
        log.error("log directory %s failed: %d partitions went offline", log_dir, count)

    def _is_in(self, tp: TopicPartition, log_dir: str) -> bool:
        partition = self.partitions.get(tp)
        hosted = None if partition is None else partition.log
        return hosted is not None and hosted.log_dir == log_dir

    def on_log_dir_revival(self, log_dir: str) -> None:
        """A failed directory can be used again: the controller may name its partitions anew."""
        self._failing.pop(log_dir, None)
        self.offline = {tp: None for tp in self.offline if self.logs.is_offline(tp)}

    # --- ISR ---------------------------------------------------------------------------------------------------

    def on_isr_change_wanted(self, partition: Partition, isr: tuple[int, ...]) -> None:
        if self.isr_change_listener is not None:
            self.isr_change_listener(partition, isr)

    def shrink_isrs(self) -> None:
        """`isr_pass` at once."""
        for _ in self.isr_pass() or ():
            pass

    def isr_pass(self) -> Iterator[bool] | None:
        """The `isr-expiration` task, every half of the lag limit. Returns the slices that are left after the first.

        It costs what was written since, and what lags: that is everything after a change of many leaders. A broker that
        stood still itself (or whose clock jumped) cannot say that others did: it first lets them fetch.
        """
        now_ms = self.clock.now_ms()
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

    def complete_after_append(self, tp: TopicPartition) -> None:
        """New records are on disk: followers may read them, consumers too where the high watermark moved."""
        if self.fetch_path.woken:
            self.fetch_path.complete_woken()
        if self.produce_purgatory.size:
            self.produce_purgatory.check_and_complete(tp)

    def complete_after_high_watermark(self, tp: TopicPartition) -> None:
        """The high watermark or a follower's log start moved."""
        self.produce_purgatory.check_and_complete(tp)
        self.fetch_path.complete_woken()
        self.delete_records_purgatory.check_and_complete(tp)

    def on_flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        """The log's recovery point moved: produces that waited for the disk look again."""
        if self.produce_purgatory.size:
            self.produce_purgatory.check_and_complete(tp)

    # --- tasks -------------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        """Writes `replication-offset-checkpoint` of every live directory."""
        self.logs.checkpoints.write_high_watermarks(self.high_watermarks())

    def high_watermark_pass(self) -> Iterator[None]:
        """`checkpoint_high_watermarks`, slice by slice."""
        return self.logs.checkpoints.high_watermark_pass(self._is_of_a_partition)

    def _is_of_a_partition(self, log: Log) -> bool:
        partition = self.partitions.get(log.topic_partition)
        return partition is not None and partition.log is log

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {tp: p.log.high_watermark for tp, p in self.partitions.items() if p.log is not None}

    def shutdown(self) -> None:
        """Answers all that waits and leaves the high watermarks on disk."""
        self.log_dir_moves.stop()
        if self.changing is not None:
            self.changing.cancel()
        self.fetchers.remove(list(self.partitions))
        self._append_path.checks.shutdown()
        for purgatory in (self.fetch_purgatory, self.produce_purgatory, self.delete_records_purgatory):
            purgatory.shutdown()
        self.checkpoint_high_watermarks()
