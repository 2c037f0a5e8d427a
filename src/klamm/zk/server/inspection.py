"""State of a data directory of the embedded server, and its repair. Behind `klamm zk check` and `klamm zk repair`.

Inspection changes nothing. A repair keeps every file in a backup directory, and leaves one new snapshot of the state
that was chosen.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from klamm.lazy_dataclass import lazy_dataclass
from klamm.zk.model.ops import ZkError
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server import rollback
from klamm.zk.server.log_records import (
    MAGIC,
    MIN_RECORD_BYTES,
    LogRecord,
    decode_record,
    frames,
    is_torn_end,
    last_record,
)
from klamm.zk.server.txnlog import (
    DIRECTORY_MODE,
    DataDir,
    DataDirError,
    TornEnd,
    begun_logs,
    load_snapshot,
    log_path,
    numbered,
    read_file,
    recover_tree,
    repeat,
    snapshot_path,
    sync_dir,
    write_snapshot,
)

T = TypeVar("T")
_BACKUP: Final = "backup-"
OnStep = Callable[[int, int], None]
"""Receives the numbers of finished and of all steps. A step reads one file, or recovers a state from several."""


def _ignore(done: int, total: int) -> None:
    """Report no progress."""


class FileState(Enum):
    WHOLE = "whole"
    UNFINISHED = "unfinished"
    """A log whose last record is incomplete: a start cuts it off."""
    DAMAGED = "damaged"


@lazy_dataclass(frozen=True, slots=True)
class FileReport:
    """One snapshot or log. `first` and `last` are zxids that can be read before any damage; a snapshot has only one."""

    name: str
    state: FileState
    first: int | None
    last: int | None
    size_bytes: int
    damaged_at: int | None = None
    highest: int = 0
    """The highest zxid in the file, also after damage."""
    unreadable_end: int = 0
    """Bytes after the last whole record of a damaged log."""


@lazy_dataclass(frozen=True, slots=True)
class Choice:
    """A state that can be recovered: the tree after change `zxid`, from a snapshot (0: none) and the logs."""

    zxid: int
    snapshot: int
    time_ms: int
    """The time of its last change; 0 if no log contains it."""


@lazy_dataclass(frozen=True, slots=True)
class Report:
    files: tuple[FileReport, ...]
    recovered: int | None
    """The last change after a start, None if a start fails."""
    problem: str
    choices: tuple[Choice, ...]
    highest: int
    unreadable_end: int
    """Bytes at the end of the last log that may hold changes beyond `highest`."""
    is_in_use: bool

    @property
    def is_damaged(self) -> bool:
        return any(file.state is FileState.DAMAGED for file in self.files)


@lazy_dataclass(frozen=True, slots=True)
class Repaired:
    """`last_zxid` is beyond every zxid in the old files: none is used twice, and clients that saw one are accepted."""

    backup: Path
    last_zxid: int


def inspect(directory: Path, on_step: OnStep = _ignore) -> Report:
    """Read every file. Raises DataDirError if the directory is not that of an embedded server."""
    if not directory.is_dir():
        raise DataDirError(f"{directory} is not a directory")
    snapshots, logs = numbered(directory, "snapshot"), numbered(directory, "log")
    if not snapshots and not logs:
        raise DataDirError(f"{directory} holds no files of an embedded ZooKeeper")
    steps = _Steps(2 * len(snapshots) + len(logs) + 2, on_step)
    files = [steps.done(_snapshot_report(snapshot_path(directory, zxid), zxid)) for zxid in snapshots]
    last_used = logs[-1 - len(begun_logs(directory, logs))] if logs else 0
    durable_zxid = max(snapshots, default=0)
    files += [steps.done(_log_report(log_path(directory, z), z, durable_zxid, is_last=z == last_used)) for z in logs]
    tree = ZnodeTree()
    recovered, problem = None, ""
    try:
        recover_tree(directory, tree, TornEnd.SKIP)
        recovered = tree.last_zxid
    except DataDirError as error:
        problem = getattr(error, "problem", str(error))
    steps.done(recovered)
    highest = max(file.highest for file in files)
    unreadable = files[-1].unreadable_end
    choices = _choices(directory, steps)
    return Report(tuple(files), recovered, problem, choices, highest, unreadable, is_in_use(directory))


class _Steps:
    """Counts the finished steps of an inspection."""

    def __init__(self, total: int, on_step: OnStep) -> None:
        self._done, self._total, self._on_step = 0, total, on_step

    def done(self, result: T) -> T:
        self._done += 1
        self._on_step(self._done, self._total)
        return result


def is_in_use(directory: Path) -> bool:
    """Whether a server uses the directory."""
    try:
        fd = os.open(directory / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def repair(directory: Path, zxid: int, now_ms: int, on_step: OnStep = _ignore) -> Repaired:
    """Set the directory to the state after change `zxid`, one of the choices of `inspect`.

    Sessions end, and epochs and producer ids continue beyond those that lost changes may have used. Raises
    DataDirInUseError while a server runs, DataDirError if the state cannot be recovered.
    """
    if not directory.is_dir():
        raise DataDirError(f"{directory} is not a directory")
    data_dir = DataDir(directory)
    try:
        report = inspect(directory, on_step)
        choice = next((choice for choice in report.choices if choice.zxid == zxid), None)
        if choice is None:
            raise DataDirError(f"the state after change {zxid:#x} cannot be recovered from {directory}")
        tree, _ = _reach(directory, choice.snapshot)
        assert tree.last_zxid == zxid
        tree.last_zxid = _unused_zxid(report)
        rollback.advance(tree, tree.last_zxid - 1 - zxid, now_ms)
        backup = _back_up(directory)
        write_snapshot(directory, tree)
        # After a crash in between, the remaining files are a state of their own or fail a start: repair again then.
        for kind, path_of in (("snapshot", snapshot_path), ("log", log_path)):
            for number in reversed(numbered(directory, kind)):
                if (kind, number) != ("snapshot", tree.last_zxid):
                    path_of(directory, number).unlink()
        sync_dir(directory)
        return Repaired(backup, tree.last_zxid)
    finally:
        data_dir.close()


def _unused_zxid(report: Report) -> int:
    """Return a zxid beyond every change in the files, including those in damaged parts."""
    unreadable = sum(file.size_bytes - file.damaged_at for file in report.files if file.damaged_at is not None)
    return report.highest + 1 + unreadable // MIN_RECORD_BYTES


def _back_up(directory: Path) -> Path:
    backup = next(path for n in range(1, 10_000) if not (path := directory / f"{_BACKUP}{n}").exists())
    backup.mkdir(mode=DIRECTORY_MODE)
    files = [snapshot_path(directory, zxid) for zxid in numbered(directory, "snapshot")]
    files += [log_path(directory, zxid) for zxid in numbered(directory, "log")]
    for path in files:
        try:
            os.link(path, backup / path.name)
        except OSError:  # a file system without links
            _copy(path, backup / path.name)
    sync_dir(backup)
    sync_dir(directory)
    return backup


def _copy(source: Path, target: Path) -> None:
    """Copy a file and sync it: the original is removed afterwards."""
    shutil.copy2(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _snapshot_report(path: Path, zxid: int) -> FileReport:
    size = path.stat().st_size
    try:
        load_snapshot(path, ZnodeTree())
    except DataDirError:
        content = _readable(path)
        end = max((end for end, _ in frames(content)), default=len(MAGIC)) if content.startswith(MAGIC) else 0
        return FileReport(path.name, FileState.DAMAGED, None, zxid, size, end, zxid)
    return FileReport(path.name, FileState.WHOLE, None, zxid, size, None, zxid)


def _readable(path: Path) -> bytes:
    """Return the content; empty if it cannot be read."""
    try:
        return read_file(path)
    except DataDirError:
        return b""


def _log_report(path: Path, number: int, durable_zxid: int, *, is_last: bool) -> FileReport:
    """Inspect a log. Only the last log in use can end with an unfinished write, and only after the newest snapshot."""
    content = read_file(path)
    size = len(content)
    if size <= len(MAGIC):
        return FileReport(path.name, FileState.WHOLE, None, None, size, None, number - 1)
    if not content.startswith(MAGIC):
        whole_until, highest = last_record(content, 0, number - 1)
        return FileReport(path.name, FileState.DAMAGED, None, None, size, 0, highest, size - whole_until)
    first, last, end = None, number - 1, len(MAGIC)
    for position, record in _records(content):
        first = record.zxid if first is None else first
        last, end = record.zxid, position
    seen = None if first is None else last
    if end == size:
        return FileReport(path.name, FileState.WHOLE, first, seen, size, None, last)
    if is_last and last >= durable_zxid and is_torn_end(content, end, last):
        return FileReport(path.name, FileState.UNFINISHED, first, seen, size, end, last)
    whole_until, highest = last_record(content, end, last)
    return FileReport(path.name, FileState.DAMAGED, first, seen, size, end, highest, size - whole_until)


def _records(content: bytes) -> Iterator[tuple[int, LogRecord]]:
    """Yield records from the beginning, each with the position after it, until one cannot be read."""
    for position, payload in frames(content):
        try:
            yield position, decode_record(payload)
        except (ZkError, struct.error):
            return


def _choices(directory: Path, steps: _Steps) -> tuple[Choice, ...]:
    """Return the different states, the latest first."""
    found: dict[int, Choice] = {}
    for base in [*reversed(numbered(directory, "snapshot")), 0]:
        try:
            tree, time_ms = _reach(directory, base)
        except DataDirError:
            continue
        finally:
            steps.done(None)
        if tree.last_zxid > 0:
            found.setdefault(tree.last_zxid, Choice(tree.last_zxid, base, time_ms))
    return tuple(sorted(found.values(), key=lambda choice: -choice.zxid))


def _reach(directory: Path, base: int) -> tuple[ZnodeTree, int]:
    """Return the tree of snapshot `base` (0: an empty one) with all later changes, and the time of the last one."""
    tree = ZnodeTree()
    time_ms = 0
    if base:
        load_snapshot(snapshot_path(directory, base), tree)
    for first in numbered(directory, "log"):
        content = read_file(log_path(directory, first))
        for _, record in _records(content) if content.startswith(MAGIC) else ():
            if record.zxid <= tree.last_zxid:
                continue
            try:
                repeat(tree, record)
            except DataDirError:
                return tree, time_ms
            time_ms = record.now_ms or time_ms
    return tree, time_ms
