"""Durability of the embedded server: a write-ahead log of requests, snapshots of the tree, and recovery from both.

Files in the data directory: `log.<zxid>` holds the requests that took effect from that zxid on, `snapshot.<zxid>` the
tree up to and with it, `lock` keeps a second server out. Both are sequences of records `length, CRC-32, payload`. A
torn or damaged tail of the last log is cut off, so recovery keeps a prefix of what was written; everything that was
acknowledged had been synced and is in that prefix. Damage anywhere else stops the start with a sentence.

Snapshots are made from the files alone (`compact`), in a process of its own: the server never stops to write one.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from klamm.zk import jute
from klamm.zk.jute import OpCode
from klamm.zk.ops import Id, ZkError
from klamm.zk.requests import repeat_write
from klamm.zk.snapshot import dump_tree, load_tree
from klamm.zk.tree import ZnodeTree

log = logging.getLogger(__name__)

MAGIC: Final = b"klammzk1"
_FRAME: Final = struct.Struct(">II")
_RECORD: Final = struct.Struct(">qqqiB")
MAX_RECORD_BYTES: Final = 1 << 26
_NAME: Final = re.compile(r"(log|snapshot)\.([0-9a-f]{16})")


class DataDirError(Exception):
    """The data directory cannot be used; the message says why."""


class DataDirInUseError(DataDirError):
    """Another server has the data directory."""


class LogRecord(NamedTuple):
    """A request that took effect. `auth` is who asked: access rules must decide the same again."""

    zxid: int
    now_ms: int
    session_id: int
    opcode: int
    auth: Sequence[Id]
    body: bytes


def encode_record(record: LogRecord) -> bytes:
    zxid, now_ms, session_id, opcode, auth, body = record
    who = b"".join(jute.string_bytes(i.scheme) + jute.string_bytes(i.id) for i in auth)
    payload = _RECORD.pack(zxid, now_ms, session_id, opcode, len(auth)) + who + body
    return frame(payload)


def decode_record(payload: bytes) -> LogRecord:
    zxid, now_ms, session_id, opcode, count = _RECORD.unpack_from(payload)
    pos = _RECORD.size
    auth = []
    for _ in range(count):
        scheme, pos = jute.read_string(payload, pos)
        who, pos = jute.read_string(payload, pos)
        auth.append(Id(scheme, who))
    return LogRecord(zxid, now_ms, session_id, opcode, auth, payload[pos:])


def frame(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def frames(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Whole, undamaged payloads from the beginning, each with the position behind it; stops at the first damage."""
    pos = len(MAGIC)
    while pos + _FRAME.size <= len(content):
        length, crc = _FRAME.unpack_from(content, pos)
        end = pos + _FRAME.size + length
        if length > MAX_RECORD_BYTES or end > len(content):
            return
        payload = content[pos + _FRAME.size : end]
        if zlib.crc32(payload) != crc:
            return
        pos = end
        yield pos, payload


def repeat(tree: ZnodeTree, record: LogRecord) -> None:
    """Executes a logged request again. Raises DataDirError when it does not lead to the zxid it led to before."""
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
        raise DataDirError(f"the logged change {record.zxid:#x} does not follow {tree.last_zxid:#x}: a log is missing")


class DataDir:
    """The files of one server. Opening takes the lock, which lasts until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
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
        """Fills an empty tree from the newest snapshot and the logs after it; cuts off the last log's torn end."""
        for stale in self.path.glob("*.tmp"):
            stale.unlink()
        _recover(self.path, tree, repair=True)

    def new_log(self, first_zxid: int) -> int:
        """Creates the log for changes from exactly `first_zxid` on. The caller makes the directory durable."""
        path = log_path(self.path, first_zxid)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
        try:
            os.write(fd, MAGIC)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return fd

    def remove_covered(self) -> None:
        """Removes snapshots and closed logs that the newest snapshot makes superfluous."""
        snapshots = numbered(self.path, "snapshot")
        if not snapshots:
            return
        newest = snapshots[-1]
        for zxid in snapshots[:-1]:
            snapshot_path(self.path, zxid).unlink(missing_ok=True)
        logs = numbered(self.path, "log")
        for first, following in itertools.pairwise(logs):
            if following <= newest + 1:
                log_path(self.path, first).unlink(missing_ok=True)


def log_path(directory: Path, zxid: int) -> Path:
    return directory / f"log.{zxid:016x}"


def snapshot_path(directory: Path, zxid: int) -> Path:
    return directory / f"snapshot.{zxid:016x}"


def numbered(directory: Path, kind: str) -> list[int]:
    """The zxids in the names of the files of a kind, ascending. What only looks like one is not ours and is left."""
    found = (_NAME.fullmatch(path.name) for path in directory.glob(f"{kind}.*"))
    return sorted(int(match[2], 16) for match in found if match is not None and match[1] == kind)


def sync_dir(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _recover(directory: Path, tree: ZnodeTree, *, repair: bool, before: int | None = None) -> None:
    snapshots = [z for z in numbered(directory, "snapshot") if before is None or z < before]
    if snapshots:
        _load_snapshot(snapshot_path(directory, snapshots[-1]), tree)
    logs = [z for z in numbered(directory, "log") if before is None or z < before]
    if repair:
        _drop_begun(directory, logs)
    for position, first in enumerate(logs):
        is_last = position == len(logs) - 1
        if not is_last and logs[position + 1] <= tree.last_zxid + 1:
            continue  # the snapshot covers it
        _replay(log_path(directory, first), tree, repair=repair and is_last)


def _drop_begun(directory: Path, logs: list[int]) -> None:
    """Removes logs at the end that were begun and never used.

    A roll begins the next log before the last records of the old one are synced, and writes to it only afterwards: a
    power cut in between leaves the old one torn, and it is the last that counts.
    """
    while len(logs) > 1 and log_path(directory, logs[-1]).stat().st_size <= len(MAGIC):
        log_path(directory, logs.pop()).unlink()


def _replay(path: Path, tree: ZnodeTree, *, repair: bool) -> None:
    content = path.read_bytes()
    end = len(MAGIC)
    for end, payload in frames(content):  # noqa: B007 - where the last whole record ends is used below
        record = decode_record(payload)
        if record.zxid > tree.last_zxid:
            repeat(tree, record)
    if end >= len(content) and content.startswith(MAGIC):
        return
    if not repair:
        raise DataDirError(f"{path} is damaged at byte {end}; restore the data directory from a copy")
    log.warning("%s: cut off %d bytes of an unfinished write at byte %d", path, len(content) - end, end)
    with path.open("r+b") as file:
        file.truncate(end if content.startswith(MAGIC) else 0)
        os.fsync(file.fileno())


def _load_snapshot(path: Path, tree: ZnodeTree) -> None:
    content = path.read_bytes()
    payloads = [payload for _, payload in frames(content)] if content.startswith(MAGIC) else []
    try:
        load_tree(tree, payloads)
    except (ValueError, KeyError, struct.error, ZkError) as error:
        raise DataDirError(f"{path} is damaged; restore the data directory from a copy") from error


def compact(directory: Path, before: int) -> None:
    """Writes the snapshot of everything before zxid `before`, from the files that are closed already."""
    tree = ZnodeTree()
    _recover(directory, tree, repair=False, before=before)
    target = snapshot_path(directory, tree.last_zxid)
    temporary = target.with_name(target.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(MAGIC)
        file.writelines(map(frame, dump_tree(tree)))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(target)
    sync_dir(directory)


if __name__ == "__main__":
    compact(Path(sys.argv[1]), int(sys.argv[2]))
