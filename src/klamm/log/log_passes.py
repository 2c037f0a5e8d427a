"""The periodic work on the logs of a broker: retention, flushing, compaction, deletion of files.

A pass over all logs is an iterator: the loop serves others between its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from klamm.log.cleaner_manager import LogCleanerManager
from klamm.log.deletion_queue import DeletionQueue
from klamm.log.flush_queue import FlushQueue
from klamm.log.full_disks import FullDisks
from klamm.log.hosted_logs import HostedLogs
from klamm.log.log import Log
from klamm.log.retention import delete_old_segments
from klamm.model import TopicPartition

CHECKED_PER_STEP: Final = 10
"""Logs whose segments retention checks before the loop serves others: about half a millisecond."""


class LogPasses:
    """Owner: the `LogManager`. The server calls the passes at their intervals."""

    def __init__(
        self,
        hosted: HostedLogs,
        *,
        cleaner: LogCleanerManager,
        deletions: DeletionQueue,
        flushes: FlushQueue,
        full_disks: FullDisks,
    ) -> None:
        self._hosted = hosted
        self._cleaner = cleaner
        self._deletions = deletions
        self._flushes = flushes
        self._full_disks = full_disks
        self.segments_deleted_listener: Callable[[TopicPartition], None] | None = None
        """Called after retention has deleted segments of a partition: its log starts at another offset."""

    def retention(self, now_ms: int) -> Iterator[int]:
        """Delete old segments of all logs; yield how many, slice by slice.

        A step ends as soon as it has opened a log or deleted segments: both take about a millisecond. Otherwise it
        ends after `CHECKED_PER_STEP` logs.
        """
        for part in self._hosted.slices():
            checked = 0
            for log in filter(self._hosted.is_in_use, part):
                if checked >= CHECKED_PER_STEP:
                    yield 0
                    checked = 0
                checked += 1
                was_open = log.is_open
                while deleted := self._delete_old_segments(log, now_ms):
                    yield deleted
                    checked, was_open = 0, True
                    if not self._hosted.is_in_use(log):
                        break
                if log.is_open and not was_open:
                    yield 0
                    checked = 0
            yield 0

    def _delete_old_segments(self, log: Log, now_ms: int) -> int:
        deleted = delete_old_segments(log, now_ms)
        if deleted and self.segments_deleted_listener is not None:
            self.segments_deleted_listener(log.topic_partition)
        return deleted

    def flush(self, now_ms: int) -> Iterator[bool] | None:
        """Flush the logs that are due by `flush.ms`. Return the slices that are left after the first."""
        slices = self._flushes.flush_due(now_ms)
        return slices if next(slices, False) else None

    def compaction(self, now_ms: int) -> Iterator[bool]:
        """Start to clean the dirtiest compacted log, one at a time; yield True in the last step if there is one."""
        return self._cleaner.compaction_pass(self._hosted.slices(), now_ms)

    def producer_expiration(self, now_ms: int) -> Iterator[None]:
        """Forget producers that have been silent for too long, slice by slice."""
        for part in self._hosted.slices():
            for log in part:
                if log.is_open:
                    log.producers.remove_expired(now_ms)
            yield

    def deletion(self, now_ms: int) -> int:
        """Remove the files and directories whose delay is over; return how many removals were started."""
        return self._deletions.remove_due(now_ms)

    def revival(self) -> int:
        """Bring back directories whose disk was full and has room again; return how many are probed."""
        return self._full_disks.probe()
