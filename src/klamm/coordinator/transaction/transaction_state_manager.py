"""Owns the transactional ids of the partitions of `__transaction_state` that this broker leads: loading, writing,
unloading, and the search for those that have timed out or expired.

A partition is loaded when this broker becomes its leader and unloaded when it no longer is; leader epochs order the
two, so that a late notification does not undo a newer one. A transition takes effect once all in-sync replicas have its
record. This holds for records of a predecessor too: a partition is loaded once all in-sync replicas have all of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from klamm.clock import Clock
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.draining import drained
from klamm.coordinator.memory import Budget
from klamm.coordinator.offsets_log import Appended, OffsetsLog
from klamm.coordinator.ordered_appends import OrderedAppends
from klamm.coordinator.partition_reading import read_partition
from klamm.coordinator.partitioning import partition_for
from klamm.coordinator.scheduler import Scheduler
from klamm.coordinator.transaction import transaction_rules as rules
from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_loader import TransactionLoader
from klamm.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
    TransactionValue,
)
from klamm.coordinator.transaction.transaction_metrics import TransactionMetrics
from klamm.coordinator.transaction.transaction_records import encode_transaction_key, encode_transaction_value
from klamm.errors import ErrorCode
from klamm.model import TRANSACTION_STATE_TOPIC, ConnectionOrder, TransactionVersion
from klamm.protocol.record_batch import Record, build_batch

_log = logging.getLogger("klamm.coordinator.transaction")

TRANSACTIONS_PER_SLICE: Final = 1_000
TOMBSTONES_PER_BATCH: Final = 50
"""Transactional ids that are removed without giving the loop back: about a third of a millisecond."""
INLINE_PARTITIONS: Final = 2_000
"""Records of transactions with more partitions are built in a worker."""
TRANSACTION_COST: Final = 1_000
"""Estimated bytes of a transactional id besides its name."""


@dataclass(slots=True, eq=False)
class TransactionPartition:
    """One partition of `__transaction_state` that this broker leads.

    `last_before_election` is the youngest connection that this broker had accepted when it became the coordinator.
    """

    index: int
    coordinator_epoch: int
    last_before_election: ConnectionOrder
    is_loading: bool = True
    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)
    ongoing: dict[str, TransactionMetadata] = field(default_factory=dict)
    """Those with an open transaction."""
    counts: Counter[TransactionState] = field(default_factory=Counter)

    def add(self, txn: TransactionMetadata) -> None:
        self.transactions[txn.transactional_id] = txn
        self.counts[txn.state] += 1
        if txn.state is TransactionState.ONGOING:
            self.ongoing[txn.transactional_id] = txn

    def remove(self, txn: TransactionMetadata) -> None:
        if self.transactions.pop(txn.transactional_id, None) is not None:
            self.counts[txn.state] -= 1
            self.ongoing.pop(txn.transactional_id, None)

    def complete(self, txn: TransactionMetadata) -> None:
        """The pending transition of the transactional id takes effect."""
        self.counts[txn.state] -= 1
        txn.complete()
        self.counts[txn.state] += 1
        if txn.state is TransactionState.ONGOING:
            self.ongoing[txn.transactional_id] = txn
        else:
            self.ongoing.pop(txn.transactional_id, None)


class TransactionStateManager:
    """`known_partition_count` is the one that all brokers see; None before the topic exists."""

    def __init__(
        self,
        log: OffsetsLog,
        clock: Clock,
        config: TransactionConfig,
        scheduler: Scheduler,
        metrics: TransactionMetrics,
        known_partition_count: Callable[[], int | None],
        version: Callable[[], TransactionVersion],
        last_connection: Callable[[], ConnectionOrder],
    ) -> None:
        self._log = log
        self._clock = clock
        self._config = config
        self._scheduler = scheduler
        self._metrics = metrics
        self._known_partition_count = known_partition_count
        self._version = version
        self._last_connection = last_connection
        self._partitions: dict[int, TransactionPartition] = {}
        self._appends = OrderedAppends(log, self._partitions.get)
        self._epochs: dict[int, int] = {}
        self._budget = Budget(config.transactions_max_bytes, lambda: sum(map(_cost, self.transactions())))
        metrics.register(lambda state: sum(partition.counts[state] for partition in self._partitions.values()))

    def timestamp_ms(self) -> int:
        """The wall clock: timeouts and expiry survive a change of the coordinator."""
        return self._clock.now_ms()

    @property
    def version(self) -> TransactionVersion:
        """The level of `transaction.version` in the cluster."""
        return self._version()

    # --- which transactional ids are here ------------------------------------------------------------------------

    def partition_for(self, transactional_id: str) -> int:
        """By the partition count that all brokers see; before the topic exists, by the one it will be created with."""
        return partition_for(transactional_id, self._known_partition_count() or self._config.num_partitions)

    def partition_of(self, transactional_id: str) -> TransactionPartition | ErrorCode:
        """Return the loaded partition of the id, or why the id is not coordinated here."""
        partition = self._partitions.get(self.partition_for(transactional_id))
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition.is_loading else partition

    def is_current(self, partition: TransactionPartition) -> bool:
        """Whether this broker has led the partition without interruption since `partition` was taken."""
        return self._partitions.get(partition.index) is partition

    def is_confirmed(self, partition: TransactionPartition) -> bool:
        """Whether this broker leads the partition beyond doubt. One that was paused may have been succeeded."""
        return self._log.is_confirmed(partition.index)

    @property
    def is_loading(self) -> bool:
        return any(partition.is_loading for partition in self._partitions.values())

    def transactions(self) -> Iterator[TransactionMetadata]:
        for partition in list(self._partitions.values()):
            yield from list(partition.transactions.values())

    def get_or_add(
        self, partition: TransactionPartition, transactional_id: str, producer_id: int, timeout_ms: int
    ) -> TransactionMetadata | ErrorCode:
        """Return the transactional id, created if necessary and if the memory limit allows it."""
        txn = partition.transactions.get(transactional_id)
        if txn is not None:
            return txn
        value = TransactionValue(producer_id, timeout_ms=timeout_ms, last_update_timestamp_ms=self.timestamp_ms())
        txn = TransactionMetadata(transactional_id, value, self._config.max_producer_epoch)
        if not self._budget.has_room(_cost(txn), round(self._clock.monotonic() * 1000)):
            return ErrorCode.POLICY_VIOLATION
        partition.add(txn)
        return txn

    # --- writing -------------------------------------------------------------------------------------------------

    def write(
        self, partition: TransactionPartition, txn: TransactionMetadata, *, keeps_pending: bool = False
    ) -> Deferred[ErrorCode]:
        """Write the pending transition; it takes effect before the result is known.

        If it cannot be written, it is cancelled, unless `keeps_pending`: then the caller writes it again.
        """
        value = txn.pending
        assert value is not None
        if not self.is_current(partition):
            return Deferred.of(ErrorCode.NOT_COORDINATOR)
        # The state of a producer whose epoch is bumped needs the tagged fields, whatever the level of the cluster.
        version = max(self._version(), value.client_version)
        build = partial(_batch, txn.transactional_id, value, version, self.timestamp_ms())
        append = partial(self._append, partition.index, max(value.timeout_ms, 1))
        if len(value.partitions) <= INLINE_PARTITIONS:
            appended = self._appends.append(partition.index, build(), append)
        else:
            appended = self._appends.build_and_append(partition.index, build, append)
        return appended.map(lambda done: self._on_written(partition, txn, value, done, keeps_pending))

    def _append(self, index: int, timeout_ms: int, batch: bytes) -> Deferred[Appended]:
        return self._log.append(index, batch, timeout_ms)

    def _on_written(
        self,
        partition: TransactionPartition,
        txn: TransactionMetadata,
        value: TransactionValue,
        appended: Appended,
        keeps_pending: bool,
    ) -> ErrorCode:
        if not self.is_current(partition) or partition.transactions.get(txn.transactional_id) is not txn:
            return ErrorCode.NOT_COORDINATOR
        error = _coordinator_error(appended.error)
        if error is ErrorCode.NONE:
            assert txn.pending is value, "one transition at a time"
            partition.complete(txn)
        else:
            _log.info("writing %s of %s failed: %s", value.state.title, txn.transactional_id, appended.error.name)
            if not keeps_pending:
                self._cancel(partition, txn)
        return error

    def _cancel(self, partition: TransactionPartition, txn: TransactionMetadata) -> None:
        txn.cancel()
        if txn.value.producer_epoch < 0:  # it was never written
            partition.remove(txn)

    # --- time ----------------------------------------------------------------------------------------------------

    def _loaded(self) -> list[TransactionPartition]:
        return [partition for partition in self._partitions.values() if not partition.is_loading]

    def timed_out(self) -> Iterator[tuple[TransactionPartition, TransactionMetadata] | None]:
        """Yield the open transactions that are older than their timeout, and None between slices."""
        now_ms = self.timestamp_ms()
        for partition in self._loaded():
            for number, txn in enumerate(list(partition.ongoing.values())):
                if self.is_current(partition) and rules.is_timed_out(txn, now_ms):
                    yield partition, txn
                if number % TRANSACTIONS_PER_SLICE == TRANSACTIONS_PER_SLICE - 1:
                    yield None
            yield None

    def remove_expired(self) -> Iterator[None]:
        """Forget the transactional ids that have been idle for too long, in slices."""
        now_ms = self.timestamp_ms()
        for partition in self._loaded():
            expired: list[TransactionMetadata] = []
            for number, txn in enumerate(drained(partition.transactions.values())):
                if not self.is_current(partition):
                    break
                if rules.is_expired(txn, self._config.transactional_id_expiration_ms, now_ms):
                    expired.append(txn)
                if len(expired) == TOMBSTONES_PER_BATCH:
                    self._write_tombstones(partition, expired)
                    expired = []
                    yield
                elif number % TRANSACTIONS_PER_SLICE == TRANSACTIONS_PER_SLICE - 1:
                    yield
            if expired:
                self._write_tombstones(partition, expired)
            yield

    def _write_tombstones(self, partition: TransactionPartition, candidates: Sequence[TransactionMetadata]) -> None:
        """The slices let requests in between, so each candidate is checked again."""
        now_ms = self.timestamp_ms()
        expired = [
            txn for txn in candidates if rules.is_expired(txn, self._config.transactional_id_expiration_ms, now_ms)
        ]
        if not self.is_current(partition) or not expired:
            return
        for txn in expired:
            rules.expire(txn)
        records = [Record(timestamp=now_ms, key=encode_transaction_key(txn.transactional_id)) for txn in expired]

        def on_appended(appended: Appended) -> None:
            if not self.is_current(partition):
                return
            for txn in expired:
                if appended.error is ErrorCode.NONE:
                    partition.remove(txn)
                else:
                    txn.cancel()

        append = partial(self._append, partition.index, self._config.request_timeout_ms)
        self._appends.append(partition.index, build_batch(records), append).then(on_appended)

    # --- leadership ----------------------------------------------------------------------------------------------

    def on_election(
        self, index: int, leader_epoch: int, on_loaded: Callable[[TransactionPartition], Iterator[None]]
    ) -> None:
        """This broker leads the partition: load it, unless loaded already. `on_loaded` is the last part, in slices."""
        if leader_epoch < self._epochs.get(index, leader_epoch):
            return
        self._epochs[index] = leader_epoch
        known = self._partitions.get(index)
        if known is not None:
            known.coordinator_epoch = leader_epoch
            return
        partition = self._partitions[index] = TransactionPartition(index, leader_epoch, self._last_connection())
        self._scheduler.spawn(self._load(partition, on_loaded))

    def on_resignation(self, index: int, leader_epoch: int | None) -> bool:
        """Another broker leads the partition, or none: forget it. Returns whether it was here."""
        if leader_epoch is not None:
            if leader_epoch < self._epochs.get(index, leader_epoch):
                return False
            self._epochs[index] = leader_epoch
        return self._partitions.pop(index, None) is not None

    def resign_all(self) -> None:
        self._partitions.clear()

    def _load(
        self, partition: TransactionPartition, on_loaded: Callable[[TransactionPartition], Iterator[None]]
    ) -> Iterator[None]:
        started = self._clock.monotonic()
        loader = TransactionLoader(partition.index)
        yield
        read = read_partition(
            self._log, TRANSACTION_STATE_TOPIC, partition.index, loader.add, self._config.load_buffer_size
        )
        for error in read:
            if not self.is_current(partition):
                return
            if error is not ErrorCode.NONE:
                _log.error("reading %s-%d failed: %s", TRANSACTION_STATE_TOPIC, partition.index, error.name)
                del self._partitions[partition.index]
                return
            yield
        for number, (transactional_id, value) in enumerate(loader.values.items()):
            partition.add(TransactionMetadata(transactional_id, value, self._config.max_producer_epoch))
            if number % TRANSACTIONS_PER_SLICE == TRANSACTIONS_PER_SLICE - 1:
                yield
        self._finish_when_replicated(partition, self._finish(partition, on_loaded, started))

    def _finish_when_replicated(self, partition: TransactionPartition, finish: Iterator[None]) -> None:
        """A record that an in-sync replica lacks may be lost with this broker, so nothing may follow from it before."""

        def on_replicated(error: ErrorCode) -> None:
            if not self.is_current(partition):
                return
            if error is ErrorCode.NONE:
                self._scheduler.spawn(finish)
            elif error is ErrorCode.REQUEST_TIMED_OUT:
                self._finish_when_replicated(partition, finish)
            else:
                _log.info("loading %s-%d failed: %s", TRANSACTION_STATE_TOPIC, partition.index, error.name)
                del self._partitions[partition.index]

        self._log.await_replication(partition.index, self._config.request_timeout_ms).then(on_replicated)

    def _finish(
        self,
        partition: TransactionPartition,
        on_loaded: Callable[[TransactionPartition], Iterator[None]],
        started: float,
    ) -> Iterator[None]:
        # Still loading: no request may prepare a transaction that `on_loaded` would then complete a second time.
        yield from on_loaded(partition)
        if not self.is_current(partition):
            return
        partition.is_loading = False
        self._metrics.on_loaded((self._clock.monotonic() - started) * 1000)


def _cost(txn: TransactionMetadata) -> int:
    return TRANSACTION_COST + 2 * len(txn.transactional_id)


def _batch(transactional_id: str, value: TransactionValue, version: TransactionVersion, timestamp_ms: int) -> bytes:
    record = Record(
        timestamp=timestamp_ms,
        key=encode_transaction_key(transactional_id),
        value=encode_transaction_value(value, version),
    )
    return build_batch([record])


def _coordinator_error(error: ErrorCode) -> ErrorCode:
    """Return the error for a producer whose transition could not be written."""
    match error:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return error
