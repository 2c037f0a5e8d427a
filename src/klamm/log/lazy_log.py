"""A partition's log before its files are looked at: its offsets, and how it is opened when it is first used.

A broker with many partitions starts without opening their logs, and opens only those that somebody reads or writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from klamm.clock import Clock
from klamm.log.files import Files
from klamm.log.jobs import LogHost
from klamm.log.leader_epoch_cache import LeaderEpochCache
from klamm.log.log_config import LogConfig
from klamm.log.open_segments import OpenSegments
from klamm.log.producer_snapshots import ProducerSnapshots
from klamm.log.producer_state import ProducerStateManager
from klamm.log.segments import LogSegments
from klamm.log.summaries import LogSummary
from klamm.log.validator import is_plain
from klamm.model import NO_EPOCH, TopicPartition

_log = logging.getLogger(__name__)
_OPENED: Final = frozenset({"segments", "leader_epochs", "producers", "snapshots"})


class LogFiles(NamedTuple):
    """The part of a log that is read from its directory."""

    segments: LogSegments
    leader_epochs: LeaderEpochCache
    producers: ProducerStateManager
    snapshots: ProducerSnapshots
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


class Damage(NamedTuple):
    """Records from `start_offset` up to `end_offset` are gone although the last stop was clean.

    They were in the segment `base_offset`, the file `path`, which had `size_bytes` then.
    """

    path: str
    start_offset: int
    end_offset: int
    base_offset: int
    size_bytes: int


class LazyLog:
    """`dir` is the partition's directory, `log_dir` the one that holds it.

    Batches before `recovery_point` are on the disk for sure: recovery after an unclean stop begins there. Those before
    `cleaner_offset` have been compacted.

    A log that the last run left complete starts with its `summary` only. The first use of `segments`, `leader_epochs`,
    `producers` or `snapshots` opens it. Its offsets, its size and its latest epoch are known without that.
    """

    segments: LogSegments
    leader_epochs: LeaderEpochCache
    producers: ProducerStateManager
    snapshots: ProducerSnapshots

    def __init__(
        self,
        topic_partition: TopicPartition,
        log_dir: str,
        directory: str,
        config: LogConfig,
        *,
        files: Files,
        clock: Clock,
        rng: Random,
        pool: OpenSegments,
        host: LogHost,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        topic_id: UUID | None = None,
        summary: LogSummary | None = None,
        opener: Callable[[LazyLog], LogFiles] | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log_dir = log_dir
        self.dir = directory
        self.summary = summary
        self._opener = opener
        self.is_open = False
        self._unopened_epoch = NO_EPOCH
        """An epoch that begins at the end of the log, assigned before the log was opened."""
        self.damages: tuple[Damage, ...] = ()
        """Gaps between the segments, which a follower gets again from its leader."""
        self.lost_tail: Damage | None = None
        """The last records went, and the log goes on before them."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.last_flush_ms = clock.now_ms()
        self.is_failed = False
        self.files = files
        self.clock = clock
        self.host = host
        self.pool = pool
        self._rng = rng
        self.truncation_count = 0
        self.has_unflushed_files = False
        """Whether the log was truncated or recovered and not flushed since: old indexes may be on the disk."""
        self.cleaner_offset = 0
        self._flush_requested_offset = recovery_point
        self._flush_under_way = False
        self.queued_flush_ms: int | None = None
        """When the manager's FlushQueue looks at this log."""
        self._unsynced_snapshots: list[str] = []
        self._first_unstable_offset: int | None = None
        self.config = config

    # opening

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name not in _OPENED or self.is_open:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            self.open()
            return getattr(self, name)

    def open(self) -> None:
        """Reads the directory of a log that was not used before. OSError when the disk fails."""
        if self.is_open:
            return
        assert self._opener is not None, "a log without an opener is opened by its loader"
        known_end = self.log_end_offset
        self.take_files(self._opener(self))
        if self.log_end_offset != known_end:
            _log.error("%s ends at offset %d, not at %d as recorded", self.dir, self.log_end_offset, known_end)
        if self._unopened_epoch != NO_EPOCH:
            self.assign_epoch(self._unopened_epoch, self.log_end_offset)
        elif self.leader_epochs.is_dirty:
            self.host.sync_soon(self.log_dir, self.leader_epochs.path)

    def take_files(self, files: LogFiles) -> None:
        self.segments, self.leader_epochs, self.producers, self.snapshots = files[:4]
        self.log_start_offset = files.log_start_offset
        self.log_end_offset = files.log_end_offset
        self.recovery_point = self._flush_requested_offset = files.recovery_point
        self.high_watermark = min(max(self.high_watermark, self.log_start_offset), self.log_end_offset)
        self.producers.on_high_watermark(self.high_watermark)
        self._first_unstable_offset = self.producers.first_unstable_offset
        self.is_open = True
        self.summary = self._opener = None

    @property
    def latest_epoch(self) -> int | None:
        """The newest leader epoch that the log knows."""
        if self.summary is None:
            return self.leader_epochs.latest_epoch
        epoch = max(self._unopened_epoch, self.summary.latest_epoch)
        return None if epoch == NO_EPOCH else epoch

    @property
    def last_record_epoch(self) -> int | None:
        """The leader epoch of the last record; of a log without records, the newest epoch that it knows."""
        if self.summary is not None:
            epoch = self.summary.latest_epoch
            return self.latest_epoch if epoch == NO_EPOCH else epoch
        found = self.leader_epochs.epoch_for_offset(self.log_end_offset - 1)
        return self.leader_epochs.latest_epoch if found is None else found  # all records may have been deleted

    @property
    def gapless_end(self) -> tuple[int | None, int]:
        """Up to where the log has all records: the epoch of the last one, and the offset behind it."""
        if not self.damages:
            return self.last_record_epoch, self.log_end_offset
        end = min(damage.start_offset for damage in self.damages)
        return self.leader_epochs.epoch_for_offset(end - 1), end

    @property
    def first_base_offset(self) -> int:
        return self.segments.first.base_offset if self.summary is None else self.summary.segments[0].base_offset

    @property
    def active_base_offset(self) -> int:
        return self.segments.active.base_offset if self.summary is None else self.summary.segments[-1].base_offset

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._is_plain = is_plain(config)

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes if self.summary is None else self.summary.size_bytes

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Notes that an epoch begins: a new leader does so at the end of its log, a follower with the first batch.

        An epoch without records is not kept over a restart, so it is no reason to open the log.
        """
        if self.summary is not None and start_offset == self.log_end_offset:
            self._unopened_epoch = max(self._unopened_epoch, leader_epoch)
            return
        self.leader_epochs.assign(leader_epoch, start_offset)
        if self.leader_epochs.is_dirty:
            self.host.sync_soon(self.log_dir, self.leader_epochs.path)

    def _may_have_old_segments(self, now_ms: int) -> bool:
        """Whether retention may have something to do; a log that was not opened yet is not opened to find out."""
        if self.summary is None:
            return True
        segments, config = self.summary.segments, self._config
        if len(segments) > 1 and segments[1].base_offset <= self.log_start_offset:
            return True
        if not config.is_deleted or (len(segments) == 1 and segments[0].size_bytes == 0):
            return False
        is_too_large = 0 <= config.retention_bytes <= self.size_bytes - segments[0].size_bytes
        return is_too_large or 0 <= config.retention_ms < now_ms - self.summary.oldest_timestamp
