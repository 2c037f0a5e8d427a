"""The periodic work of a LogManager: retention, flushing, compaction, checkpoints.

A pass over all logs is an iterator: the loop serves others between its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from klamm.log import names
from klamm.log.checkpoint_writer import (
    CheckpointWriter,
    LogOffsets,
    cleaner_offsets,
    log_start_offsets,
    recovery_points,
)
from klamm.log.cleaner_manager import LogCleanerManager
from klamm.log.deletion_queue import DeletionQueue
from klamm.log.flush_queue import FlushQueue
from klamm.log.jobs import Flushable
from klamm.log.log import Log
from klamm.log.log_dirs import LogDirs
from klamm.log.retention import delete_old_segments
from klamm.log.summary_writer import SummaryWriter
from klamm.model import TopicPartition

LOGS_A_SLICE: Final = 100
"""How many logs periodic work looks at before the loop serves others: about a millisecond when little is due."""


class LogPasses:
    """The part of the LogManager that is called at intervals."""

    dirs: LogDirs
    _logs: dict[TopicPartition, Log]
    _checkpoints: CheckpointWriter
    _cleaner: LogCleanerManager
    _deletions: DeletionQueue
    _flushes: FlushQueue
    _summaries: SummaryWriter
    segments_deleted_listener: Callable[[TopicPartition], None] | None

    def retention_pass(self, now_ms: int) -> Iterator[int]:
        """Removes old segments of every log that is not only compacted; how many, slice by slice."""
        for part in self._slices():
            deleted = 0
            for log in filter(self._is_in_use, part):
                was_open = log.is_open
                deleted += self._delete_old_segments(log, now_ms)
                if log.is_open and not was_open:
                    yield deleted
                    deleted = 0
            yield deleted

    def _delete_old_segments(self, log: Log, now_ms: int) -> int:
        deleted = delete_old_segments(log, now_ms)
        if deleted and self.segments_deleted_listener is not None:
            self.segments_deleted_listener(log.topic_partition)
        return deleted

    def _slices(self) -> Iterator[list[Log]]:
        """All logs in parts, between which the loop may do something else, also with logs that are yet to come."""
        logs = list(self._logs.values())
        return (logs[i : i + LOGS_A_SLICE] for i in range(0, len(logs), LOGS_A_SLICE))

    def _is_in_use(self, log: Flushable) -> bool:
        return self._logs.get(log.topic_partition) is log

    def flush_pass(self, now_ms: int) -> None:
        """`flush.ms` for the logs whose time it is."""
        self._flushes.flush_due(now_ms)

    def compaction_pass(self, now_ms: int) -> Iterator[bool]:
        """Starts to clean the dirtiest compacted log, one at a time; True, in the last step, when there was one."""
        return self._cleaner.compaction_pass(self._slices(), now_ms)

    def _checkpoint_cleaner_offset(self, cleaned: Log) -> None:
        """Written of the logs that were cleaned before, and of this one: most logs never are."""
        known = self._checkpoints.written(names.CLEANER_CHECKPOINT) | {cleaned.topic_partition}
        logs = (log for tp in known if (log := self._logs.get(tp)) is not None)
        self._checkpoints.write(names.CLEANER_CHECKPOINT, cleaner_offsets(logs))

    def producer_expiration_pass(self, now_ms: int) -> Iterator[None]:
        """Forgets producers that have been silent for too long, slice by slice."""
        for part in self._slices():
            for log in part:
                if log.is_open:
                    log.producers.remove_expired(now_ms)
            yield

    def deletion_pass(self, now_ms: int) -> int:
        """Removes the files and directories whose delay is over; returns how many removals were started."""
        return self._deletions.remove_due(now_ms)

    # checkpoints

    def checkpoint_recovery_points(self) -> None:
        self._checkpoints.write(names.RECOVERY_POINT_CHECKPOINT, recovery_points(self._logs.values()))

    def recovery_point_pass(self) -> Iterator[None]:
        """`checkpoint_recovery_points`, slice by slice."""
        return self._checkpoint_pass(names.RECOVERY_POINT_CHECKPOINT, recovery_points)

    def summary_pass(self) -> Iterator[None]:
        """Renews the record of the logs that are completely on the disk, slice by slice."""
        return self._summaries.write_in_slices(list(filter(self._is_in_use, part)) for part in self._slices())

    def _amend_checkpoints(self, logs: Iterable[Log]) -> None:
        """These logs are new, gone or moved: the files say so, without a look at all other logs."""
        changed = list(logs)
        # by partition: a deleted log may have been created again before the files are written
        found = {log.topic_partition: self._logs.get(log.topic_partition) for log in changed}
        in_use = [log for log in found.values() if log is not None]
        for name, offsets in (
            (names.RECOVERY_POINT_CHECKPOINT, recovery_points),
            (names.LOG_START_OFFSET_CHECKPOINT, log_start_offsets),
            (names.CLEANER_CHECKPOINT, cleaner_offsets),
        ):
            self._checkpoints.amend(name, changed, offsets(in_use))

    def checkpoint_log_start_offsets(self) -> None:
        self._checkpoints.write(names.LOG_START_OFFSET_CHECKPOINT, log_start_offsets(self._logs.values()))

    def log_start_offset_pass(self) -> Iterator[None]:
        """`checkpoint_log_start_offsets`, slice by slice."""
        return self._checkpoint_pass(names.LOG_START_OFFSET_CHECKPOINT, log_start_offsets)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        found = ((self._logs.get(tp), offset) for tp, offset in high_watermarks.items())
        self._checkpoints.write(names.HIGH_WATERMARK_CHECKPOINT, ((log, offset) for log, offset in found if log))

    def high_watermark_pass(self, has_partition: Callable[[Log], bool]) -> Iterator[None]:
        """Checkpoints the high watermarks of the logs that have a partition, slice by slice."""
        return self._checkpoint_pass(
            names.HIGH_WATERMARK_CHECKPOINT,
            lambda logs: ((log, log.high_watermark) for log in logs if has_partition(log)),
        )

    def _checkpoint_pass(self, name: str, offsets: Callable[[Iterable[Log]], LogOffsets]) -> Iterator[None]:
        slices = (offsets(filter(self._is_in_use, part)) for part in self._slices())
        return self._checkpoints.write_in_slices(name, slices)

    def checkpointed_high_watermark(self, tp: TopicPartition) -> int:
        """What the checkpoint said when the logs were loaded; 0 when it did not name the partition."""
        return self.dirs.high_watermarks.get(tp, 0)
