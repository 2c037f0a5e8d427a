"""One segment of a log: a data file, its two sparse indexes and its aborted transactions.

Owner: the `Log` it belongs to. The data file is opened on first use and may be closed at any time (`release`), so that
the number of open files follows the segments in use, not all segments.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from klamm.errors import ProtocolError
from klamm.log import names
from klamm.log.batch_reader import (
    MAX_RELATIVE_OFFSET,
    BatchPosition,
    FileTimestampOffset,
    find_offset,
    first_at_least,
    follows,
    read_batches,
    whole_batches,
)
from klamm.log.files import Data, FileHandle, Files
from klamm.log.indexes import CorruptIndexError, OffsetIndex, TimeIndex, TimestampOffset
from klamm.log.log_config import LogConfig
from klamm.log.open_segments import OpenSegments
from klamm.log.transaction_index import TransactionIndex
from klamm.protocol.record_batch import NO_TIMESTAMP, RecordBatch

_log = logging.getLogger(__name__)
_MAX_HINTS: Final = 256


class FoundFile(NamedTuple):
    """A data file that exists. The default is a new one."""

    size_bytes: int = 0
    created_ms: int = 0
    has_txn_index: bool = False


_NEW: Final = FoundFile()


class LogSegment:
    """`size_bytes` is the valid part of the data file: bytes after it do not belong to the log."""

    def __init__(
        self,
        files: Files,
        pool: OpenSegments,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        found: FoundFile = _NEW,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> None:
        self._files = files
        self.pool = pool
        self.base_offset = base_offset
        self.size_bytes = found.size_bytes
        self.created_ms = found.created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.used = False
        self._index_interval_bytes = config.index_interval_bytes
        self._bytes_since_last_index_entry = 0
        self._rolling_based_timestamp: int | None = None
        self._max_timestamp: TimestampOffset | None = None
        self.may_have_newer_records = False
        """Whether records after the last entries of the indexes may have the newest timestamp: the log was in use."""
        self._handle: FileHandle | None = None
        self._hints: dict[int, tuple[int, int, int]] = {}
        """Position, size and last offset of recent batches by their first offset: most readers are at the end."""
        self._directory = directory
        self._suffix = suffix
        max_index_bytes = config.segment_index_bytes
        self.offset_index = OffsetIndex(files, self.path(names.INDEX), base_offset, max_index_bytes)
        self.time_index = TimeIndex(files, self.path(names.TIME_INDEX), base_offset, max_index_bytes)
        self.txn_index = TransactionIndex(files, self.path(names.TXN_INDEX), base_offset, exists=found.has_txn_index)

    def __repr__(self) -> str:
        return f"LogSegment(base_offset={self.base_offset}, size_bytes={self.size_bytes})"

    def path(self, kind: str) -> str:
        return f"{self._directory}/{names.file_name(self.base_offset, kind)}{self._suffix}"

    def create(self, *, preallocate_bytes: int = 0) -> None:
        """Create the files of a new segment."""
        handle = self._files.open(self.path(names.LOG), create=True)
        try:
            handle.truncate(preallocate_bytes)
            self.offset_index.create()
            self.time_index.create()
            self.write_indexes()
        except OSError:
            handle.close()
            raise
        self._max_timestamp = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._handle = handle
        self.pool.opened(self)

    def open(self) -> FileHandle:
        """Return the data file and load the indexes. Rebuild indexes whose files are missing or corrupt."""
        if self._handle is None:
            handle = self._files.open(self.path(names.LOG))
            try:
                self._load_indexes(handle)
            except OSError:
                handle.close()
                raise
            self._handle = handle
            self.pool.opened(self)
        self.used = True
        return self._handle

    def _load_indexes(self, handle: FileHandle) -> None:
        try:
            self.offset_index.load()
            self.time_index.load()
            if self.offset_index.last_position() > self.size_bytes:
                raise CorruptIndexError("an entry points beyond the end of the data")
            if self.offset_index.entries and not self.time_index.entries and self.first_batch_timestamp(handle) > 0:
                raise CorruptIndexError("the time index has no entries")
        except (CorruptIndexError, ProtocolError, FileNotFoundError) as e:
            _log.warning("rebuilding the indexes of %s: %s", self.path(names.LOG), e)
            self._rebuild_indexes(handle, self.size_bytes)

    @property
    def index_memory_bytes(self) -> int:
        """The memory of the loaded entries of both indexes."""
        return OffsetIndex.ENTRY_BYTES * self.offset_index.entries + TimeIndex.ENTRY_BYTES * self.time_index.entries

    @property
    def is_open(self) -> bool:
        return self._handle is not None

    def release(self) -> None:
        """Close the file and free the memory of the indexes; the next use opens them again."""
        if self._handle is not None:
            self.max_timestamp_so_far()
            # Close it first, so that the indexes can be written at the limit of open files.
            self._close_handle()
            self.time_index.release()
            self.offset_index.release()

    def _close_handle(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
            self._hints.clear()
            self.pool.closed(self)

    # appending

    def append(self, parts: Sequence[Data], size: int, last_offset: int, first_offset: int, max_timestamp: int) -> None:
        """Write one batch at the end. If the disk fails, remove it and raise OSError."""
        handle = self._handle or self.open()
        known = self._max_timestamp or self.max_timestamp_so_far()
        position = self.size_bytes
        try:
            handle.pwrite(parts, position)
        except OSError:
            with contextlib.suppress(OSError):
                handle.truncate(position)
            raise
        self.size_bytes = position + size
        if position == 0:
            self._rolling_based_timestamp = max_timestamp
        if max_timestamp > known.timestamp:
            self._max_timestamp = known = TimestampOffset(max_timestamp, last_offset)
        if self._bytes_since_last_index_entry > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(known.timestamp, known.offset)
            self._bytes_since_last_index_entry = 0
        self._bytes_since_last_index_entry += size
        if len(self._hints) >= _MAX_HINTS:
            self._hints.clear()
        self._hints[first_offset] = position, size, last_offset

    def should_roll(self, size: int, max_timestamp: int, last_offset: int, config: LogConfig, now_ms: int) -> bool:
        if self.size_bytes > config.segment_bytes - size:
            return True
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self._handle is None:
            self.open()
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        if self.size_bytes == 0:
            return False
        limit_ms = config.segment_ms
        if config.max_compaction_lag_ms < limit_ms:
            limit_ms = config.max_segment_ms
        return self.time_waited_for_roll(now_ms, max_timestamp) > limit_ms - self.roll_jitter_ms

    def time_waited_for_roll(self, now_ms: int, max_timestamp: int) -> int:
        """Return how long the segment has been filling: by record time if records have one, else by the clock."""
        first = self._rolling_based_timestamp
        if first is None:
            first = self.first_batch_timestamp()
        return max_timestamp - first if first >= 0 else now_ms - self.created_ms

    def first_batch_timestamp(self, handle: FileHandle | None = None) -> int:
        """Return the newest timestamp of the first batch, or -1 for an empty segment."""
        if self._rolling_based_timestamp is None and self.size_bytes:
            batch = next((b for _, b in read_batches(handle or self.open(), 0, self.size_bytes)), None)
            self._rolling_based_timestamp = batch.max_timestamp if batch else None
        return NO_TIMESTAMP if self._rolling_based_timestamp is None else self._rolling_based_timestamp

    def max_timestamp_so_far(self) -> TimestampOffset:
        """Return the newest timestamp and the last offset of its batch."""
        if self._max_timestamp is None:
            self.open()
            if self._max_timestamp is None:
                is_incomplete = self.may_have_newer_records
                self._max_timestamp = self._read_largest_timestamp() if is_incomplete else self.time_index.last_entry()
        return self._max_timestamp

    def largest_timestamp(self) -> int:
        """Return the timestamp for retention: of the newest record, or of the file if no record has one."""
        newest = self.max_timestamp_so_far().timestamp
        return newest if newest >= 0 else self.created_ms

    def become_inactive(self, *, trim: bool = False) -> None:
        """Complete the indexes of a segment that no longer grows."""
        newest = self.max_timestamp_so_far()
        self.time_index.maybe_append(newest.timestamp, newest.offset)
        self.write_indexes()
        if trim:
            self.open().truncate(self.size_bytes)

    def write_indexes(self) -> None:
        """Bring both files up to date, the time index first.

        If the second write fails, the time index has more entries, which does no harm. With more entries in the offset
        index, a search by timestamp would skip records.
        """
        self.time_index.write_out()
        self.offset_index.write_out()

    # reading

    def find(self, offset: int) -> BatchPosition | None:
        """Return the batch that holds `offset`, or the first one after it."""
        handle = self._handle or self.open()
        self.used = True
        hint = self._hints.get(offset)
        if hint is not None:
            position, size, last_offset = hint
            return BatchPosition(position, size, offset, last_offset)
        return find_offset(handle, self.offset_index.lookup(offset), self.size_bytes, offset)

    def read(self, offset: int, max_bytes: int, end: int | None, *, min_one_message: bool) -> bytes | memoryview | None:
        """Return whole batches from the one that holds `offset` up to position `end`; None if all are before it."""
        start = self.find(offset)
        if start is None:
            return None
        end = self.size_bytes if end is None else end
        limit = max(max_bytes, start.size_bytes) if min_one_message else max_bytes
        size = min(limit, end - start.position)
        if size < start.size_bytes:
            return b""
        data = self.open().pread(size, start.position)
        if start.position + len(data) == end:
            return data
        indexed = self.offset_index.position_before(start.position + len(data)) - start.position
        whole = whole_batches(data, max(indexed, 0))
        return memoryview(data)[:whole]

    def batches(self, position: int = 0) -> Iterator[tuple[int, RecordBatch]]:
        return read_batches(self.open(), position, self.size_bytes)

    def batches_from(self, offset: int) -> Iterator[RecordBatch]:
        """Yield the batch that holds `offset` and all later ones."""
        found = self.find(offset)
        if found is not None:
            for _, batch in self.batches(found.position):
                yield batch

    def find_timestamp(self, timestamp: int, start_offset: int) -> FileTimestampOffset | None:
        """Return the first record at or after `start_offset` that is at least as new as `timestamp`.

        The header of a batch says whether it has one. If the records disagree, the start of the batch is returned, so
        that the records of at most two batches are inspected.
        """
        self.open()
        # Both indexes get their entries together, so no batch before the one found here is new enough, even if very
        # many batches after an older entry of the time index have its timestamp.
        newer = self.time_index.first_offset_at(timestamp)
        position = self.offset_index.last_position() if newer is None else self.offset_index.lookup(newer - 1)
        if timestamp == 0 and self.first_batch_timestamp() >= 0:
            position = 0  # An index entry for timestamp 0 at the first offset looks like a preallocated one.
        for _, batch in self.batches(max(position, self.offset_index.lookup(start_offset))):
            if batch.max_timestamp < timestamp or batch.last_offset < start_offset:
                continue
            found = first_at_least(batch, timestamp, start_offset)
            if found is not None:
                return found
            if batch.base_offset >= start_offset:
                return FileTimestampOffset(batch.max_timestamp, batch.base_offset, batch.partition_leader_epoch)
        return None

    def find_max_timestamp(self) -> FileTimestampOffset | None:
        """Return the first record that has the newest timestamp of the segment.

        Records before 1970 count as records without a timestamp, which is -1: as in Kafka, none of them is found.
        """
        newest = self.max_timestamp_so_far()
        for _, batch in self.batches(self.offset_index.lookup(newest.offset)):
            if batch.max_timestamp == newest.timestamp:
                found = first_at_least(batch, newest.timestamp, batch.base_offset)
                if found is None and newest.timestamp == NO_TIMESTAMP:
                    return None
                offset = found.offset if found is not None else batch.last_offset
                return FileTimestampOffset(newest.timestamp, offset, batch.partition_leader_epoch)
        return None

    def read_next_offset(self) -> int:
        """Return the offset after the last record."""
        self.open()
        next_offset = self.base_offset
        for _, batch in self.batches(self.offset_index.last_position()):
            next_offset = batch.next_offset
        return next_offset

    # recovering, truncating, renaming

    def recover(self, on_batch: Callable[[RecordBatch], None] | None = None) -> int:
        """Check every batch, rebuild both indexes and cut the file after the last valid batch.

        Return how many bytes were cut off. `on_batch` is called for every valid batch.
        """
        handle = self._handle or self._open_for_recovery()
        file_bytes = handle.size()
        valid_bytes = self._rebuild_indexes(handle, file_bytes, on_batch)
        self._cut_file(self._handle or self._open_for_recovery(), valid_bytes)
        return file_bytes - valid_bytes

    def _rebuild_indexes(
        self, handle: FileHandle, file_bytes: int, on_batch: Callable[[RecordBatch], None] | None = None
    ) -> int:
        """Build both indexes from the data file; return where the valid batches end."""
        self.offset_index.create()
        self.time_index.create()
        newest = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        valid_bytes = indexed_bytes = 0
        last_offset = self.base_offset - 1
        try:
            for position, batch in read_batches(handle, 0, file_bytes):
                if not follows(batch, last_offset, self.base_offset) or not batch.is_valid():
                    break
                last_offset = batch.last_offset
                if batch.max_timestamp > newest.timestamp:
                    newest = TimestampOffset(batch.max_timestamp, last_offset)
                if position - indexed_bytes > self._index_interval_bytes:
                    self.offset_index.append(last_offset, position)
                    self.time_index.maybe_append(newest.timestamp, newest.offset)
                    indexed_bytes = position
                valid_bytes = position + batch.size_bytes
                if on_batch is not None:
                    on_batch(batch)
        except ProtocolError as e:
            _log.warning("%s has invalid bytes at position %d: %s", self.path(names.LOG), valid_bytes, e)
        self._max_timestamp = newest
        self._rolling_based_timestamp = None
        self.time_index.maybe_append(newest.timestamp, newest.offset)
        self.write_indexes()
        return valid_bytes

    def _open_for_recovery(self) -> FileHandle:
        self._handle = self._files.open(self.path(names.LOG))
        self.pool.opened(self)
        return self._handle

    def _cut_file(self, handle: FileHandle, size: int) -> None:
        handle.truncate(size)
        self.size_bytes = size
        self._hints.clear()
        self._bytes_since_last_index_entry = 0

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove the batch that holds `offset` and all later ones."""
        handle = self.open()
        found = self.find(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if found is not None:
            self._cut_file(handle, found.position)
        if self.size_bytes == 0:
            self.created_ms = now_ms
            self._rolling_based_timestamp = None
        self._max_timestamp = self._read_largest_timestamp()

    def _read_largest_timestamp(self) -> TimestampOffset:
        """Read the batches after the last entry of the offset index: the time index knows the newest one before it."""
        newest = self.time_index.last_entry()
        with contextlib.suppress(ProtocolError):  # A fetch of these records reports it.
            for _, batch in self.batches(self.offset_index.last_position()):
                if batch.max_timestamp > newest.timestamp:
                    newest = TimestampOffset(batch.max_timestamp, batch.last_offset)
        return newest

    def moved_to(self, directory: str) -> None:
        """Note the new name of the log's directory."""
        self._directory = directory
        self._rename_paths()

    def change_suffix(self, suffix: str) -> None:
        """Rename all files of the segment; `""` makes them part of the log.

        The data file comes last: without a data file, a half-renamed segment is not taken for one.
        """
        self._close_handle()
        old = {kind: self.path(kind) for kind in names.SEGMENT_SUFFIXES}
        self._suffix = suffix
        for kind in reversed(names.SEGMENT_SUFFIXES):
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(old[kind], self.path(kind))
        self._rename_paths()

    def _rename_paths(self) -> None:
        self.offset_index.path = self.path(names.INDEX)
        self.time_index.path = self.path(names.TIME_INDEX)
        self.txn_index.path = self.path(names.TXN_INDEX)

    def paths(self) -> list[str]:
        """Return the files that the segment can have, the data file first."""
        return [self.path(kind) for kind in names.SEGMENT_SUFFIXES]

    def remove_stale_indexes(self) -> bool:
        """Remove the index files with entries that were removed. The next use builds them from the data file."""
        stale = [index.path for index in (self.offset_index, self.time_index) if index.is_file_stale]
        for path in stale:
            with contextlib.suppress(OSError):
                self._files.unlink(path)
        return bool(stale)

    def discard(self) -> None:
        """Free the memory and close the file without writing: the segment is about to be deleted."""
        self.offset_index.forget()
        self.time_index.forget()
        self.txn_index.close()
        self._close_handle()
