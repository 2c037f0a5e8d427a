"""The state of a log's producers: the last five batches of each, open transactions, the last stable offset.

It is kept in memory and restored from the newest snapshot and the batches after it. A leader validates a batch before
the write and updates the state after it. Followers and recovery only update it.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple

from klamm.errors import ErrorCode, ProtocolError
from klamm.log.transaction_index import AbortedTxn
from klamm.protocol.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RecordBatch,
    records,
)

NUM_BATCHES_TO_RETAIN: Final = 5
MAX_PRODUCERS: Final = 20_000
"""How many producers a log remembers. Any client can send a batch with a new id, and rolling a segment writes a
snapshot of all on the loop. A forgotten producer may continue, like one whose state has expired."""
NO_COORDINATOR_EPOCH: Final = -1
_INT32_MAX: Final = 0x7FFFFFFF
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1


class AppendOrigin(Enum):
    """The origin of a batch, which decides which checks apply."""

    CLIENT = auto()
    COORDINATOR = auto()
    REPLICATION = auto()


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + _INT32_MAX + 1


@dataclass(slots=True)
class ProducerStateEntry:
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int | None = None
    batches: tuple[BatchMetadata, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        if batch.producer_epoch != self.producer_epoch:
            return None
        first, last = batch.base_sequence, batch.last_sequence
        for known in self.batches:
            if known.last_sequence == last and known.first_sequence == first:
                return known
        return None

    def use_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches = ()


class EndTransactionMarker(NamedTuple):
    is_abort: bool
    coordinator_epoch: int


class Refusal(NamedTuple):
    """The reason why a batch of a producer is not appended."""

    error: ErrorCode
    message: str


def parse_marker(batch: RecordBatch) -> EndTransactionMarker | None:
    """Return the end of a transaction that a control batch stands for; None for other control batches."""
    record = next(records(batch), None)
    if record is None or record.key is None or len(record.key) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise ProtocolError("a transaction marker has no coordinator epoch")
    return EndTransactionMarker(kind == _ABORT, _MARKER_VALUE.unpack_from(record.value)[1])


def marker_record_fields(is_abort: bool, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Return the key and the value of the record that ends a transaction."""
    return _MARKER_KEY.pack(0, _ABORT if is_abort else _COMMIT), _MARKER_VALUE.pack(0, coordinator_epoch)


class ProducerStateManager:
    """Owner: the `Log`. `ProducerSnapshots` handles the files."""

    def __init__(self, producer_id_expiration_ms: int = 86_400_000) -> None:
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.entries: OrderedDict[int, ProducerStateEntry] = OrderedDict()
        """By producer id, ordered by the time of the last batch."""
        self._ongoing_txns: dict[int, int] = {}
        self._unreplicated_txns: dict[int, int] = {}

    def clear(self) -> None:
        self.entries.clear()
        self._ongoing_txns.clear()
        self._unreplicated_txns.clear()

    def load(self, entries: list[ProducerStateEntry], now_ms: int) -> None:
        """Start from a snapshot, without the producers that have been silent for too long."""
        self.clear()
        for entry in entries:
            if not self._is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
                if entry.current_txn_first_offset is not None:
                    self._ongoing_txns[entry.current_txn_first_offset] = entry.producer_id

    # validation before a leader appends

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        entry = self.entries.get(batch.producer_id)
        return entry.find_duplicate(batch) if entry is not None else None

    def validate(self, batch: RecordBatch, origin: AppendOrigin) -> Refusal | None:
        """Check epoch and sequence. An unknown producer may start anywhere: its state may have expired."""
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return None
        if batch.producer_epoch < entry.producer_epoch:
            return Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} has epoch {batch.producer_epoch}, "
                f"the log has already seen {entry.producer_epoch}",
            )
        if batch.is_control:
            return _check_coordinator_epoch(batch, entry)
        if origin is AppendOrigin.CLIENT and (refusal := _check_sequence(batch, entry)) is not None:
            return refusal
        if entry.current_txn_first_offset is not None and not batch.is_transactional:
            return Refusal(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} sent a batch outside of its open transaction",
            )
        return None

    # after the write

    def update(self, batch: RecordBatch) -> AbortedTxn | None:
        """Take an appended batch into account. For an abort marker, return the entry of the transaction index."""
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            entry = self.entries[batch.producer_id] = ProducerStateEntry(batch.producer_id)
            if len(self.entries) > MAX_PRODUCERS:
                self._forget_oldest()
        else:
            self.entries.move_to_end(batch.producer_id)
        if batch.is_control:
            marker = parse_marker(batch)
            return self._end_transaction(entry, batch, marker) if marker is not None else None
        entry.use_epoch(batch.producer_epoch)
        known = entry.batches
        if len(known) == NUM_BATCHES_TO_RETAIN:
            known = known[1:]
        metadata = BatchMetadata(batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp)
        entry.batches = (*known, metadata)
        entry.last_timestamp = batch.max_timestamp
        if batch.is_transactional and entry.current_txn_first_offset is None:
            entry.current_txn_first_offset = batch.base_offset
            self._ongoing_txns[batch.base_offset] = batch.producer_id
        return None

    def _forget_oldest(self) -> None:
        """Forget the producers that have been silent longest, but never an open transaction."""
        for producer_id in list(islice(self.entries, len(self.entries) - MAX_PRODUCERS)):
            if self.entries[producer_id].current_txn_first_offset is None:
                del self.entries[producer_id]

    def _end_transaction(
        self, entry: ProducerStateEntry, batch: RecordBatch, marker: EndTransactionMarker
    ) -> AbortedTxn | None:
        first_offset = entry.current_txn_first_offset
        entry.use_epoch(batch.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = batch.max_timestamp
        entry.current_txn_first_offset = None
        if first_offset is None:
            return None
        self._ongoing_txns.pop(first_offset, None)
        self._unreplicated_txns[first_offset] = batch.base_offset
        if not marker.is_abort:
            return None
        last_stable_offset = min(self._ongoing_txns, default=batch.base_offset + 1)
        return AbortedTxn(batch.producer_id, first_offset, batch.base_offset, last_stable_offset)

    # transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the first transaction that is open, or whose end is not replicated yet."""
        if not self._ongoing_txns and not self._unreplicated_txns:
            return None
        return min((*self._ongoing_txns, *self._unreplicated_txns))

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions that ended below the high watermark no longer hold back the last stable offset."""
        if self._unreplicated_txns:
            self._unreplicated_txns = {f: e for f, e in self._unreplicated_txns.items() if e >= high_watermark}

    def remove_expired(self, now_ms: int) -> None:
        expired = [e.producer_id for e in self.entries.values() if self._is_expired(e, now_ms)]
        for producer_id in expired:
            del self.entries[producer_id]

    def _is_expired(self, entry: ProducerStateEntry, now_ms: int) -> bool:
        idle_ms = now_ms - entry.last_timestamp
        return entry.current_txn_first_offset is None and idle_ms >= self.producer_id_expiration_ms


def _check_sequence(batch: RecordBatch, entry: ProducerStateEntry) -> Refusal | None:
    sequence = batch.base_sequence
    if batch.producer_epoch != entry.producer_epoch:
        if sequence == 0 or entry.producer_epoch == NO_PRODUCER_EPOCH:
            return None
        return Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {batch.producer_id} starts its epoch {batch.producer_epoch} with sequence {sequence}, not 0",
        )
    last = entry.last_sequence
    if sequence == last + 1 or (sequence == 0 and last == _INT32_MAX) or entry.producer_epoch == NO_PRODUCER_EPOCH:
        return None
    return Refusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id} sent sequence {sequence} after {last}",
    )


def _check_coordinator_epoch(batch: RecordBatch, entry: ProducerStateEntry) -> Refusal | None:
    marker = parse_marker(batch)
    if marker is None or marker.coordinator_epoch >= entry.coordinator_epoch:
        return None
    return Refusal(
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        f"a marker of coordinator epoch {marker.coordinator_epoch} comes after one of {entry.coordinator_epoch}",
    )
