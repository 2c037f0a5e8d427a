"""The state of a log's producers: the last five batches of each, open transactions, the last stable offset.

It is kept in memory and restored from the newest snapshot and the batches after it. A leader validates a batch before
the write and updates the state after it. Followers and recovery only update it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple

from klamm.errors import ErrorCode
from klamm.log.end_markers import EndTransactionMarker, parse_marker
from klamm.log.producer_entry import MAX_SEQUENCE, NUM_BATCHES_TO_RETAIN, BatchMetadata, ProducerStateEntry
from klamm.log.producer_history import Change, ProducerHistory, UnreplicatedEnd
from klamm.log.transaction_index import AbortedTxn
from klamm.log.verification_state import NOT_REQUIRED, TransactionCheck, VerificationGuard, VerificationStates
from klamm.model import ConnectionOrder, TransactionVersion
from klamm.protocol.record_batch import NO_PRODUCER_EPOCH, RecordBatch

MAX_PRODUCERS: Final = 20_000
"""How many producers a log remembers. Any client can send a batch with a new id, and rolling a segment writes a
snapshot of all on the loop. A forgotten producer may continue, like one whose state has expired."""
LATE_TRANSACTION_BUFFER_MS: Final = 300_000
"""How much longer than the longest timeout a transaction may be silent before it counts as late."""


class AppendOrigin(Enum):
    """The origin of a batch, which decides which checks apply."""

    CLIENT = auto()
    COORDINATOR = auto()
    REPLICATION = auto()


class Refusal(NamedTuple):
    """The reason why a batch of a producer is not appended."""

    error: ErrorCode
    message: str


class ProducerStateManager:
    """Owner: the `Log`. `ProducerSnapshots` handles the files."""

    def __init__(self, producer_id_expiration_ms: int = 86_400_000) -> None:
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.entries: OrderedDict[int, ProducerStateEntry] = OrderedDict()
        """By producer id, ordered by the time of the last batch. Those whose batches were cut off come last."""
        self.verifications = VerificationStates()
        self.rebuilt_after: ConnectionOrder = 0
        """The youngest connection of the broker when a truncation removed all entries or read them from the files."""
        self._ongoing_txns: OrderedDict[int, int] = OrderedDict()
        """First offset -> producer id, in the order of the offsets."""
        self._unreplicated_txns: deque[UnreplicatedEnd] = deque()
        """Both offsets ascend. Only the earliest start matters. An entry is dropped if a later one started earlier."""
        self.history = ProducerHistory()

    def clear(self, offset: int) -> None:
        """Forget everything. The next batch has this offset or a later one."""
        self.history.restart(offset)
        self.entries.clear()
        self.verifications.clear()
        self._ongoing_txns.clear()
        self._unreplicated_txns.clear()

    def load(self, entries: list[ProducerStateEntry], offset: int, now_ms: int) -> None:
        """Start from a snapshot of `offset`, without the producers that have been silent for too long."""
        self.clear(offset)
        for entry in entries:
            if not self._is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
        open_txns = ((e.current_txn_first_offset, p) for p, e in self.entries.items())
        self._ongoing_txns.update(sorted((first, p) for first, p in open_txns if first is not None))

    # validation before a leader appends

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        entry = self.entries.get(batch.producer_id)
        return entry.find_duplicate(batch) if entry is not None else None

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of this epoch is open. A newer epoch may belong to a transaction after it."""
        entry = self.entries.get(producer_id)
        return (
            entry is not None and entry.current_txn_first_offset is not None and entry.producer_epoch == producer_epoch
        )

    def is_late(self, producer_id: int, producer_epoch: int, connection: ConnectionOrder) -> bool:
        """Whether a batch on this connection may belong to an aborted transaction of the same epoch.

        A producer aborts without an answer to all its batches, and one of them may still be on its way. So the
        connections that existed when the marker was written carry no batch of a later transaction. All replicas of the
        partition know this: one of them may lead it next.
        """
        entry = self.entries.get(producer_id)
        if entry is None or entry.producer_epoch != producer_epoch:
            return False
        return 0 < connection <= max(entry.aborted_after, self.rebuilt_after)

    def is_next_open(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> bool:
        """Whether a transaction of this epoch is open, and this coordinator has ended one before it here."""
        entry = self.entries.get(producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset is not None
            and entry.producer_epoch == producer_epoch
            and entry.coordinator_epoch == coordinator_epoch
        )

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int
    ) -> VerificationGuard | ErrorCode | None:
        """Return the guard for the first append of a transaction; None if the transaction is open already.

        INVALID_PRODUCER_EPOCH: a newer epoch has written, or is being verified.
        """
        entry = self.entries.get(producer_id)
        if entry is not None and producer_epoch < entry.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.has_open_transaction(producer_id, producer_epoch):
            return None
        guard = self.verifications.begin(producer_id, producer_epoch, sequence, now_ms)
        return ErrorCode.INVALID_PRODUCER_EPOCH if guard is None else guard

    def is_verifying(self, producer_id: int, producer_epoch: int, guard: VerificationGuard) -> bool:
        """Whether the guard still allows the first append of the transaction, or the transaction is open already."""
        state = self.verifications.get(producer_id)
        is_current = state is not None and state.guard is guard
        return is_current or self.has_open_transaction(producer_id, producer_epoch)

    def validate(
        self, batch: RecordBatch, origin: AppendOrigin, transaction: TransactionCheck | None = None
    ) -> Refusal | None:
        """Check epoch and sequence. An unknown producer may start anywhere: its state may have expired.

        `transaction` adds the checks of a leader for transactional batches and markers.
        """
        entry = self.entries.get(batch.producer_id)
        if entry is not None and batch.producer_epoch < entry.producer_epoch:
            return Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} has epoch {batch.producer_epoch}, "
                f"the log has already seen {entry.producer_epoch}",
            )
        if transaction is not None and (refusal := self._check_transaction(batch, entry, origin, transaction)):
            return refusal
        if entry is None:
            return None
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

    def _check_transaction(
        self, batch: RecordBatch, entry: ProducerStateEntry | None, origin: AppendOrigin, check: TransactionCheck
    ) -> Refusal | None:
        if not batch.is_transactional:
            return None
        if batch.is_control:
            refusal = _check_operator(batch, entry) if check.is_of_operator else None
            return refusal or _check_marker_epoch(batch, entry, check.version)
        producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
        if check.guard is NOT_REQUIRED or self.has_open_transaction(producer_id, producer_epoch):
            return None
        state = self.verifications.get(producer_id)
        if state is None or state.guard is not check.guard:
            return Refusal(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has no transaction that includes this partition"
            )
        if origin is AppendOrigin.CLIENT:
            return _check_first_sequence(batch, entry, check.version, state.lowest_sequence)
        return None

    # after the write

    def update(
        self,
        batch: RecordBatch,
        youngest_connection: Callable[[], ConnectionOrder] = lambda: 0,
        high_watermark: int | None = None,
    ) -> AbortedTxn | None:
        """Take an appended batch into account. For an abort marker, return the entry of the transaction index.

        `youngest_connection` returns the last one that the broker has accepted: see `is_late`. Without a high
        watermark the batch is an old one that is read again, and probably replicated.
        """
        entry = self.entries.get(batch.producer_id)
        before = entry.copied() if entry is not None else None
        if entry is None:
            entry = self.entries[batch.producer_id] = ProducerStateEntry(batch.producer_id)
            if len(self.entries) > MAX_PRODUCERS:
                self._forget_oldest()
        else:
            self.entries.move_to_end(batch.producer_id)
        aborted = dropped_ends = None
        if not batch.is_control:
            self._take_data(entry, batch)
        elif (marker := parse_marker(batch)) is not None:
            aborted, dropped_ends = self._end_transaction(entry, batch, marker)
            if marker.is_abort:
                entry.aborted_after = youngest_connection()
        self.history.note((batch.last_offset, batch.producer_id, before, dropped_ends), high_watermark)
        return aborted

    def _take_data(self, entry: ProducerStateEntry, batch: RecordBatch) -> None:
        entry.use_epoch(batch.producer_epoch)
        known = entry.batches
        if len(known) == NUM_BATCHES_TO_RETAIN:
            known = known[1:]
        metadata = BatchMetadata(batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp)
        entry.batches = (*known, metadata)
        entry.last_timestamp = batch.max_timestamp
        if batch.is_transactional:
            self.verifications.end(batch.producer_id)
            if entry.current_txn_first_offset is None:
                entry.current_txn_first_offset = batch.base_offset
                self._ongoing_txns[batch.base_offset] = batch.producer_id

    def _forget_oldest(self) -> None:
        """Forget the producers that have been silent longest, but never an open transaction."""
        for producer_id in list(islice(self.entries, len(self.entries) - MAX_PRODUCERS)):
            if self.entries[producer_id].current_txn_first_offset is None:
                del self.entries[producer_id]

    def _end_transaction(
        self, entry: ProducerStateEntry, batch: RecordBatch, marker: EndTransactionMarker
    ) -> tuple[AbortedTxn | None, tuple[UnreplicatedEnd, ...] | None]:
        self.verifications.end(batch.producer_id)
        first_offset = entry.current_txn_first_offset
        entry.use_epoch(batch.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = batch.max_timestamp
        entry.current_txn_first_offset = None
        if first_offset is None:
            return None, None
        self._ongoing_txns.pop(first_offset, None)
        dropped: list[UnreplicatedEnd] = []
        while self._unreplicated_txns and self._unreplicated_txns[-1][1] >= first_offset:
            dropped.append(self._unreplicated_txns.pop())
        self._unreplicated_txns.append((batch.base_offset, first_offset))
        if not marker.is_abort:
            return None, tuple(dropped)
        last_stable_offset = next(iter(self._ongoing_txns), batch.base_offset + 1)
        return AbortedTxn(batch.producer_id, first_offset, batch.base_offset, last_stable_offset), tuple(dropped)

    # truncation

    def truncate_to(self, offset: int) -> bool:
        """Undo the batches that end at `offset` or later; return False if not all of them are remembered."""
        if not self.history.reaches(offset):
            return False
        for change in self.history.take_from(offset):
            self._undo(change)
        self._ongoing_txns = OrderedDict(sorted(self._ongoing_txns.items()))
        self.verifications.clear()
        return True

    def _undo(self, change: Change) -> None:
        last_offset, producer_id, before, dropped_ends = change
        entry = self.entries.pop(producer_id, None)
        if entry is not None and entry.current_txn_first_offset is not None:
            self._ongoing_txns.pop(entry.current_txn_first_offset, None)
        if before is not None:
            self.entries[producer_id] = before
            if before.current_txn_first_offset is not None:
                self._ongoing_txns[before.current_txn_first_offset] = producer_id
        if dropped_ends is not None:
            ends = self._unreplicated_txns
            if ends and ends[-1][0] == last_offset:
                ends.pop()
            ends.extend(reversed(dropped_ends))

    # transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the first transaction that is open, or whose end is not replicated yet."""
        ongoing = next(iter(self._ongoing_txns), None)
        if not self._unreplicated_txns:
            return ongoing
        unreplicated = self._unreplicated_txns[0][1]
        return unreplicated if ongoing is None else min(ongoing, unreplicated)

    @property
    def oldest_open_timestamp(self) -> int | None:
        """When the producer of the first open transaction wrote last."""
        for producer_id in self._ongoing_txns.values():
            return self.entries[producer_id].last_timestamp
        return None

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions that ended below the high watermark no longer hold back the last stable offset."""
        unreplicated = self._unreplicated_txns
        while unreplicated and unreplicated[0][0] < high_watermark:
            unreplicated.popleft()

    def remove_expired(self, now_ms: int) -> None:
        expired = [e.producer_id for e in self.entries.values() if self._is_expired(e, now_ms)]
        for producer_id in expired:
            del self.entries[producer_id]
        self.verifications.remove_expired(now_ms, self.producer_id_expiration_ms)

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
    if sequence == last + 1 or (sequence == 0 and last == MAX_SEQUENCE) or entry.producer_epoch == NO_PRODUCER_EPOCH:
        return None
    return Refusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id} sent sequence {sequence} after {last}",
    )


def _check_first_sequence(
    batch: RecordBatch, entry: ProducerStateEntry | None, version: TransactionVersion, lowest_sequence: int
) -> Refusal | None:
    """Check the first batch of a transaction, whose producer this log may not know."""
    sequence = batch.base_sequence
    is_known = entry is not None and bool(entry.batches)
    if version.bumps_epoch and not is_known:
        lowest_sequence = 0
    if sequence <= lowest_sequence:
        return None
    return Refusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id} sent sequence {sequence} before {lowest_sequence}",
    )


def _check_marker_epoch(
    batch: RecordBatch, entry: ProducerStateEntry | None, version: TransactionVersion
) -> Refusal | None:
    """From version 2 on the coordinator bumps the epoch for every marker, so an equal one is late (KAFKA-19446).

    It is a repetition if nothing is open: the answer was lost, or the coordinator moved (KAFKA-19999).
    """
    if entry is None or not version.bumps_epoch or batch.producer_epoch != entry.producer_epoch:
        return None
    if entry.current_txn_first_offset is None:
        return None
    return Refusal(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"a marker of producer {batch.producer_id} has the epoch {batch.producer_epoch} of the open transaction",
    )


def _check_operator(batch: RecordBatch, entry: ProducerStateEntry | None) -> Refusal | None:
    """A higher epoch in a marker fences the producer or the coordinator for good: only a coordinator may raise one."""
    if entry is None or entry.current_txn_first_offset is None or batch.producer_epoch != entry.producer_epoch:
        return Refusal(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {batch.producer_id} has no open transaction of epoch {batch.producer_epoch}",
        )
    marker = parse_marker(batch)
    if marker is None or marker.coordinator_epoch <= max(entry.coordinator_epoch, 0):
        return None
    return Refusal(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        f"a client claims to be the coordinator of epoch {marker.coordinator_epoch}; "
        f"the last marker has {entry.coordinator_epoch}",
    )


def _check_coordinator_epoch(batch: RecordBatch, entry: ProducerStateEntry) -> Refusal | None:
    marker = parse_marker(batch)
    if marker is None or marker.coordinator_epoch >= entry.coordinator_epoch:
        return None
    return Refusal(
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        f"a marker of coordinator epoch {marker.coordinator_epoch} comes after one of {entry.coordinator_epoch}",
    )
