"""One partition's log as the rest of the broker uses it: write, read, search, truncate.

Owner: the broker loop. If a disk fails, the log reports it to the host once and returns KAFKA_STORAGE_ERROR from then
on. Nothing here blocks: fsync and the removal of files are jobs for the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from klamm.errors import ErrorCode, ProtocolError
from klamm.log import names
from klamm.log.checkpoints import encode_partition_metadata
from klamm.log.disk_guard import DiskGuard
from klamm.log.files import Data
from klamm.log.flusher import LogFlusher
from klamm.log.indexes import CorruptIndexError
from klamm.log.leader_epoch_cache import EpochEndOffset, LeaderEpochCache
from klamm.log.local_log import LocalLog
from klamm.log.log_config import INT64_MAX, LogConfig
from klamm.log.log_contents import Damage, LoadedLog, UnopenedLog
from klamm.log.log_environment import LogEnvironment
from klamm.log.producer_history import NO_HISTORY
from klamm.log.producer_state import ProducerStateManager
from klamm.log.results import ReadResult, TimestampOffsetResult
from klamm.log.segment import LogSegment
from klamm.log.segments import LogSegments
from klamm.log.unwritten_batches import UnwrittenBatches
from klamm.log.validator import is_plain
from klamm.model import NO_EPOCH, TopicPartition
from klamm.protocol.record_batch import RecordBatch

_log = logging.getLogger(__name__)


class Log:
    """Made by `LogLoader`. `dir` is the partition's directory, `log_dir` the one that holds it.

    The log owns its offsets. `local` has its files and the state that they back: segments, leader epochs, producers. A
    log that the last run left complete is opened when one of these is first used. Its offsets, its size and its latest
    epoch are known without that.
    """

    _local: LocalLog

    def __init__(
        self,
        env: LogEnvironment,
        topic_partition: TopicPartition,
        log_dir: str,
        directory: str,
        config: LogConfig,
        contents: LoadedLog | UnopenedLog,
        topic_id: UUID | None = None,
    ) -> None:
        self.env = env
        self.topic_partition = topic_partition
        self.log_dir = log_dir
        self.dir = directory
        self.topic_id = topic_id
        self.is_open = False
        self.damages: tuple[Damage, ...] = ()
        """Gaps between the segments. A follower fetches these records again."""
        self.lost_tail: Damage | None = None
        """The last records are missing, and the log ends before them."""
        self.log_start_offset = self.high_watermark = contents.log_start_offset
        self.log_end_offset = contents.log_end_offset
        self.truncation_count = 0
        self.unwritten = UnwrittenBatches()
        """Batches that a client must send again before later ones of the same producer."""
        self.clock = env.clock
        self.cleaner_offset = 0
        """Batches before it have been compacted."""
        self._first_unstable_offset: int | None = None
        self._history = NO_HISTORY
        self._unfinished_cut: Callable[[], None] | None = None
        """Of a truncation that failed half-way. It is repeated before the log is used."""
        self.disk = DiskGuard(env, log_dir, directory)
        self.flusher = LogFlusher(env, topic_partition, log_dir, self.disk, lambda *at: self.local.prepare_flush(*at))
        self.is_flush_queued = False
        self.unopened: UnopenedLog | None = None
        """The summary and the epochs of a log that is not open."""
        self.update_config(config)
        if isinstance(contents, LoadedLog):
            self._take(contents)
            self.damages, self.lost_tail = contents.damages, contents.lost_tail
        else:
            self.unopened = contents
            self.flusher.start_at(contents.recovery_point)

    def __repr__(self) -> str:
        offsets = f"{self.log_start_offset}..{self.log_end_offset}, high_watermark={self.high_watermark}"
        return f"Log({self.topic_partition}, {offsets}, dir={self.dir})"

    # opening

    def open(self) -> None:
        """Load a log that was not used before, or finish a failed truncation. Raises OSError if the disk fails."""
        unopened = self.unopened
        if unopened is None:
            self._finish_truncation()
            return
        known_end = self.log_end_offset
        self._take(unopened.open_files(self.log_start_offset, self.recovery_point, self.config))
        if self.log_end_offset != known_end:
            _log.error("%s ends at offset %d; its summary says %d", self.dir, self.log_end_offset, known_end)
        if unopened.assigned_epoch != NO_EPOCH:
            self._local.assign_epoch(unopened.assigned_epoch, self.log_end_offset)
        else:
            self._local.sync_epochs_soon()

    def _take(self, loaded: LoadedLog) -> None:
        self._local = loaded.local
        self._history = loaded.local.producers.history
        self.log_start_offset, self.log_end_offset = loaded.log_start_offset, loaded.log_end_offset
        self.flusher.start_at(loaded.recovery_point, is_recovered=loaded.is_recovered)
        self.high_watermark = min(max(self.high_watermark, self.log_start_offset), self.log_end_offset)
        self._history.forget_before(self.high_watermark)
        self.is_open, self.unopened = True, None
        if loaded.dropped_paths:
            self.env.host.delete_later(self.log_dir, loaded.dropped_paths, self.config.file_delete_delay_ms)
        self._update_first_unstable_offset()

    @property
    def local(self) -> LocalLog:
        self.open()
        return self._local

    @property
    def segments(self) -> LogSegments:
        return self.local.segments

    @property
    def leader_epochs(self) -> LeaderEpochCache:
        return (self._local if self.is_open else self.local).leader_epochs

    @property
    def producers(self) -> ProducerStateManager:
        return (self._local if self.is_open else self.local).producers

    # state

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self.is_plain = is_plain(config)
        self.has_flush_limits = config.flush_ms != INT64_MAX or config.flush_messages != INT64_MAX
        if self.is_open:
            self._local.update_config(config)

    @property
    def recovery_point(self) -> int:
        """Batches before it are on the disk: recovery after an unclean stop begins there."""
        return self.flusher.recovery_point

    def set_cleaner_offset(self, offset: int) -> None:
        self.cleaner_offset = min(offset, self.log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """No transaction is open before it: a read_committed consumer may read up to here."""
        unstable = self._first_unstable_offset
        if unstable is not None and unstable < self.high_watermark:
            return max(unstable, self.log_start_offset)
        return self.high_watermark

    @property
    def contents(self) -> LocalLog | UnopenedLog:
        """The files, or what is known of them without opening the log."""
        return self.unopened or self._local

    @property
    def size_bytes(self) -> int:
        return self.contents.size_bytes

    # leader epochs

    @property
    def latest_epoch(self) -> int | None:
        """The newest leader epoch that the log knows."""
        return self.contents.latest_epoch

    @property
    def gapless_end(self) -> tuple[int | None, int]:
        """The end of the records that are all there: the epoch of the last one, and the offset after it."""
        if not self.damages:
            return self.contents.last_record_epoch(self.log_end_offset), self.log_end_offset
        end = min(damage.start_offset for damage in self.damages)
        return self.leader_epochs.epoch_for_offset(end - 1), end

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Return where an epoch ended. The latest epochs of an unopened log are known without opening it."""
        if self.unopened is not None and self.unopened.ends_with_epoch(leader_epoch):
            return EpochEndOffset(leader_epoch, self.log_end_offset)
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Note that an epoch begins: for a new leader at the end of its log, for a follower with the first batch.

        An epoch without records is not kept over a restart, so assigning one does not open the log.
        """
        if self.unopened is not None and start_offset == self.log_end_offset:
            self.unopened.assign_epoch(leader_epoch)
        else:
            self.local.assign_epoch(leader_epoch, start_offset)

    # writing

    def is_usable(self) -> bool:
        """Open the log if this is its first use; return False if its disk fails or has failed."""
        if not self.is_open or self._unfinished_cut is not None:
            self.disk.run("opening", self.open)
        return self.is_open and self._unfinished_cut is None and not self.disk.is_failed

    def write(self, batch: RecordBatch, parts: Sequence[Data], size: int, last_offset: int, now_ms: int) -> None:
        """Append a checked batch, whose bytes are `parts`, to an open log. Raises OSError if the disk fails."""
        local, base_offset, max_timestamp = self._local, batch.base_offset, batch.max_timestamp
        segment = local.segments.active
        if segment.should_roll(size, max_timestamp, last_offset, self.config, now_ms):
            segment = self._roll(base_offset)
        if batch.partition_leader_epoch != local.leader_epochs.latest_epoch:
            local.assign_epoch(batch.partition_leader_epoch, base_offset)
        if batch.is_control:
            local.prepare_marker(segment, batch)
        segment.append(parts, size, last_offset, base_offset, max_timestamp)
        self.log_end_offset = last_offset + 1
        if batch.producer_id >= 0:
            local.update_producers(segment, batch, self.high_watermark)
            if batch.is_transactional or batch.is_control:
                self._first_unstable_offset = local.producers.first_unstable_offset

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
        """Return whole batches from the one that holds `offset` on; none of them reaches `max_offset`."""
        is_failed = self.disk.is_failed
        if not is_failed and not self.log_start_offset <= offset <= self.log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if self.damages and any(d.start_offset <= offset < d.end_offset for d in self.damages):
            return ErrorCode.CORRUPT_MESSAGE
        if is_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if offset >= max_offset or offset == self.log_end_offset:
            return ReadResult(b"")
        try:
            local = self._local if self.is_open and self._unfinished_cut is None else self.local
            data = local.read(offset, max_bytes, max_offset, self.log_end_offset, min_one_message)
            aborted = local.aborted_in(offset, data) if include_aborted and len(data) else ()
            return ReadResult(data, aborted)
        except (OSError, ProtocolError, CorruptIndexError) as e:
            return self.disk.error_code(e, "reading")

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffsetResult | ErrorCode | None:
        """Return the first record that is at least as new as `timestamp`, or None."""
        return self.disk.run("searching", lambda: self.local.offset_for_timestamp(timestamp, self.log_start_offset))

    def segment_starts(self, timestamp: int | None = None) -> list[int] | ErrorCode:
        """Return the starts of the segments that have no record newer than `timestamp` (ListOffsets v0)."""
        return self.disk.run("searching", lambda: self.local.segment_starts(timestamp, self.log_start_offset))

    def max_timestamp_offset(self) -> TimestampOffsetResult | ErrorCode | None:
        """Return the record with the newest timestamp (ListOffsets -3), or None for an empty log."""
        return self.disk.run("searching", lambda: self.local.max_timestamp_offset())

    # offsets

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, bounded by the start and the end of the log; return it."""
        self.high_watermark = offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        if self._history.oldest < offset:
            self._history.forget_before(offset)
        if self._first_unstable_offset is not None:
            self._update_first_unstable_offset()
        return offset

    def _update_first_unstable_offset(self) -> None:
        producers = self._local.producers
        producers.on_high_watermark(self.high_watermark)
        self._first_unstable_offset = producers.first_unstable_offset

    def increment_log_start_offset(self, offset: int) -> ErrorCode:
        """Hide the records before `offset` from readers; the next retention pass deletes their segments."""
        if self.disk.is_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if offset > self.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset <= self.log_start_offset:
            return ErrorCode.NONE
        self.log_start_offset = offset
        self.flusher.advance_to(offset)
        return self.disk.done("moving the start of", lambda: self.leader_epochs.truncate_from_start(offset))

    def assign_topic_id(self, topic_id: UUID) -> ErrorCode:
        """Write `partition.metadata` once; return INCONSISTENT_TOPIC_ID if another id is known."""
        if self.topic_id is not None:
            return ErrorCode.NONE if self.topic_id == topic_id else ErrorCode.INCONSISTENT_TOPIC_ID
        path = f"{self.dir}/{names.PARTITION_METADATA}"

        def write() -> None:
            self.env.files.write_atomic(path, encode_partition_metadata(topic_id), sync=False)
            self.env.host.sync_soon(self.log_dir, path, self.dir)
            self.topic_id = topic_id

        return self.disk.done("writing the topic id of", write)

    # rolling and flushing

    def roll(self) -> ErrorCode:
        """Start a new segment at the end of the log."""
        return self.disk.done("rolling", lambda: self._roll(self.log_end_offset))

    def skip_to(self, offset: int) -> ErrorCode:
        """Move the end of the log up to `offset`. A segment that begins there keeps this over a restart."""

        def skip() -> None:
            self.open()
            self.log_end_offset = offset
            self._roll(offset)

        return self.disk.done("rolling", skip)

    def _roll(self, base_offset: int) -> LogSegment:
        local = self.local
        segment = local.roll(base_offset)
        if segment is None:
            return local.segments.active
        self.flusher.flush(base_offset)
        return segment

    def flush(self) -> ErrorCode:
        """Force everything to the disk, which is done when `recovery_point` has reached the end of the log."""
        return self.disk.done("flushing", lambda: self.flusher.flush(self.log_end_offset))

    @property
    def flush_due_ms(self) -> int | None:
        """When `flush.ms` requires the next flush; None if everything is on the disk, or without such a limit."""
        if self.config.flush_ms == INT64_MAX or self.log_end_offset <= self.recovery_point:
            return None
        return self.flusher.last_flush_ms + self.config.flush_ms

    def flush_if_older(self, now_ms: int) -> None:
        """Flush if records have waited for `flush.ms`. Called by the flush queue, which has removed the log."""
        if self.log_end_offset > self.recovery_point and now_ms - self.flusher.last_flush_ms >= self.config.flush_ms:
            self.flush()

    def flush_if_due(self) -> bool:
        """Flush if `flush.messages` is reached; return whether the flush is in progress."""
        if not self.is_flush_queued and self.config.flush_ms != INT64_MAX:
            self.is_flush_queued = True
            self.env.host.unflushed(self)
        if self.log_end_offset - self.flusher.requested_offset < self.config.flush_messages:
            return False
        self.flusher.flush(self.log_end_offset)
        return self.recovery_point < self.log_end_offset

    # truncating and deleting

    def truncate_to(self, offset: int) -> ErrorCode:
        """Remove the batch that holds `offset` and all later ones; the next record gets `offset`."""
        return self.disk.done("truncating", lambda: self._truncate_to(offset))

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> ErrorCode:
        """Remove everything; the next record gets `offset`."""
        start = offset if log_start_offset is None else log_start_offset
        return self.disk.done("truncating", lambda: self._truncate_fully(offset, start))

    def _truncate_to(self, offset: int) -> None:
        self._finish_truncation()
        if offset >= self.log_end_offset:
            self.contents.forget_epochs_from(self.log_end_offset)
        elif offset < self.segments.first.base_offset:
            self._truncate_fully(offset, offset)
        else:
            self._truncate(min(self.log_start_offset, offset), offset, self._local.prepare_truncation(offset))

    def _truncate_fully(self, offset: int, log_start_offset: int) -> None:
        local = self.local
        self._truncate(log_start_offset, offset, lambda: local.truncate_fully(offset))

    def _truncate(self, start: int, end: int, cut: Callable[[], None]) -> None:
        """Set the ends first: if the rest fails, the log claims no records that are gone, and the rest is repeated."""
        self.truncation_count += 1
        self.log_start_offset, self.log_end_offset = start, end
        self.high_watermark = max(min(self.high_watermark, end), start)
        self.damages = tuple(d for d in self.damages if d.end_offset <= end)
        self.cleaner_offset = min(self.cleaner_offset, end)
        self.flusher.truncate_to(end)
        self._unfinished_cut = cut
        self._finish_truncation()

    def _finish_truncation(self) -> None:
        if self._unfinished_cut is not None:
            self._unfinished_cut()
            self._local.truncate_producers(self.log_start_offset, self.log_end_offset, self.high_watermark)
            self._unfinished_cut = None
            self._update_first_unstable_offset()

    def forget_lost_tail(self) -> None:
        """Note that a follower fetches the missing records again."""
        self.lost_tail = None

    def delete_oldest(self, segments: Sequence[LogSegment]) -> None:
        """Delete the first segments of the log and advance its start. Raises OSError if the disk fails."""
        local = self.local
        if len(segments) == len(local.segments):
            self._roll(self.log_end_offset)
        following = local.segments.higher(segments[-1].base_offset)
        assert following is not None, "the active segment is never deleted"
        if following.base_offset > self.log_start_offset:
            self.log_start_offset = following.base_offset
            self.flusher.advance_to(following.base_offset)
            local.leader_epochs.truncate_from_start(following.base_offset)
        local.delete(segments)

    # closing and moving

    def prepare_close(self) -> list[str]:
        """Complete the files of the log; return those that must be forced to the disk before `finish_close`."""
        return self.local.close(self.recovery_point, self.log_end_offset) if self.is_open else []

    def finish_close(self, paths: Sequence[str]) -> None:
        """Force the files to the disk. Nothing is left to recover then."""
        for path in filter(self.env.files.exists, paths):
            self.env.files.fsync_path(path)
        self.flusher.complete(self.log_end_offset)

    def remove_stale_indexes(self) -> bool:
        return self.is_open and self._local.remove_stale_indexes()

    def close_handles(self) -> None:
        """Close every file as it is: after a failure, or before the directory is removed."""
        if self.is_open:
            self._local.discard()

    def rename_dir(self, directory: str) -> None:
        """Move the directory of the log; open files stay open."""
        self.env.files.rename(self.dir, directory)
        self.dir = directory
        self.disk.moved_to(directory)
        if self.is_open:
            self._local.moved_to(directory)
