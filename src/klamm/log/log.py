"""One partition's log as the rest of the broker uses it: append, read, find, cut.

Owner: the broker loop. A disk that fails is reported to the host once and answered with KAFKA_STORAGE_ERROR from then
on. Nothing here waits: fsync and the removal of files are jobs for the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar
from uuid import UUID

from klamm.errors import ErrorCode, ProtocolError
from klamm.log import names
from klamm.log.checkpoints import encode_partition_metadata
from klamm.log.files import is_exhausted
from klamm.log.indexes import CorruptIndexError, TimestampOffset
from klamm.log.leader_epoch_cache import EpochEndOffset
from klamm.log.local_log import LocalLog
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult, ReadResult, TimestampOffsetResult
from klamm.log.segment import LogSegment
from klamm.log.transaction_index import AbortedTxn
from klamm.log.validator import Checked, Prepared, Rejection, check_batch, validate
from klamm.protocol.record_batch import (
    NO_TIMESTAMP,
    OFFSET_AND_LENGTH,
    PREFIX,
    RecordBatch,
    batches,
)

_log = logging.getLogger(__name__)
T = TypeVar("T")
Checkable: TypeAlias = "memoryview | bytes | bytearray | Checked"
"""A batch as it was sent, or the result of its validation."""


class Log(LocalLog):
    """Made by `LogLoader`. What can go wrong is a value; a broken disk is reported to the host once."""

    def __repr__(self) -> str:
        return (
            f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset}, "
            f"high_watermark={self.high_watermark}, dir={self.dir})"
        )

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open: how far a read_committed consumer may read."""
        unstable = self._first_unstable_offset
        if unstable is not None and unstable < self.high_watermark:
            return max(unstable, self.log_start_offset)
        return self.high_watermark

    def _is_usable(self) -> bool:
        """Opens the log when this is its first use; False when its disk fails or has failed."""
        if not self.is_open and not self.is_failed:
            self.guard("opening", self.open)
        return not self.is_failed and self.is_open

    # appending

    def append_as_leader(
        self, records: Checkable, leader_epoch: int, *, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendResult:
        """Append the one batch of `records` at the end of the log, in the given leader epoch.

        `records` may also be what `check` returned for them.
        """
        if not self._is_usable():
            return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        now_ms = self.clock.now_ms()
        if type(records) is memoryview:
            checked = validate(records, self._config, origin, now_ms, is_plain=self._is_plain)
        elif isinstance(records, bytes | bytearray):
            checked = validate(memoryview(records), self._config, origin, now_ms, is_plain=self._is_plain)
        else:
            checked = records
        append_time_ms = NO_TIMESTAMP
        if type(checked) is RecordBatch:
            batch = checked
        elif type(checked) is Prepared:
            batch, append_time_ms = checked
        else:
            assert isinstance(checked, Rejection)
            return self._refused(checked.error, checked.message)._replace(record_errors=checked.record_errors)
        if batch.producer_id >= 0 and (known := self._check_producer(batch, origin)) is not None:
            return known
        batch.base_offset = self.log_end_offset
        batch.partition_leader_epoch = leader_epoch
        return self._append_batch(batch, append_time_ms, now_ms)

    def check(self, records: memoryview, now_ms: int, max_unpacked: int | None = None) -> Checked | None:
        """Validate what a client sent, for `append_as_leader`; None if it unpacks to more than `max_unpacked`."""
        return validate(
            records, self._config, AppendOrigin.CLIENT, now_ms, is_plain=self._is_plain, max_unpacked=max_unpacked
        )

    def _append_batch(self, batch: RecordBatch, append_time_ms: int, now_ms: int) -> AppendResult:
        view = batch.view
        size = len(view)
        if size > self._config.segment_bytes:
            return self._refused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the record batch has {size} bytes, segment.bytes is {self._config.segment_bytes}",
            )
        base_offset, last_offset = batch.base_offset, batch.base_offset + batch.last_offset_delta
        prefix = PREFIX.pack(base_offset, batch.batch_length, batch.partition_leader_epoch)
        try:
            segment = self._maybe_roll(size, batch.max_timestamp, base_offset, last_offset, now_ms)
            if batch.partition_leader_epoch != self.leader_epochs.latest_epoch:
                self.assign_epoch(batch.partition_leader_epoch, base_offset)
            newest = TimestampOffset(batch.max_timestamp, last_offset)
            segment.append((prefix, view[PREFIX.size :]), size, last_offset, base_offset, newest)
            self.log_end_offset = last_offset + 1
            if batch.producer_id >= 0:
                self._update_producers(segment, (batch,))
            flush_pending = self._flush_if_due()
        except OSError as e:
            return self._storage_failure(e, "appending")
        return AppendResult(
            ErrorCode.NONE,
            base_offset,
            last_offset,
            append_time_ms,
            self.log_start_offset,
            (),
            None,
            batch.record_count,
            size,
            False,
            flush_pending,
        )

    def append_as_follower(self, records: memoryview | bytes | bytearray) -> AppendResult:
        """Appends what a leader sent, offsets and epochs as they are. An unfinished batch at the end is left out.

        OFFSET_OUT_OF_RANGE: the first batch begins before the end of the log. CORRUPT_MESSAGE: a checksum is wrong.
        """
        if not self._is_usable():
            return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        view = records if type(records) is memoryview else memoryview(records)
        try:
            sent = list(batches(view))
        except ProtocolError as e:
            return self._refused(ErrorCode.CORRUPT_MESSAGE, str(e))
        if not sent:
            return AppendResult(ErrorCode.NONE, log_start_offset=self.log_start_offset)
        if (refusal := self._check_sent(sent)) is not None:
            return refusal
        now_ms = self.clock.now_ms()
        try:
            self._append_sent(sent, now_ms)
            flush_pending = self._flush_if_due()
        except OSError as e:
            return self._storage_failure(e, "appending")
        return AppendResult(
            ErrorCode.NONE,
            sent[0].base_offset,
            sent[-1].last_offset,
            log_start_offset=self.log_start_offset,
            records_count=sum(b.record_count for b in sent),
            bytes=sum(b.size_bytes for b in sent),
            flush_pending=flush_pending,
        )

    def _check_sent(self, sent: list[RecordBatch]) -> AppendResult | None:
        expected = self.log_end_offset
        for batch in sent:
            if batch.base_offset < expected or batch.last_offset_delta < 0:
                message = f"a batch begins at offset {batch.base_offset} where {expected} is the next"
                return self._refused(ErrorCode.OFFSET_OUT_OF_RANGE, message)
            if not batch.is_valid():
                message = f"the batch at offset {batch.base_offset} has a wrong checksum"
                return self._refused(ErrorCode.CORRUPT_MESSAGE, message)
            expected = batch.next_offset
        return None

    def _append_sent(self, sent: list[RecordBatch], now_ms: int) -> None:
        for batch in sent:
            size, last_offset = batch.size_bytes, batch.last_offset
            segment = self._maybe_roll(size, batch.max_timestamp, batch.base_offset, last_offset, now_ms)
            if batch.partition_leader_epoch != self.leader_epochs.latest_epoch:
                self.assign_epoch(batch.partition_leader_epoch, batch.base_offset)
            newest = TimestampOffset(batch.max_timestamp, last_offset)
            segment.append((batch.view,), size, last_offset, batch.base_offset, newest)
            self.log_end_offset = last_offset + 1
            if batch.producer_id >= 0:
                self._update_producers(segment, (batch,))

    def _check_producer(self, batch: RecordBatch, origin: AppendOrigin) -> AppendResult | None:
        """The answer to a duplicate or to a batch out of order; None lets the batch through."""
        if origin is AppendOrigin.CLIENT and (duplicate := self._duplicate(batch)) is not None:
            return duplicate
        try:
            refusal = self.producers.validate(batch, origin)
        except ProtocolError as e:
            return self._refused(ErrorCode.INVALID_RECORD, str(e))
        return self._refused(*refusal) if refusal is not None else None

    def find_duplicate(self, records: Checkable) -> AppendResult | None:
        """What `append_as_leader` answers a client whose batch is in the log already; None for all other batches."""
        batch: RecordBatch | Rejection
        if isinstance(records, memoryview | bytes | bytearray):
            batch = check_batch(memoryview(records), self._config, AppendOrigin.CLIENT)
        else:
            batch = records.batch if type(records) is Prepared else records  # type: ignore[assignment]
        if not self._is_usable():
            return None
        return self._duplicate(batch) if type(batch) is RecordBatch and batch.producer_id >= 0 else None

    def _duplicate(self, batch: RecordBatch) -> AppendResult | None:
        known = self.producers.find_duplicate(batch)
        if known is None:
            return None
        return AppendResult(
            ErrorCode.NONE,
            known.first_offset,
            known.last_offset,
            known.timestamp,
            self.log_start_offset,
            records_count=batch.record_count,
            is_duplicate=True,
            flush_pending=self.recovery_point <= known.last_offset < self._flush_requested_offset,
        )

    def _update_producers(self, segment: LogSegment, appended: Iterable[RecordBatch]) -> None:
        for batch in appended:
            aborted = self.producers.update(batch)
            if aborted is not None:
                segment.txn_index.append(aborted)
            if batch.is_transactional or batch.is_control:
                self._first_unstable_offset = self.producers.first_unstable_offset

    def _refused(self, error: ErrorCode, message: str) -> AppendResult:
        return AppendResult(error, log_start_offset=self.log_start_offset, error_message=message)

    def _storage_failure(self, error: OSError, doing: str) -> AppendResult:
        if is_exhausted(error):
            _log.warning("%s: too many open files while %s: the client may try again", self.dir, doing)
            self.pool.let_go()
            return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, "the broker has too many open files")
        self.is_failed = True
        self.host.failed(self.log_dir, error, f"{doing} to {self.dir}")
        return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk failed: {error.strerror or error}")

    def guard(self, doing: str, action: Callable[[], T]) -> T | ErrorCode:
        """Runs `action`; a failing disk becomes KAFKA_STORAGE_ERROR and takes the directory offline."""
        if self.is_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            return action()
        except OSError as e:
            self._storage_failure(e, doing)
        except (ProtocolError, CorruptIndexError) as e:
            _log.error("%s holds bytes that are not what was written, found while %s: %s", self.dir, doing, e)
            return ErrorCode.CORRUPT_MESSAGE
        return ErrorCode.KAFKA_STORAGE_ERROR

    # reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        max_offset: int,
        min_one_message: bool = True,
        include_aborted: bool = False,
    ) -> ReadResult | ErrorCode:
        """Whole batches from the one that holds `offset`, none of them reaching `max_offset`."""
        if not self.is_failed and not self.log_start_offset <= offset <= self.log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if self.damages and any(d.start_offset <= offset < d.end_offset for d in self.damages):
            return ErrorCode.CORRUPT_MESSAGE
        return self.guard(
            "reading", lambda: self._read(offset, max_bytes, max_offset, min_one_message, include_aborted)
        )

    def _read(
        self, offset: int, max_bytes: int, max_offset: int, min_one_message: bool, include_aborted: bool
    ) -> ReadResult:
        if offset >= max_offset or offset == self.log_end_offset:
            return ReadResult(b"")
        segment = self.segments.floor(offset) or self.segments.first
        while True:
            if segment.base_offset >= max_offset:
                return ReadResult(b"")
            following = self.segments.higher(segment.base_offset)
            end = None
            if max_offset < (following.base_offset if following is not None else self.log_end_offset):
                last = segment.find(max_offset)
                end = last.position if last is not None else None
            found = segment.read(offset, max_bytes, end, min_one_message=min_one_message)
            if found is not None or following is None:
                data = found.records if found is not None else b""
                aborted = self._aborted_in(offset, data) if include_aborted and len(data) else ()
                return ReadResult(data, aborted)
            segment = following

    def _aborted_in(self, offset: int, data: bytes | memoryview) -> tuple[AbortedTxn, ...]:
        if not any(s.txn_index.exists for s in self.segments):
            return ()
        position = last = 0
        while position < len(data):
            last = position
            position += 12 + OFFSET_AND_LENGTH.unpack_from(data, position)[1]
        return self.collect_aborted(offset, RecordBatch(memoryview(data), last).next_offset)

    def collect_aborted(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        """The aborted transactions with records in [start_offset, end_offset)."""
        found: list[AbortedTxn] = []
        for segment in self.segments.between(start_offset, self.log_end_offset + 1):
            aborted, complete = segment.txn_index.collect(start_offset, end_offset)
            found += aborted
            if complete:
                break
        return tuple(found)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffsetResult | ErrorCode | None:
        """The first record that is at least as new as `timestamp`, None when there is none."""

        def search() -> TimestampOffsetResult | None:
            for segment in self.segments:
                if segment.largest_timestamp() >= timestamp:
                    found = segment.find_timestamp(timestamp, self.log_start_offset)
                    if found is not None:
                        return TimestampOffsetResult(*found)
            return None

        return self.guard("searching by time", search)

    def segment_starts(self, timestamp: int | None = None) -> list[int] | ErrorCode:
        """Where segments begin, of those with nothing newer than `timestamp` (ListOffsets v0)."""

        def search() -> list[int]:
            found = [s for s in self.segments if timestamp is None or s.largest_timestamp() <= timestamp]
            return [max(s.base_offset, self.log_start_offset) for s in found]

        return self.guard("searching by time", search)

    def max_timestamp_offset(self) -> TimestampOffsetResult | ErrorCode | None:
        """The record with the newest timestamp (ListOffsets -3), None for an empty log."""

        def search() -> TimestampOffsetResult | None:
            newest = max(self.segments, key=lambda s: s.max_timestamp_so_far().timestamp)
            found = newest.find_max_timestamp()
            return TimestampOffsetResult(*found) if found is not None else None

        return self.guard("searching by time", search)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Where an epoch ended. The latest epochs of a log that nobody used yet are known without opening it."""
        if self.summary is not None and 0 <= leader_epoch in (self.summary.latest_epoch, self._unopened_epoch):
            return EpochEndOffset(leader_epoch, self.log_end_offset)
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # offsets

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, held between the start and the end of the log; returns it."""
        self.high_watermark = offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        if self._first_unstable_offset is not None:
            self.producers.on_high_watermark(offset)
            self._first_unstable_offset = self.producers.first_unstable_offset
        return offset

    def increment_log_start_offset(self, offset: int) -> ErrorCode:
        """What is before `offset` is gone for readers; segments go at the next retention pass."""
        if self.is_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if offset > self.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.recovery_point = max(self.recovery_point, offset)
            return self._done("moving the log start", lambda: self.leader_epochs.truncate_from_start(offset))
        return ErrorCode.NONE

    def assign_topic_id(self, topic_id: UUID) -> ErrorCode:
        """Writes `partition.metadata` once; another id than the known one is INCONSISTENT_TOPIC_ID."""
        if self.topic_id is not None:
            return ErrorCode.NONE if self.topic_id == topic_id else ErrorCode.INCONSISTENT_TOPIC_ID
        path = f"{self.dir}/{names.PARTITION_METADATA}"

        def write() -> None:
            self.files.write_atomic(path, encode_partition_metadata(topic_id), sync=False)
            self.host.sync_soon(self.log_dir, path, self.dir)

        done = self.guard("writing the topic id", write)
        if isinstance(done, ErrorCode):
            return done
        self.topic_id = topic_id
        return ErrorCode.NONE

    # what may fail on the disk, as values

    def truncate_to(self, offset: int) -> ErrorCode:
        """Removes the batch that holds `offset` and all after it; the next record gets `offset`."""
        return self._done("truncating", lambda: self._truncate_to(offset))

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> ErrorCode:
        """Removes everything; the next record gets `offset`."""
        return self._done("truncating", lambda: self._truncate_fully_and_start_at(offset, log_start_offset))

    def skip_to(self, offset: int) -> ErrorCode:
        """The next record gets `offset`, which is after the end of the log."""
        return self._done("rolling", lambda: self._skip_to(offset))

    def roll(self) -> ErrorCode:
        """Starts a new segment at the end of the log."""
        return self._done("rolling", lambda: self._roll(self.log_end_offset))

    def flush(self) -> ErrorCode:
        """Forces everything to the disk; done when `recovery_point` has reached the end of the log."""
        return self._done("flushing", lambda: self._flush(self.log_end_offset))

    def flush_if_older(self, now_ms: int) -> None:
        """`flush.ms`: what has waited that long is forced to the disk."""
        if self.log_end_offset > self.recovery_point and now_ms - self.last_flush_ms >= self._config.flush_ms:
            self.flush()

    def delete_old_segments(self, now_ms: int) -> int:
        """Removes the segments that retention or the log start offset no longer keeps; returns how many."""
        if not self._may_have_old_segments(now_ms):
            return 0
        deleted = self.guard("deleting old segments", lambda: self._delete_old_segments(now_ms))
        return 0 if isinstance(deleted, ErrorCode) else deleted

    def _done(self, doing: str, action: Callable[[], object]) -> ErrorCode:
        result = self.guard(doing, action)
        return result if isinstance(result, ErrorCode) else ErrorCode.NONE
