"""The checkpoints of all logs of a broker: recovery points, log start offsets, high watermarks, cleaner offsets.

A pass over all logs is an iterator: the loop serves others between its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from klamm.log import names
from klamm.log.checkpoint_writer import (
    CheckpointWriter,
    LogOffsets,
    cleaner_offsets,
    log_start_offsets,
    recovery_points,
)
from klamm.log.hosted_logs import HostedLogs
from klamm.log.log import Log
from klamm.log.log_dirs import LogDir, LogDirs
from klamm.log.log_environment import LogEnvironment
from klamm.log.summary_writer import SummaryWriter
from klamm.model import TopicPartition


class LogCheckpoints:
    """Owner: the `LogManager`."""

    def __init__(self, env: LogEnvironment, dirs: LogDirs, hosted: HostedLogs) -> None:
        self._dirs = dirs
        self._hosted = hosted
        self._writer = CheckpointWriter(env.files, dirs, env.host.submit)
        self._summaries = SummaryWriter(env.files, dirs, env.clock, env.host)
        self._deleted: list[Log] = []
        """Deleted logs that the checkpoints still name."""

    def adopt(self, log_dir: LogDir) -> None:
        """Take over the checkpoints that the last run left in a directory, whose logs are loaded."""
        hosted = {log.topic_partition for log in self._hosted.in_dir(log_dir.path)}
        for name, offsets in log_dir.checkpoints().items():
            self._writer.found(name, log_dir.path, offsets, hosted)

    # writing

    def write_recovery_points(self) -> None:
        self._writer.write(names.RECOVERY_POINT_CHECKPOINT, recovery_points(self._hosted.logs.values()))

    def write_log_start_offsets(self) -> None:
        self._writer.write(names.LOG_START_OFFSET_CHECKPOINT, log_start_offsets(self._hosted.logs.values()))

    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        found = ((self._hosted.get(tp), offset) for tp, offset in high_watermarks.items())
        self._writer.write(names.HIGH_WATERMARK_CHECKPOINT, ((log, offset) for log, offset in found if log))

    def write_cleaner_offset(self, cleaned: Log) -> None:
        """Write the offset of a log that was cleaned, and of those that were cleaned before: most logs never are."""
        known = self._writer.written(names.CLEANER_CHECKPOINT) | {cleaned.topic_partition}
        logs = (log for tp in known if (log := self._hosted.get(tp)) is not None)
        self._writer.write(names.CLEANER_CHECKPOINT, cleaner_offsets(logs))

    def write_summaries(self, log_dir: LogDir) -> None:
        """Write the summaries of all logs of a directory after a clean stop."""
        self._summaries.write_all(log_dir, self._hosted.in_dir(log_dir.path))

    def amend(self, logs: Iterable[Log]) -> None:
        """Write the entries of logs that are new, gone or moved, without visiting all other logs."""
        for _ in self._amend_in_steps(list(logs)):
            pass

    def _amend_in_steps(self, changed: list[Log]) -> Iterator[None]:
        """One file per step: its entries are copied."""
        # by partition: a deleted log may have been created again before the files are written
        found = {log.topic_partition: self._hosted.get(log.topic_partition) for log in changed}
        in_use = [log for log in found.values() if log is not None]
        for name, offsets in (
            (names.RECOVERY_POINT_CHECKPOINT, recovery_points),
            (names.LOG_START_OFFSET_CHECKPOINT, log_start_offsets),
            (names.CLEANER_CHECKPOINT, cleaner_offsets),
        ):
            yield
            self._writer.amend(name, changed, offsets(in_use))

    def forget(self, log: Log) -> None:
        """Drop what a running pass has collected of a log that is no longer hosted."""
        self._writer.forget(log)

    def forget_dir(self, path: str) -> None:
        """Let running passes leave out a directory that has failed."""
        self._writer.forget_dir(path)

    def note_deletion(self, log: Log) -> None:
        """Remember a deleted log for `deletion_pass`, and forget its high watermark."""
        self._deleted.append(log)
        self._dirs.high_watermarks.pop(log.topic_partition, None)

    def deletion_pass(self) -> Iterator[None]:
        """Remove deleted logs from the files: a later log of the same name must not inherit their offsets.

        The caller creates no log before the last step.
        """
        deleted, self._deleted = self._deleted, []
        return self._amend_in_steps(deleted)

    # passes

    def recovery_point_pass(self) -> Iterator[None]:
        return self._pass(names.RECOVERY_POINT_CHECKPOINT, recovery_points)

    def log_start_offset_pass(self) -> Iterator[None]:
        return self._pass(names.LOG_START_OFFSET_CHECKPOINT, log_start_offsets)

    def high_watermark_pass(self, has_partition: Callable[[Log], bool]) -> Iterator[None]:
        """Checkpoint the high watermarks of the logs that have a partition."""
        return self._pass(
            names.HIGH_WATERMARK_CHECKPOINT,
            lambda logs: ((log, log.high_watermark) for log in logs if has_partition(log)),
        )

    def summary_pass(self) -> Iterator[None]:
        """Renew the summaries of the logs that are complete on the disk."""
        return self._summaries.write_in_slices(self._hosted.slices_in_use())

    def _pass(self, name: str, offsets: Callable[[Iterable[Log]], LogOffsets]) -> Iterator[None]:
        return self._writer.write_in_slices(name, map(offsets, self._hosted.slices_in_use()))

    # reading

    def high_watermark(self, tp: TopicPartition) -> int:
        """Return the high watermark of the last run's checkpoint; 0 if it does not name the partition."""
        return self._dirs.high_watermarks.get(tp, 0)
