"""Compacts segments: the newest record of every key stays. File work only, done in the background thread.

The rules for tombstones, transaction markers and idle producers are Kafka's: a tombstone or a marker whose transaction
has no records left gets a delete horizon and is removed after that time. The last batch of each producer is kept, if
necessary without records.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from klamm.log import names
from klamm.log.batch_reader import read_batches
from klamm.log.end_markers import parse_marker
from klamm.log.files import Files
from klamm.log.log_config import LogConfig
from klamm.log.open_segments import OpenSegments
from klamm.log.segment import LogSegment
from klamm.log.transaction_index import AbortedTxn
from klamm.protocol.record_batch import Record, RecordBatch, build_batch, records

_MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Source:
    """A segment as it was when the cleaning was planned."""

    base_offset: int
    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """`sources` are all segments before `end_offset`; those from `first_dirty_offset` on were never cleaned.

    `last_records` has for every active producer the offset of its last data batch (-1: only markers) and its epoch.
    """

    directory: str
    config: LogConfig
    sources: tuple[Source, ...]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    aborted: tuple[AbortedTxn, ...]
    last_records: dict[int, tuple[int, int]]
    max_keys: int = 500_000


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """The segment that replaces a group of segments; its files have the suffix `.cleaned`."""

    replaced: tuple[int, ...]
    base_offset: int
    size_bytes: int
    modified_ms: int
    has_txn_index: bool


@dataclass(slots=True)
class OffsetMap:
    """Key -> newest offset, by digest. Covers everything up to `latest_offset`."""

    max_keys: int
    latest_offset: int = -1
    offsets: dict[bytes, int] = field(default_factory=dict)

    def put(self, key: bytes, offset: int) -> bool:
        """Add a key; return False if the map is full."""
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if len(self.offsets) >= self.max_keys and digest not in self.offsets:
            return False
        self.offsets[digest] = offset
        return True

    def is_newest(self, key: bytes, offset: int) -> bool:
        return offset >= self.offsets.get(blake2b(key, digest_size=_DIGEST_BYTES).digest(), -1)


class TransactionTracker:
    """Tracks which batches belong to aborted transactions, and which markers are still needed by records."""

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._waiting = [(t.first_offset, t) for t in aborted]
        heapq.heapify(self._waiting)
        self._aborting: dict[int, AbortedTxn] = {}
        self._seen: set[int] = set()
        self._committing: set[int] = set()
        self.kept: list[AbortedTxn] = []

    def _advance(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            txn = heapq.heappop(self._waiting)[1]
            self._aborting.setdefault(txn.producer_id, txn)

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._advance(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborting:
            self._seen.add(batch.producer_id)
            return True
        self._committing.add(batch.producer_id)
        return False

    def can_discard_marker(self, batch: RecordBatch) -> bool:
        """Whether no record of the transaction is left. A marker that is still needed keeps its index entry."""
        self._advance(batch.last_offset)
        marker = parse_marker(batch)
        if marker is None:
            return batch.record_count == 0
        producer_id = batch.producer_id
        if not marker.is_abort:
            if producer_id in self._committing:
                self._committing.discard(producer_id)
                return False
            return True
        txn = self._aborting.pop(producer_id, None)
        if txn is None or producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        self.kept.append(txn)
        return False


def build_offset_map(files: Files, plan: CleanPlan) -> OffsetMap:
    """Map every key of the dirty part to its newest offset, as far as the map has room."""
    offset_map = OffsetMap(plan.max_keys)
    # a transaction that ended in the clean part has its marker there: it would never be seen to end
    tracker = TransactionTracker([t for t in plan.aborted if t.last_offset >= plan.first_dirty_offset])
    dirty = [s for s in plan.sources if _end_of(plan, s) > plan.first_dirty_offset]
    for source in dirty:
        for batch in _batches(files, source):
            if batch.is_control:
                tracker.can_discard_marker(batch)
            elif batch.last_offset >= plan.first_dirty_offset and not tracker.is_aborted(batch):
                for record in records(batch):
                    is_dirty = record.key is not None and record.offset >= plan.first_dirty_offset
                    if is_dirty and not offset_map.put(record.key or b"", record.offset):
                        return offset_map
            offset_map.latest_offset = max(offset_map.latest_offset, batch.last_offset)
        offset_map.latest_offset = max(offset_map.latest_offset, _end_of(plan, source) - 1)
    return offset_map


def clean(files: Files, plan: CleanPlan) -> tuple[list[CleanedSegment], int]:
    """Write the cleaned segments; return them and the offset before which everything is clean now."""
    offset_map = build_offset_map(files, plan)
    covered = [s for s in plan.sources if s.base_offset <= offset_map.latest_offset]
    tracker = TransactionTracker(plan.aborted)
    cleaned = [_clean_group(files, plan, group, offset_map, tracker) for group in _groups(plan, covered)]
    files.fsync_path(plan.directory)
    return cleaned, offset_map.latest_offset + 1


def _clean_group(
    files: Files, plan: CleanPlan, group: list[Source], offset_map: OffsetMap, tracker: TransactionTracker
) -> CleanedSegment:
    segment = LogSegment(files, OpenSegments(), plan.directory, group[0].base_offset, plan.config, suffix=names.CLEANED)
    segment.create()
    try:
        for source in group:
            for batch in _batches(files, source):
                kept = _filter(batch, plan, offset_map, tracker)
                if kept is not None:
                    max_timestamp = RecordBatch(memoryview(kept)).max_timestamp
                    segment.append((kept,), len(kept), batch.last_offset, batch.base_offset, max_timestamp)
                while tracker.kept:
                    segment.txn_index.append(tracker.kept.pop(0))
        segment.become_inactive()
    finally:
        segment.release()
    for path in segment.paths():
        with contextlib.suppress(FileNotFoundError):
            files.fsync_path(path)
            files.set_modified(path, group[-1].modified_ms)
    return CleanedSegment(
        tuple(s.base_offset for s in group),
        segment.base_offset,
        segment.size_bytes,
        group[-1].modified_ms,
        segment.txn_index.exists,
    )


def _filter(
    batch: RecordBatch, plan: CleanPlan, offset_map: OffsetMap, tracker: TransactionTracker
) -> bytes | memoryview | None:
    """Return what stays of a batch: itself, a smaller one, an empty one, or nothing."""
    horizon = batch.delete_horizon_ms
    expired = horizon is not None and horizon <= plan.now_ms
    if batch.is_control:
        discard = tracker.can_discard_marker(batch)
        sets_horizon = discard and horizon is None
        kept = [] if discard and expired else list(records(batch))
        original_count = batch.record_count
    else:
        rows = [] if tracker.is_aborted(batch) else list(records(batch))
        kept = [r for r in rows if _is_kept(r, offset_map, expired)]
        sets_horizon = horizon is None and any(r.value is None for r in kept)
        original_count = batch.record_count
    if kept:
        if len(kept) == original_count and not sets_horizon:
            return batch.view
        return _rebuild(batch, kept, plan.now_ms + plan.config.delete_retention_ms if sets_horizon else horizon)
    return _rebuild(batch, [], None) if _is_last_of_producer(batch, plan) else None


def _is_kept(record: Record, offset_map: OffsetMap, expired: bool) -> bool:
    if record.offset > offset_map.latest_offset:
        return True
    if record.key is None:
        return False
    return offset_map.is_newest(record.key, record.offset) and (record.value is not None or not expired)


def _is_last_of_producer(batch: RecordBatch, plan: CleanPlan) -> bool:
    last = plan.last_records.get(batch.producer_id) if batch.producer_id >= 0 else None
    if last is None:
        return False
    last_data_offset, producer_epoch = last
    if last_data_offset >= 0:
        return batch.last_offset == last_data_offset
    return batch.is_control and batch.producer_epoch == producer_epoch


def _rebuild(batch: RecordBatch, kept: list[Record], horizon_ms: int | None) -> bytes:
    """Make a batch with the same offsets, producer and codec for fewer records."""
    is_append_time = bool(batch.timestamp_type)
    return build_batch(
        kept,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        compression=batch.compression if kept else 0,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_control=batch.is_control,
        is_transactional=batch.is_transactional,
        partition_leader_epoch=batch.partition_leader_epoch,
        timestamp_type=batch.timestamp_type,
        max_timestamp=batch.max_timestamp if is_append_time or not kept else None,
        base_timestamp=batch.max_timestamp if not kept else None,
        delete_horizon_ms=horizon_ms,
    )


def _groups(plan: CleanPlan, sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Yield neighbours that fit into one segment together."""
    group: list[Source] = []
    size = 0
    for source in sources:
        fits = size + source.size_bytes <= plan.config.segment_bytes
        if group and (not fits or _end_of(plan, source) - group[0].base_offset > _MAX_RELATIVE_OFFSET):
            yield group
            group, size = [], 0
        group.append(source)
        size += source.size_bytes
    if group:
        yield group


def _end_of(plan: CleanPlan, source: Source) -> int:
    later = [s.base_offset for s in plan.sources if s.base_offset > source.base_offset]
    return min(later, default=plan.end_offset)


def _batches(files: Files, source: Source) -> Iterator[RecordBatch]:
    handle = files.open(source.path)
    try:
        for _, batch in read_batches(handle, 0, source.size_bytes):
            yield batch
    finally:
        handle.close()


def discard(files: Files, plan: CleanPlan) -> None:
    """Remove cleaned files that will not be used."""
    for source in plan.sources:
        for kind in names.SEGMENT_SUFFIXES:
            for mark in (names.CLEANED, names.SWAP):
                files.unlink(f"{plan.directory}/{names.file_name(source.base_offset, kind)}{mark}")
