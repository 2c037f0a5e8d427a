"""Decides when a log is compacted, and puts the result into it.

A cleaning is planned on the loop, done in the background thread and committed on the loop. If the log was truncated or
deleted meanwhile, it keeps its segments and the cleaned ones are discarded.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from klamm.errors import ErrorCode, ProtocolError
from klamm.log import names
from klamm.log.compaction import CleanedSegment, CleanPlan, Source, clean, discard
from klamm.log.jobs import fsync_job
from klamm.log.log import Log
from klamm.log.log_environment import LogEnvironment
from klamm.log.segment import FoundFile, LogSegment

_log = logging.getLogger(__name__)


class LogToClean(NamedTuple):
    """Ordered by how dirty the log is."""

    dirty_ratio: float
    first_dirty_offset: int
    end_offset: int
    must_clean: bool
    log: Log


def cleanable(log: Log, now_ms: int) -> LogToClean | None:
    """Return the part of a compacted log that could be cleaned now, or None."""
    first_dirty = max(log.cleaner_offset, log.log_start_offset)
    end = min(log.last_stable_offset, log.segments.active.base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    dirty = [s for s in log.segments.between(first_dirty, end) if s.base_offset < end]
    if lag_ms > 0:
        end = min([end, *(s.base_offset for s in dirty if s.largest_timestamp() > now_ms - lag_ms)])
    dirty = [s for s in dirty if s.base_offset < end and s.size_bytes]
    end = min(end, _last_whole_segment_end(log, end))
    if first_dirty >= end:
        return None
    clean_bytes = sum(s.size_bytes for s in log.segments if s.base_offset < first_dirty and s not in dirty)
    dirty_bytes = sum(s.size_bytes for s in dirty)
    oldest = min((t for s in dirty if (t := s.first_batch_timestamp()) >= 0), default=now_ms)
    must_clean = now_ms - oldest > log.config.max_compaction_lag_ms
    ratio = dirty_bytes / (clean_bytes + dirty_bytes) if dirty_bytes else 0.0
    return LogToClean(ratio, first_dirty, end, must_clean, log)


def _last_whole_segment_end(log: Log, end: int) -> int:
    """Return the start of the segment that holds `end`: segments are cleaned whole."""
    segment = log.segments.floor(end)
    return segment.base_offset if segment is not None else log.log_start_offset


def dirtiest(
    logs: Iterable[Log], now_ms: int, on_unreadable: Callable[[Log], None] = lambda log: None
) -> LogToClean | None:
    """Return the log that needs cleaning most, by `min.cleanable.dirty.ratio` and `max.compaction.lag.ms`.

    A log that cannot be read is passed to `on_unreadable` and does not keep the others from being cleaned.
    """
    best: LogToClean | None = None
    for log in logs:
        if not log.config.is_compacted or log.disk.is_failed or not _has_dirty_segments(log):
            continue
        candidate = log.disk.run("looking for dirty segments of", partial(cleanable, log, now_ms))
        if isinstance(candidate, ErrorCode):
            on_unreadable(log)
        if candidate is None or isinstance(candidate, ErrorCode):
            continue
        wanted = candidate.must_clean or candidate.dirty_ratio > log.config.min_cleanable_dirty_ratio
        if wanted and (best is None or candidate[:1] > best[:1]):
            best = candidate
    return best


def _has_dirty_segments(log: Log) -> bool:
    """Whether there is an inactive segment to clean. This does not open the log."""
    return max(log.cleaner_offset, log.log_start_offset) < log.contents.active_base_offset


class CleanJob:
    """Cleans one log. Calls `done(job, cleaned_to)` on the loop, with None if nothing was cleaned."""

    def __init__(
        self, env: LogEnvironment, target: LogToClean, now_ms: int, done: Callable[[CleanJob, int | None], None]
    ) -> None:
        log = target.log
        self._env = env
        self.log_dir = log.log_dir
        self._files = env.files
        self.log = log
        self._done = done
        self._segments = [s for s in log.segments if s.base_offset < target.end_offset]
        self._generation = log.truncation_count
        self.is_uncleanable = False
        self._result: tuple[list[CleanedSegment], int] | None = None
        self._cleaned: list[tuple[CleanedSegment, LogSegment]] = []
        self.plan = CleanPlan(
            log.dir,
            log.config,
            tuple(Source(s.base_offset, s.path(names.LOG), s.size_bytes, s.created_ms) for s in self._segments),
            target.first_dirty_offset,
            target.end_offset,
            now_ms,
            log.local.collect_aborted(log.segments.first.base_offset, target.end_offset),
            {p: (e.last_data_offset, e.producer_epoch) for p, e in log.producers.entries.items()},
        )

    def work(self) -> None:
        discard(self._files, self.plan)
        try:
            self._result = clean(self._files, self.plan)
        except FileNotFoundError as e:
            _log.info("%s: cleaning stopped: %s is gone", self.plan.directory, e.filename)
        except ProtocolError as e:
            _log.error("%s: cleaning failed, the log stays as it is: %s", self.plan.directory, e)
            self.is_uncleanable = True
        if self._result is None:
            discard(self._files, self.plan)

    def commit(self) -> None:
        """Give the cleaned segments the suffix `.swap`; they replace the old ones when that is on the disk.

        Discard them if the log has changed meanwhile.
        """
        if self._result is None or not self._is_unchanged():
            self._give_up()
            return
        self._cleaned = [(result, self._segment(result)) for result in self._result[0]]
        for _, segment in self._cleaned:
            segment.change_suffix(names.SWAP)
        self._env.host.submit(
            fsync_job(self._files, self.log_dir, (self.log.dir,), commit=self._exchange, abandon=self.abandon)
        )

    def _exchange(self) -> None:
        if self._result is None or not self._is_unchanged():
            self._give_up()
            return
        by_base = {s.base_offset: s for s in self._segments}
        for result, segment in self._cleaned:
            self.log.local.replace_segments([by_base[b] for b in result.replaced], segment)
        self._done(self, self._result[1])

    def _give_up(self) -> None:
        if not self.log.disk.is_failed:
            discard(self._files, self.plan)
        self._done(self, None)

    def abandon(self) -> None:
        """Leave the log as it is, and do not clean it again before the next start."""
        self.is_uncleanable = True
        if not self.log.disk.is_failed:
            with contextlib.suppress(OSError):
                discard(self._files, self.plan)
        self._done(self, None)

    def _is_unchanged(self) -> bool:
        log = self.log
        is_same = log.truncation_count == self._generation and log.dir == self.plan.directory
        return is_same and not log.disk.is_failed and all(s in log.segments for s in self._segments)

    def _segment(self, cleaned: CleanedSegment) -> LogSegment:
        return LogSegment(
            self._files,
            self._env.pool,
            self.log.dir,
            cleaned.base_offset,
            self.log.config,
            found=FoundFile(cleaned.size_bytes, cleaned.modified_ms, cleaned.has_txn_index),
            suffix=names.CLEANED,
        )
