"""The files of one partition's log and the state that goes with them: segments, epochs, producers, offsets.

Everything here raises OSError when the disk does; `Log` turns that into answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from klamm.log import names
from klamm.log.jobs import fsync_job
from klamm.log.lazy_log import LazyLog
from klamm.log.log_config import INT64_MAX
from klamm.log.producer_rebuild import rebuild_producers
from klamm.log.segment import LogSegment
from klamm.model import NO_EPOCH

_log = logging.getLogger(__name__)


class LocalLog(LazyLog):
    """The files of a log, once it is open."""

    # rolling

    def _maybe_roll(self, size: int, max_timestamp: int, base_offset: int, last_offset: int, now_ms: int) -> LogSegment:
        segment = self.segments.active
        if segment.should_roll(size, max_timestamp, last_offset, self._config, now_ms):
            return self._roll(base_offset)
        return segment

    def _roll(self, base_offset: int) -> LogSegment:
        """Completes the active segment and starts one at `base_offset`; an empty one that begins there stays."""
        active = self.segments.active
        if active.base_offset == base_offset and active.size_bytes == 0:
            return active
        active.become_inactive(trim=self._config.preallocate)
        segment = self._new_segment(base_offset)
        self.segments.add(segment)
        self._take_snapshot(base_offset)
        self._flush(base_offset)
        return segment

    def _skip_to(self, offset: int) -> None:
        """Ends the log at `offset`, although no record is right before it. A segment that begins there says so."""
        self.log_end_offset = offset
        self._roll(offset)

    def _new_segment(self, base_offset: int) -> LogSegment:
        config = self._config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        segment = LogSegment(
            self.files,
            self.pool,
            self.dir,
            base_offset,
            config,
            created_ms=self.clock.now_ms(),
            roll_jitter_ms=self._rng.randrange(jitter_ms) if jitter_ms > 0 else 0,
        )
        segment.create(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
        return segment

    def _take_snapshot(self, offset: int) -> None:
        """Writes down the producers as of `offset`, unless the newest snapshot is that one."""
        if offset > (self.snapshots.latest_offset or 0):
            self._unsynced_snapshots.append(self.snapshots.write(offset, self.producers.entries.values()))

    # flushing

    def _flush(self, offset: int) -> None:
        """Asks for everything before `offset` to be forced to the disk, off the loop.

        One flush of a log is under way at a time: what is asked for meanwhile goes with the next one.
        """
        self._flush_requested_offset = max(self._flush_requested_offset, offset)
        if offset <= self.recovery_point or self._flush_under_way:
            return
        paths = self._prepare_flush(offset)
        truncations = self.truncation_count
        self._flush_under_way = True

        def commit() -> None:
            self._flush_under_way = False
            if truncations == self.truncation_count:
                self.recovery_point = max(self.recovery_point, offset)
                self.has_unflushed_files = False
                self.last_flush_ms = self.clock.now_ms()
                self.host.flushed(self.topic_partition, self.recovery_point)
            if self._flush_requested_offset > self.recovery_point and not self.is_failed:
                self._flush_again()

        def abandon() -> None:
            self._flush_under_way = False

        self.host.submit(fsync_job(self.files, self.log_dir, paths, commit, abandon))

    def _flush_again(self) -> None:
        try:
            self._flush(self._flush_requested_offset)
        except OSError as e:
            self.host.failed(self.log_dir, e, f"flushing {self.dir}")

    def _prepare_flush(self, offset: int) -> list[str]:
        """Writes the indexes out; returns the files that must reach the disk before `offset` counts as recovered."""
        paths: list[str] = []
        for segment in self.segments.between(self.recovery_point, offset):
            segment.offset_index.write_out()
            segment.time_index.write_out()
            paths += segment.paths()
        paths += self._unsynced_snapshots
        self._unsynced_snapshots = []
        if self.leader_epochs.is_dirty:
            paths.append(self.leader_epochs.path)
            self.leader_epochs.is_dirty = False
        paths.append(self.dir)
        return paths

    @property
    def flush_due_ms(self) -> int | None:
        """When `flush.ms` wants the end of the log on the disk; None when it is there, or there is no such limit."""
        if self._config.flush_ms == INT64_MAX or self.log_end_offset <= self.recovery_point:
            return None
        return self.last_flush_ms + self._config.flush_ms

    def _flush_if_due(self) -> bool:
        if self.queued_flush_ms is None and self._config.flush_ms != INT64_MAX:
            self.host.unflushed(self)
        if self.log_end_offset - self._flush_requested_offset < self._config.flush_messages:
            return False
        self._flush(self.log_end_offset)
        return self.recovery_point < self.log_end_offset

    # cutting

    def _truncate_to(self, offset: int) -> None:
        if offset >= self.log_end_offset:
            if self.is_open:
                self.leader_epochs.truncate_from_end(self.log_end_offset)
            self._unopened_epoch = NO_EPOCH
            return
        if offset < self.segments.first.base_offset:
            self._truncate_fully_and_start_at(offset, None)
            return
        self.truncation_count += 1
        self._delete_segments([s for s in self.segments if s.base_offset > offset])
        self.segments.active.truncate_to(offset, self.clock.now_ms())
        self._set_end(offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
        self._rebuild_producers()

    def _truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None) -> None:
        self.truncation_count += 1
        self._delete_segments(list(self.segments))
        self.snapshots.remove_where(above=-1)
        self.segments.add(self._new_segment(offset))
        self.leader_epochs.clear()
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self._set_end(offset)
        self.high_watermark = max(self.high_watermark, self.log_start_offset)
        self._rebuild_producers()

    def _set_end(self, offset: int) -> None:
        self.log_end_offset = offset
        self.has_unflushed_files = True
        self.damages = tuple(d for d in self.damages if d.end_offset <= offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaner_offset = min(self.cleaner_offset, offset)
        self._flush_requested_offset = min(self._flush_requested_offset, offset)

    def _rebuild_producers(self) -> None:
        rebuild_producers(
            self.producers,
            self.snapshots,
            self.segments,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            now_ms=self.clock.now_ms(),
        )
        self.producers.on_high_watermark(self.high_watermark)
        self._first_unstable_offset = self.producers.first_unstable_offset

    # retention

    def _delete_old_segments(self, now_ms: int) -> int:
        deleted = self._delete_while(lambda s, following: following <= self.log_start_offset)
        if not self._config.is_deleted:
            return deleted
        if self._config.retention_bytes >= 0:
            deleted += self._delete_while(self._beyond_retention_bytes())
        if self._config.retention_ms >= 0:
            limit_ms = now_ms - self._config.retention_ms
            deleted += self._delete_while(lambda s, following: s.largest_timestamp() < limit_ms)
        return deleted

    def _beyond_retention_bytes(self) -> Callable[[LogSegment, int], bool]:
        excess = self.size_bytes - self._config.retention_bytes

        def is_excess(segment: LogSegment, following: int) -> bool:
            nonlocal excess
            excess -= segment.size_bytes
            return excess >= 0

        return is_excess

    def _delete_while(self, condition: Callable[[LogSegment, int], bool]) -> int:
        """Deletes the oldest segments for which the condition holds, never what is not replicated yet."""
        bases = self.segments.base_offsets
        deletable: list[LogSegment] = []
        for segment, following in zip(self.segments, [*bases[1:], self.log_end_offset], strict=True):
            is_active = segment is self.segments.active
            if (is_active and segment.size_bytes == 0) or self.high_watermark < following:
                break
            # an active segment has no following one yet: it never goes because of the log start offset
            if not condition(segment, self.log_end_offset + 1 if is_active else following):
                break
            deletable.append(segment)
        if deletable:
            if len(deletable) == len(self.segments):
                self._roll(self.log_end_offset)
            self._advance_start(deletable[-1])
            self._delete_segments(deletable)
        return len(deletable)

    def _advance_start(self, last_deleted: LogSegment) -> None:
        following = self.segments.higher(last_deleted.base_offset)
        assert following is not None, "the active segment is never deleted"
        if following.base_offset > self.log_start_offset:
            self.log_start_offset = following.base_offset
            self.recovery_point = max(self.recovery_point, following.base_offset)
            self.leader_epochs.truncate_from_start(following.base_offset)

    def _delete_segments(self, segments: Sequence[LogSegment]) -> None:
        """Takes segments out of the log at once; their files are renamed and removed later."""
        if not segments:
            return
        _log.info("Deleting %d segments of %s, the first at %d", len(segments), self.dir, segments[0].base_offset)
        paths: list[str] = []
        for segment in segments:
            self.segments.remove(segment)
            segment.discard()
            segment.change_suffix(names.DELETED)
            paths += segment.paths()
            snapshot = self.snapshots.mark_deleted(segment.base_offset)
            if snapshot is not None:
                paths.append(snapshot)
        self.host.delete_later(self.log_dir, paths, self._config.file_delete_delay_ms)

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Puts a cleaned segment in the place of others. It has the suffix `.swap`, and that name is on the disk.

        So a restart finishes the exchange instead of undoing it.
        """
        assert self.segments.active not in old, "the active segment is never cleaned"
        for segment in old:
            self.segments.remove(segment)
        self.segments.add(new)
        self._delete_replaced(old, new.base_offset)
        new.change_suffix("")

    def _delete_replaced(self, old: Sequence[LogSegment], new_base_offset: int) -> None:
        paths: list[str] = []
        for segment in old:
            segment.discard()
            segment.change_suffix(names.DELETED)
            paths += segment.paths()
            if segment.base_offset != new_base_offset:
                snapshot = self.snapshots.mark_deleted(segment.base_offset)
                paths += [snapshot] if snapshot is not None else []
        self.host.delete_later(self.log_dir, paths, self._config.file_delete_delay_ms)

    # closing

    def close(self) -> None:
        """Completes every file, takes a snapshot and forces all to the disk: nothing is left to recover."""
        self.finish_close(self.prepare_close())

    def prepare_close(self) -> list[str]:
        """The first half of `close`: the files are complete. Returns those that must be forced to the disk."""
        if not self.is_open:
            return []
        self.segments.active.become_inactive(trim=self._config.preallocate)
        self._take_snapshot(self.log_end_offset)
        paths = self._prepare_flush(self.log_end_offset + 1)
        for segment in self.segments:
            segment.release()
        return paths

    def finish_close(self, paths: Sequence[str]) -> None:
        for path in paths:
            if self.files.exists(path):
                self.files.fsync_path(path)
        self.recovery_point = self.log_end_offset
        self.has_unflushed_files = False

    def close_handles(self) -> None:
        """Lets go of every file as it is: after a failure, or before the directory is removed."""
        if self.is_open:
            for segment in self.segments:
                segment.discard()

    def rename_dir(self, directory: str) -> None:
        """Moves the log's directory; open files stay open."""
        self.files.rename(self.dir, directory)
        self.dir = directory
        if self.is_open:
            self.leader_epochs.directory = self.snapshots.directory = directory
            for segment in self.segments:
                segment.moved_to(directory)
