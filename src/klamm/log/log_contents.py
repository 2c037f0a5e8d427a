"""The two forms in which a log comes from its directory: loaded, or known from its summary and not opened yet.

A broker with many partitions starts without opening their logs. It opens a log when the log is first read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from klamm.log.local_log import LocalLog
from klamm.log.log_config import LogConfig
from klamm.log.summaries import LogSummary
from klamm.model import NO_EPOCH


class Damage(NamedTuple):
    """Records from `start_offset` up to `end_offset` are missing although the last stop was clean.

    They were in the segment `base_offset`, in the file `path`, which had `size_bytes` at that time.
    """

    path: str
    start_offset: int
    end_offset: int
    base_offset: int
    size_bytes: int


class LoadedLog(NamedTuple):
    """The contents of a log's directory.

    `is_recovered`: segments were checked and cut, so that older indexes may still be on the disk. `damages` are gaps
    between the segments. `lost_tail` are the last records, if they are missing. `dropped_paths` are files that were
    marked as deleted.
    """

    local: LocalLog
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    is_recovered: bool = False
    damages: tuple[Damage, ...] = ()
    lost_tail: Damage | None = None
    dropped_paths: tuple[str, ...] = ()


OpenFiles: TypeAlias = Callable[[int, int, LogConfig], LoadedLog]
"""Loads a log, given its log start offset, its recovery point and its configuration."""


class UnopenedLog:
    """A log that the last run left complete. Owner: the `Log`, until it loads the files with `open_files`."""

    __slots__ = ("assigned_epoch", "log_end_offset", "log_start_offset", "open_files", "recovery_point", "summary")

    def __init__(self, summary: LogSummary, log_start_offset: int, open_files: OpenFiles) -> None:
        self.summary = summary
        self.log_start_offset = max(log_start_offset, summary.segments[0].base_offset)
        self.log_end_offset = self.recovery_point = summary.log_end_offset
        self.open_files = open_files
        self.assigned_epoch = NO_EPOCH
        """An epoch that begins at the end of the log, assigned before the log was opened."""

    @property
    def size_bytes(self) -> int:
        return self.summary.size_bytes

    @property
    def first_base_offset(self) -> int:
        return self.summary.segments[0].base_offset

    @property
    def active_base_offset(self) -> int:
        return self.summary.segments[-1].base_offset

    def assign_epoch(self, leader_epoch: int) -> None:
        self.assigned_epoch = max(self.assigned_epoch, leader_epoch)

    def forget_epochs_from(self, offset: int) -> None:
        """Forget the epochs that begin at `offset` or later. The log ends there, so this is the assigned one."""
        assert offset == self.log_end_offset
        self.assigned_epoch = NO_EPOCH

    @property
    def latest_epoch(self) -> int | None:
        epoch = max(self.assigned_epoch, self.summary.latest_epoch)
        return None if epoch == NO_EPOCH else epoch

    def last_record_epoch(self, log_end_offset: int) -> int | None:
        """Return the leader epoch of the last record; for a log without records, the newest epoch that it knows."""
        epoch = self.summary.latest_epoch
        return self.latest_epoch if epoch == NO_EPOCH else epoch

    def ends_with_epoch(self, leader_epoch: int) -> bool:
        """Whether the epoch ends where the log ends: it is that of the last record, or was assigned after it."""
        return 0 <= leader_epoch in (self.summary.latest_epoch, self.assigned_epoch)

    def may_have_old_segments(self, log_start_offset: int, config: LogConfig, now_ms: int) -> bool:
        """Whether retention may have something to delete, so that the log must be opened."""
        summary, segments = self.summary, self.summary.segments
        if len(segments) > 1 and segments[1].base_offset <= log_start_offset:
            return True
        if not config.is_deleted or (len(segments) == 1 and segments[0].size_bytes == 0):
            return False
        is_too_large = 0 <= config.retention_bytes <= summary.size_bytes - segments[0].size_bytes
        return is_too_large or 0 <= config.retention_ms < now_ms - summary.oldest_timestamp
