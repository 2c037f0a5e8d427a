"""A transaction coordinator without an event loop: virtual time, a log in memory, leaders that the test answers for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from klamm.apis.api_declaration import at_once
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.transaction.transaction_completions import TransactionCompletions
from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from klamm.coordinator.transaction.transaction_markers import Destination, MarkerBatch
from klamm.coordinator.transaction.transaction_metadata import TransactionMetadata, TransactionState, TransactionValue
from klamm.coordinator.transaction.transaction_metrics import TransactionMetrics
from klamm.coordinator.transaction.transaction_records import (
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from klamm.coordinator.transaction.transaction_results import EndTxnResult, InitProducerIdResult
from klamm.coordinator.transaction.transaction_state_manager import TransactionPartition, TransactionStateManager
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from klamm.protocol.record_batch import Record, build_batch
from tests.unit.coordinator.harness import ManualClock, ManualScheduler, MemoryOffsetsLog

TXN = "txn"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST_ID = 1_000
TIMEOUT_MS = 60_000
TV_0, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_2


@dataclass(frozen=True)
class Marker:
    """A marker that a leader received."""

    tp: TopicPartition
    producer: ProducerIdAndEpoch
    commit: bool
    coordinator_epoch: int
    version: TransactionVersion


@dataclass
class Leaders:
    """The leaders of all partitions: broker 1 unless `where` says otherwise; they acknowledge, or answer `errors`."""

    where: dict[TopicPartition, int | Destination] = field(default_factory=dict)
    errors: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    unreachable: set[int] = field(default_factory=set)
    received: list[Marker] = field(default_factory=list)

    def locate(self, tp: TopicPartition) -> int | Destination:
        return self.where.get(tp, 1)

    def receive(self, batch: MarkerBatch) -> dict[int, dict[TopicPartition, ErrorCode]]:
        answer: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for producer_id, (completion, partitions) in batch.entries.items():
            value, epoch = completion.value, completion.partition.coordinator_epoch
            for tp in partitions:
                self.received.append(Marker(tp, value.identity, completion.commit, epoch, value.client_version))
            answer[producer_id] = {tp: self.errors.get(tp, ErrorCode.NONE) for tp in partitions}
        return answer


class TxnHarness:
    """One broker that leads all partitions of `__transaction_state`. `holds` keeps markers back until `deliver`."""

    def __init__(
        self,
        config: TransactionConfig | None = None,
        *,
        log: MemoryOffsetsLog | None = None,
        clock: ManualClock | None = None,
        leaders: Leaders | None = None,
        version: TransactionVersion = TV_0,
        last_connection: int = 0,
        next_id: int = FIRST_ID,
    ) -> None:
        self.config = config or TransactionConfig()
        self.log = log or MemoryOffsetsLog()
        self.clock = clock or ManualClock()
        self.leaders = leaders or Leaders()
        self.version = version
        self.last_connection = last_connection
        self.next_id = next_id
        self.holds_ids: list[Deferred[int | ErrorCode]] | None = None
        self.holds = False
        self.awake: dict[int, None] = {}
        self.scheduler = ManualScheduler()
        self.registry = MetricsRegistry(self.clock)
        metrics = TransactionMetrics(self.registry)
        self.manager = TransactionStateManager(
            self.log,
            self.clock,
            self.config,
            self.scheduler,
            metrics,
            lambda: 1,
            lambda: self.version,
            lambda: self.last_connection,
        )
        self.completions = TransactionCompletions(
            self.manager, self.scheduler, self.clock, self.leaders.locate, self._wake, self.config.max_wait_ms
        )
        self.coordinator = TransactionCoordinator(
            self.manager, self.completions, self.config, self.scheduler, metrics, self._generate
        )

    def _generate(self) -> Deferred[int | ErrorCode]:
        if self.holds_ids is not None:
            waiting: Deferred[int | ErrorCode] = Deferred()
            self.holds_ids.append(waiting)
            return waiting
        self.next_id += 1
        return Deferred.of(self.next_id - 1)

    def start(self, epoch: int = 0) -> TxnHarness:
        self.coordinator.startup()
        self.elect(epoch)
        return self

    def elect(self, epoch: int) -> None:
        self.coordinator.on_leadership_change([(TopicPartition("__transaction_state", 0), epoch)], [])
        self.scheduler.run_jobs()

    def resign(self, epoch: int) -> None:
        self.coordinator.on_leadership_change([], [(TopicPartition("__transaction_state", 0), epoch)])

    def take_over(self, epoch: int = 1, last_connection: int = 0) -> TxnHarness:
        """Another broker becomes the coordinator: the same log, clock and leaders, nothing else."""
        self.coordinator.shutdown()
        return TxnHarness(
            self.config,
            log=self.log,
            clock=self.clock,
            leaders=self.leaders,
            version=self.version,
            last_connection=last_connection,
            next_id=self.next_id + 1_000,
        ).start(epoch)

    def pass_ms(self, duration_ms: int) -> None:
        """Time passes; everything that is due on the way is done at its time."""
        end_ms = self.clock.elapsed_ms + duration_ms
        while True:
            deadline_ms = self.scheduler.deadline_ms
            if deadline_ms is None or deadline_ms - 5_000 > end_ms:
                break
            self.clock.elapsed_ms = max(self.clock.elapsed_ms, deadline_ms - 5_000)
            self.scheduler.deadline_ms = None
            self.coordinator.advance()
            self.scheduler.run_jobs()
        self.clock.elapsed_ms = end_ms

    # --- markers -------------------------------------------------------------------------------------------------

    def _wake(self, broker_id: int) -> None:
        self.awake[broker_id] = None
        if not self.holds:
            self.deliver()

    def deliver(self) -> None:
        """Send what waits for brokers, one request at a time, until nothing waits."""
        markers = self.completions.markers
        while self.awake:
            broker_id = next(iter(self.awake))
            batch = markers.take(broker_id)
            if batch is None:
                self.awake.pop(broker_id, None)
            elif broker_id in self.leaders.unreachable:
                markers.on_failure(batch)
            else:
                markers.on_response(batch, self.leaders.receive(batch))

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def partition(self) -> TransactionPartition:
        found = self.manager.partition_of(TXN)
        assert isinstance(found, TransactionPartition)
        return found

    @property
    def txn(self) -> TransactionMetadata:
        return self.partition.transactions[TXN]

    def state(self) -> TransactionState:
        return self.txn.state

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return self.txn.value.identity

    def stored(self) -> list[TransactionValue | None]:
        """The values of the log, oldest first; None is a tombstone."""
        records = self.log.records(0)
        assert all(decode_transaction_key(record.key or b"") == TXN for record in records)
        return [None if record.value is None else decode_transaction_value(record.value) for record in records]

    def store(self, value: TransactionValue, version: TransactionVersion = TV_2) -> None:
        """Write a value as an earlier coordinator left it."""
        record = Record(timestamp=0, key=encode_transaction_key(TXN), value=encode_transaction_value(value, version))
        self.log.append(0, build_batch([record]), 1_000)

    # --- requests ------------------------------------------------------------------------------------------------

    def init(
        self,
        expected: ProducerIdAndEpoch | None = None,
        *,
        origin: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
        transactional_id: str = TXN,
    ) -> InitProducerIdResult:
        return self.coordinator.init_producer_id(transactional_id, timeout_ms, expected, origin).value

    def new_producer(self, origin: int | None = None) -> ProducerIdAndEpoch:
        result = self.init(origin=origin)
        assert result.error is ErrorCode.NONE
        return ProducerIdAndEpoch(result.producer_id, result.producer_epoch)

    def add(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        origin: int | None = None,
        version: TransactionVersion = TV_0,
    ) -> ErrorCode:
        return self.coordinator.add_partitions(
            TXN, *producer, partitions or (T0,), version=version, origin=origin
        ).value

    def end(
        self,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        origin: int | None = None,
        version: TransactionVersion = TV_0,
    ) -> EndTxnResult:
        ended = self.coordinator.end_transaction(TXN, *producer, commit=commit, version=version, origin=origin)
        self.scheduler.run_jobs()
        return ended.value

    def commit(self, producer: ProducerIdAndEpoch, **how: int) -> ErrorCode:
        return self.end(producer, commit=True, origin=how.get("origin")).error

    def abort(self, producer: ProducerIdAndEpoch, **how: int) -> ErrorCode:
        return self.end(producer, commit=False, origin=how.get("origin")).error

    def listed(self, states: Sequence[str] = (), producer_ids: Sequence[int] = (), older_ms: int = -1) -> list[str]:
        listing = at_once(self.coordinator.list_transactions(states, producer_ids, older_ms))
        assert listing.error is ErrorCode.NONE
        return [txn.transactional_id for txn in listing.transactions]
