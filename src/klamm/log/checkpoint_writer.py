"""The offset checkpoints of the live directories: collected on the loop, whole or in slices, written in the background.

Each write replaces the whole file. If few logs were added or removed, the entries of the others are those of the last
write. An entry was true when the log was visited; a later change is part of the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from klamm.log.checkpoints import encode_offsets
from klamm.log.files import Files
from klamm.log.jobs import FileJob
from klamm.log.log import Log
from klamm.log.log_dirs import LogDirs
from klamm.model import TopicPartition

LogOffsets = Iterable[tuple[Log, int]]
_ByDir = dict[str, dict[TopicPartition, int]]


class CheckpointWriter:
    """Owner: the broker loop."""

    def __init__(self, files: Files, dirs: LogDirs, submit: Callable[[FileJob], None]) -> None:
        self._files = files
        self._dirs = dirs
        self._submit = submit
        self._collected: dict[str, _ByDir] = {}
        self._written: dict[str, _ByDir] = {}
        """The contents of the files. These entries are never changed: a job may be encoding them."""

    def write(self, name: str, offsets: LogOffsets) -> None:
        """Write the files now. A pass for the same file stops, because it has collected older offsets."""
        self._collected.pop(name, None)
        entries = self._empty()
        _add(entries, offsets)
        self._write(name, entries)

    def write_in_slices(self, name: str, slices: Iterable[LogOffsets]) -> Iterator[None]:
        """Collect one slice per step and write the file in the last. Logs added or removed meanwhile are noted."""
        entries = self._collected[name] = self._empty()
        return self._collect(name, entries, slices)

    def _collect(self, name: str, entries: _ByDir, slices: Iterable[LogOffsets]) -> Iterator[None]:
        for offsets in slices:
            if self._collected.get(name) is not entries:
                return
            _add(entries, offsets)
            yield
        if self._collected.get(name) is entries:
            del self._collected[name]
            self._write(name, entries)

    def found(
        self, name: str, log_dir: str, offsets: dict[TopicPartition, int], hosted: Container[TopicPartition]
    ) -> None:
        """Take over the offsets that the last run left in a file. Entries of logs that are gone are removed from it.

        A crash between a deletion and its checkpoint leaves such entries; a topic created again must not inherit them.
        """
        kept = {tp: offset for tp, offset in offsets.items() if tp in hosted}
        self._written.setdefault(name, {})[log_dir] = kept
        if len(kept) != len(offsets):
            self._submit(self._job(log_dir, name, kept))

    def written(self, name: str) -> set[TopicPartition]:
        """Return the partitions that the files of this name list."""
        return {tp for entries in self._written.get(name, {}).values() for tp in entries}

    def amend(self, name: str, changed: Iterable[Log], offsets: LogOffsets) -> None:
        """Write the files of the directories of `changed` logs; `offsets` are those of the logs in use.

        The other logs keep their last entry, so that the cost follows the change, except for the copy of a file.
        """
        last = self._written.setdefault(name, {})
        amended: _ByDir = {}

        def entries_of(path: str) -> dict[TopicPartition, int]:
            if path not in amended:
                amended[path] = dict(last.get(path, {}))
            return amended[path]

        for log in changed:
            if log.topic_partition in last.get(log.log_dir, ()):
                del entries_of(log.log_dir)[log.topic_partition]
        collected = self._collected.get(name, {})
        for log, offset in offsets:
            entries_of(log.log_dir)[log.topic_partition] = offset
            if log.log_dir in collected:
                collected[log.log_dir][log.topic_partition] = offset
        for path in [log_dir.path for log_dir in self._dirs.live if log_dir.path in amended]:
            last[path] = amended[path]
            self._submit(self._job(path, name, amended[path]))

    def forget(self, log: Log) -> None:
        """Drop what was collected of a log that is gone: a new log of the same name must not inherit it."""
        for entries in self._collected.values():
            entries.get(log.log_dir, {}).pop(log.topic_partition, None)

    def forget_dir(self, path: str) -> None:
        """Drop the entries of a directory that has failed: if it comes back, a pass has not seen all its logs."""
        for entries in self._collected.values():
            entries.pop(path, None)

    def _empty(self) -> _ByDir:
        return {log_dir.path: {} for log_dir in self._dirs.live}

    def _write(self, name: str, entries: _ByDir) -> None:
        for log_dir in self._dirs.live:
            if log_dir.path in entries:
                self._written.setdefault(name, {})[log_dir.path] = entries[log_dir.path]
                self._submit(self._job(log_dir.path, name, entries[log_dir.path]))

    def _job(self, log_dir: str, name: str, offsets: dict[TopicPartition, int]) -> FileJob:
        return FileJob(log_dir, lambda: self._files.write_atomic(f"{log_dir}/{name}", encode_offsets(offsets)))


def _add(entries: _ByDir, offsets: LogOffsets) -> None:
    for log, offset in offsets:
        if log.log_dir in entries:  # otherwise the directory has come back during the pass: the next one covers it
            entries[log.log_dir][log.topic_partition] = offset


def recovery_points(logs: Iterable[Log]) -> LogOffsets:
    return ((log, log.recovery_point) for log in logs)


def cleaner_offsets(logs: Iterable[Log]) -> LogOffsets:
    return ((log, log.cleaner_offset) for log in logs if log.cleaner_offset)


def log_start_offsets(logs: Iterable[Log]) -> LogOffsets:
    """Yield only starts that differ from the base offset of the first segment."""
    return ((log, log.log_start_offset) for log in logs if log.log_start_offset > log.contents.first_base_offset)
