"""Durability of the embedded server: a write-ahead log of requests, snapshots of the tree, and recovery from both.

Files in the data directory: `log.<zxid>` holds the requests that took effect from that zxid on, `snapshot.<zxid>` the
tree up to and including it, `lock` keeps a second server out. An unfinished last record of the last log is cut off: it
was never acknowledged. Damage anywhere else in a log stops the start, because acknowledged changes follow it. A damaged
snapshot is replaced by the previous one and the logs since, so `KEPT_SNAPSHOTS` and their logs are kept.

Snapshots are made from the files alone (`compact`), in a separate process: the server never stops to write one.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import re
import struct
import sys
from enum import Enum
from pathlib import Path
from typing import Final

from klamm.zk.model import jute
from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import ZkError
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server.log_records import MAGIC, LogRecord, decode_record, frame, frames, is_torn_end
from klamm.zk.server.request_processor import repeat_write
from klamm.zk.server.tree_snapshot import dump_tree, load_tree

log = logging.getLogger(__name__)

KEPT_SNAPSHOTS: Final = 3
FILE_MODE: Final = 0o600
"""Znodes hold credentials."""
DIRECTORY_MODE: Final = 0o700
_NAME: Final = re.compile(r"(log|snapshot)\.([0-9a-f]{16})")


class TornEnd(Enum):
    """Handling of an unfinished write at the end of the last log during recovery."""

    REFUSE = "refuse"
    """The log was closed, so it has none."""
    SKIP = "skip"
    CUT_OFF = "cut off"


class DataDirError(Exception):
    """The data directory cannot be used; the message says why."""


class DataDirInUseError(DataDirError):
    """Another server uses the data directory."""


class DamagedError(DataDirError):
    """A file is damaged or missing, so a start would lose changes that were acknowledged."""

    def __init__(self, directory: Path, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"{problem}; `klamm zk check {directory}` shows what is left, `klamm zk repair {directory}` the choices"
        )


def repeat(tree: ZnodeTree, record: LogRecord) -> None:
    """Execute a logged request again. Raises DataDirError if it does not lead to the same zxid as before."""
    if record.zxid != tree.last_zxid + 1:
        raise DataDirError(f"the logged change {record.zxid:#x} does not follow {tree.last_zxid:#x}: a log is missing")
    try:
        if record.opcode == OpCode.CREATE_SESSION:
            timeout_ms, pos = jute.read_int(record.body, 0)
            tree.create_session(record.session_id, timeout_ms, 0, record.body[pos:])
        elif record.opcode == OpCode.CLOSE_SESSION:
            tree.close_session(record.session_id, record.now_ms)
        else:
            repeat_write(tree, record.session_id, record.opcode, record.body, record.now_ms, record.auth)
    except (ZkError, KeyError) as error:
        raise DataDirError(f"the logged change {record.zxid:#x} cannot be repeated: {error}") from error
    if tree.last_zxid != record.zxid:
        raise DataDirError(f"the logged change {record.zxid:#x} cannot be repeated: it has no effect")


class DataDir:
    """The files of one server. Opening takes the lock, which lasts until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self._lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise DataDirError(f"the data directory {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            raise DataDirInUseError(f"the data directory {path} is in use by another server") from error

    def close(self) -> None:
        os.close(self._lock_fd)

    def recover(self, tree: ZnodeTree) -> None:
        """Fill an empty tree from the newest usable snapshot and the logs after it; cut off an unfinished write.

        Raises DamagedError, and changes no file, if acknowledged changes would be lost.
        """
        for stale in self.path.glob("*.tmp"):
            stale.unlink()
        self._make_private()
        recover_tree(self.path, tree, TornEnd.CUT_OFF)

    def sync_last_log(self) -> None:
        """Force the last log to disk. A killed server may have left changes in the system's memory only.

        If a new log survived a power failure and the end of this one did not, the changes between them would be gone.
        """
        logs = numbered(self.path, "log")
        if not logs:
            return
        fd = os.open(log_path(self.path, logs[-1]), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def new_log(self, first_zxid: int) -> int:
        """Create the log for changes from exactly `first_zxid` on. The caller syncs the directory."""
        path = log_path(self.path, first_zxid)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            if os.fstat(fd).st_size > len(MAGIC):
                raise DataDirError(f"{path} holds changes that are not in the tree; it is not overwritten")
            os.ftruncate(fd, 0)
            os.write(fd, MAGIC)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        except DataDirError:
            os.close(fd)
            raise
        return fd

    def remove_covered(self) -> None:
        """Remove snapshots except the newest `KEPT_SNAPSHOTS`, and closed logs that the oldest of these covers."""
        snapshots = numbered(self.path, "snapshot")
        if len(snapshots) < KEPT_SNAPSHOTS:
            return
        for zxid in snapshots[:-KEPT_SNAPSHOTS]:
            snapshot_path(self.path, zxid).unlink(missing_ok=True)
        oldest = snapshots[-KEPT_SNAPSHOTS]
        for first, following in itertools.pairwise(numbered(self.path, "log")):
            if following <= oldest + 1:
                log_path(self.path, first).unlink(missing_ok=True)

    def uncovered_logs(self) -> int:
        """The number of logs that a start has to read."""
        newest = max(numbered(self.path, "snapshot"), default=0)
        return sum(first > newest for first in numbered(self.path, "log"))

    def _make_private(self) -> None:
        """Withdraw other users' access to files that earlier versions created readable by everyone."""
        ours = [path for path in self.path.iterdir() if path.name == "lock" or _NAME.fullmatch(path.name)]
        for path in ours:
            with contextlib.suppress(PermissionError):
                if path.stat().st_mode & 0o077:
                    path.chmod(FILE_MODE)


def log_path(directory: Path, zxid: int) -> Path:
    return directory / f"log.{zxid:016x}"


def snapshot_path(directory: Path, zxid: int) -> Path:
    return directory / f"snapshot.{zxid:016x}"


def zxid_of(path: Path) -> int:
    return int(path.name.rpartition(".")[2], 16)


def numbered(directory: Path, kind: str) -> list[int]:
    """Return the zxids in the names of the files of a kind, ascending. Other files are ignored."""
    found = (_NAME.fullmatch(path.name) for path in directory.glob(f"{kind}.*"))
    return sorted(int(match[2], 16) for match in found if match is not None and match[1] == kind)


def read_file(path: Path) -> bytes:
    """Return the content. Raises DataDirError, which names the file, if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataDirError(f"{path} cannot be read: {error.strerror}") from error


def sync_dir(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def recover_tree(directory: Path, tree: ZnodeTree, torn_end: TornEnd, before: int | None = None) -> int:
    """Fill an empty tree from the files before zxid `before`; return the zxid of the snapshot that was used.

    A snapshot contains only changes that are on disk: if it is damaged, the logs must reach at least as far.
    """
    used = _load_newest(directory, tree, before)
    newest = max((z for z in numbered(directory, "snapshot") if before is None or z < before), default=0)
    logs = [z for z in numbered(directory, "log") if before is None or z < before]
    begun = begun_logs(directory, logs) if torn_end is not TornEnd.REFUSE else []
    logs = logs[: len(logs) - len(begun)]
    _check_first_log(directory, logs, tree.last_zxid)
    for position, (first, following) in enumerate(itertools.zip_longest(logs, [*logs[1:], *begun[:1]])):
        is_last = position == len(logs) - 1
        if following is not None and following <= tree.last_zxid + 1:
            continue  # the snapshot covers it
        _replay(log_path(directory, first), tree, torn_end if is_last else TornEnd.REFUSE, newest)
    if tree.last_zxid < newest:
        damaged = snapshot_path(directory, newest)
        raise DamagedError(directory, f"{damaged} is damaged, and the logs end with change {tree.last_zxid:#x}")
    for first in begun if torn_end is TornEnd.CUT_OFF else ():
        log_path(directory, first).unlink()
    return used


def _check_first_log(directory: Path, logs: list[int], last_zxid: int) -> None:
    if logs and logs[0] > last_zxid + 1:
        raise DamagedError(
            directory, f"a log is missing in {directory}: changes {last_zxid + 1:#x} to {logs[0] - 1:#x}"
        )


def begun_logs(directory: Path, logs: list[int]) -> list[int]:
    """Return the logs at the end that were created and never used; the first log of all does not count.

    A roll begins the next log before the last records of the old one are synced, and writes to it only afterwards.
    After a power failure in between, the old log may end with a torn record and counts as the last log.
    """
    used = len(logs)
    while used > 1 and log_path(directory, logs[used - 1]).stat().st_size <= len(MAGIC):
        used -= 1
    return logs[used:]


def _replay(path: Path, tree: ZnodeTree, torn_end: TornEnd, durable_zxid: int) -> None:
    """Repeat the changes of a log. Those up to `durable_zxid` were on disk, so damage to them is not a torn write."""
    content = read_file(path)
    if len(content) > len(MAGIC) and not content.startswith(MAGIC):
        raise DamagedError(path.parent, f"{path} is damaged at byte 0")
    end, seen = len(MAGIC), zxid_of(path) - 1
    for position, payload in frames(content):
        try:
            record = decode_record(payload)
            seen = record.zxid
            if record.zxid > tree.last_zxid:
                repeat(tree, record)
        except (DataDirError, ZkError, struct.error) as error:
            raise DamagedError(path.parent, f"{path}, record at byte {end}: {error}") from error
        end = position
    if end == len(content):
        return
    size = len(content) - end
    is_torn = torn_end is not TornEnd.REFUSE and tree.last_zxid >= durable_zxid
    if not is_torn or (size > 0 and not is_torn_end(content, end, seen)):
        raise DamagedError(
            path.parent, f"{path} is damaged at byte {end}, after change {seen:#x} ({max(size, 0)} bytes follow)"
        )
    if torn_end is TornEnd.SKIP:
        return
    log.warning("%s: cut off %d bytes of an unfinished write at byte %d", path, max(size, 0), end)
    with path.open("r+b") as file:
        file.truncate(end if size > 0 else 0)
        os.fsync(file.fileno())


def _load_newest(directory: Path, tree: ZnodeTree, before: int | None) -> int:
    """Load the newest undamaged snapshot. Without one, the tree stays empty and the logs must be complete."""
    snapshots = [z for z in numbered(directory, "snapshot") if before is None or z < before]
    for zxid in reversed(snapshots):
        path = snapshot_path(directory, zxid)
        try:
            load_snapshot(path, tree)
        except DataDirError as error:
            log.warning("%s; trying an older snapshot and the logs after it", error)
        else:
            return zxid
    if snapshots and numbered(directory, "log")[:1] != [1]:
        newest = snapshot_path(directory, snapshots[-1])
        raise DamagedError(
            directory, f"{newest} is damaged, no older snapshot is whole, and the logs do not reach back to change 0x1"
        )
    return 0


def load_snapshot(path: Path, tree: ZnodeTree) -> None:
    """Fill the tree from a snapshot. If it is damaged, raises DataDirError and does not change the tree."""
    content = read_file(path)
    if not content.startswith(MAGIC):
        raise DataDirError(f"{path} is damaged: it does not begin like a snapshot")
    end, payloads = len(MAGIC), []
    for end, payload in frames(content):  # noqa: B007 - used after the loop
        payloads.append(payload)
    if end < len(content):
        raise DataDirError(f"{path} is damaged at byte {end} of {len(content)}")
    loaded = ZnodeTree()
    try:
        load_tree(loaded, payloads)
    except (ValueError, KeyError, struct.error, ZkError) as error:
        raise DataDirError(f"{path} is damaged: {error}") from error
    tree.nodes, tree.sessions, tree.last_zxid = loaded.nodes, loaded.sessions, loaded.last_zxid


def compact(directory: Path, before: int) -> None:
    """Write the snapshot of everything before zxid `before`, from closed files."""
    tree = ZnodeTree()
    used = recover_tree(directory, tree, TornEnd.REFUSE, before)
    if used != tree.last_zxid:
        write_snapshot(directory, tree)


def write_snapshot(directory: Path, tree: ZnodeTree) -> None:
    """Write the snapshot of a tree, and read it again before it counts, because logs are removed afterwards."""
    target = snapshot_path(directory, tree.last_zxid)
    # A compactor may outlive a server that was killed: each writes its own file.
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with open(fd, "wb") as file:
        file.write(MAGIC)
        file.writelines(map(frame, dump_tree(tree)))
        file.flush()
        os.fsync(file.fileno())
    load_snapshot(temporary, ZnodeTree())
    temporary.rename(target)
    sync_dir(directory)


def main(arguments: list[str]) -> int:
    try:
        compact(Path(arguments[0]), int(arguments[1]))
    except (OSError, DataDirError, ZkError) as error:
        print(f"The snapshot cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
