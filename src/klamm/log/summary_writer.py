"""Writes the record of complete logs: of all logs at a clean stop, and periodically of those that are flushed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from klamm.clock import Clock
from klamm.log import names
from klamm.log.files import Files
from klamm.log.jobs import FileJob, LogHost
from klamm.log.log import Log
from klamm.log.log_dirs import LogDir, LogDirs
from klamm.log.summaries import (
    LogSummary,
    RecordedLogs,
    SegmentSize,
    encode,
    is_settled,
    read_modified_and_crc,
    with_directory,
)
from klamm.model import NO_EPOCH, TopicPartition

INSPECTED_PER_STEP: Final = 5
"""Changed logs whose files are read without giving the loop back: about half a millisecond."""
VISITED_PER_STEP: Final = 15
"""The same for logs that have not changed."""
_A_FILE: Final = 2
"""Writing a snapshot counts as inspecting so many logs: a step writes at most two."""
_ByDir = dict[str, dict[TopicPartition, LogSummary]]


class SummaryWriter:
    """Owner: the broker loop."""

    def __init__(self, files: Files, dirs: LogDirs, clock: Clock, host: LogHost) -> None:
        self._files = files
        self._dirs = dirs
        self._clock = clock
        self._host = host
        self._written: _ByDir = {}
        self._inspected = 0
        self._known: dict[TopicPartition, tuple[tuple[object, ...], LogSummary]] = {}

    def write_in_slices(self, slices: Iterable[Iterable[Log]]) -> Iterator[None]:
        """Visit one slice per step, or fewer logs if many have changed; write the changed directories in the last."""
        found: _ByDir = {log_dir.path: {} for log_dir in self._dirs.live}
        changed: set[str] = set()
        known: dict[TopicPartition, tuple[tuple[object, ...], LogSummary]] = {}
        for logs in slices:
            visited = self._inspected = 0
            for log in logs:
                if self._inspected >= INSPECTED_PER_STEP or visited >= VISITED_PER_STEP:
                    visited = self._inspected = 0
                    yield
                visited += 1
                summary = log.disk.run("summarising", lambda log=log: self._settled(log, known))  # type: ignore[misc]
                if isinstance(summary, LogSummary) and log.log_dir in found:
                    found[log.log_dir][log.topic_partition] = summary
                    if self._written.get(log.log_dir, {}).get(log.topic_partition) != summary:
                        changed.add(log.log_dir)
            yield
        self._known = known
        for log_dir in self._dirs.live:
            summaries = found.get(log_dir.path)
            if summaries is None:
                continue
            # comparing all summaries here would hold the loop
            if log_dir.path in changed or len(summaries) != len(self._written.get(log_dir.path, ())):
                self._written[log_dir.path] = summaries
                self._host.submit(self._job(log_dir.path, RecordedLogs(0, summaries)))

    def _settled(self, log: Log, known: dict[TopicPartition, tuple[tuple[object, ...], LogSummary]]) -> object:
        """Return the summary of a log. A log that has not changed since the last pass is not inspected again."""
        if log.unopened is not None:
            return log.unopened.summary
        tp = log.topic_partition
        version = (log.log_end_offset, log.recovery_point, log.truncation_count, log.size_bytes)
        before = self._known.pop(tp, None)  # moved, because freeing all of them at the end would hold the loop
        if before is not None and before[0] == version:
            known[tp] = before
            return before[1]
        self._inspected += 1
        summary = summarise(self._files, log)
        if summary is None or not is_settled(summary, self._clock.now_ms()):
            return None
        if log.local.cover_producers(log.log_end_offset):
            self._inspected += _A_FILE
        known[tp] = version, summary
        return summary

    def write_all(self, log_dir: LogDir, logs: Iterable[Log]) -> None:
        """Write the record after a clean stop: all logs are closed, and the marker is written."""
        stopped_ns = self._files.stat(f"{log_dir.path}/{names.CLEAN_SHUTDOWN}").modified_ns
        summaries = {}
        for log in logs:
            if (summary := summarise(self._files, log)) is not None:
                if log.unopened is None:
                    summary = with_directory(self._files, log.dir, summary, stopped_ns)
                summaries[log.topic_partition] = summary
        self._job(log_dir.path, RecordedLogs(stopped_ns, summaries)).work()

    def _job(self, log_dir: str, recorded: RecordedLogs) -> FileJob:
        return FileJob(log_dir, lambda: self._files.write_atomic(f"{log_dir}/{names.LOG_SUMMARY}", encode(recorded)))


def summarise(files: Files, log: Log) -> LogSummary | None:
    """Return None for a log that the next start has to open: it is not flushed, or a transaction is open."""
    if log.unopened is not None:
        return log.unopened.summary
    is_flushed = log.recovery_point == log.log_end_offset and not log.flusher.has_unflushed_files
    if not is_flushed or log.disk.is_failed or log.producers.first_unstable_offset is not None:
        return None
    active = log.segments.active
    path = active.path(names.LOG)
    latest_epoch, epochs_crc = log.leader_epochs.of_records(log.log_end_offset)
    if latest_epoch == NO_EPOCH and log.size_bytes:
        return None
    sizes = {s.base_offset: s.size_bytes for s in log.segments}
    # the next start finds the same damage
    sizes |= {d.base_offset: d.size_bytes for d in log.damages if d.base_offset >= log.contents.first_base_offset}
    modified_ns, tail_crc = read_modified_and_crc(files, path, active.size_bytes)
    return LogSummary(
        log.log_end_offset,
        latest_epoch,
        epochs_crc,
        log.segments.first.largest_timestamp(),
        modified_ns,
        tail_crc,
        0,
        tuple(SegmentSize(*s) for s in sorted(sizes.items())),
    )
