"""All disk access of the log, as an interface: the simulator replaces it by one that fails.

Reads and writes have a position, so a handle has no state of its own. A write is complete or raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from itertools import islice
from stat import S_IMODE, S_IROTH, S_ISDIR, S_IXOTH
from typing import Final, NamedTuple, Protocol, TypeVar

from klamm.errors import LogDirError

Data = bytes | bytearray | memoryview
T = TypeVar("T")
_TO_READ: Final = os.O_RDONLY | os.O_CLOEXEC
_SMALL_FILE: Final = 4096
"""Files below this size are read by a single call."""
_SAMPLE: Final = 1000
"""Entries of a log directory whose modes are read: a start does not pay for each of very many partitions."""


def is_exhausted(error: OSError) -> bool:
    """Whether too many files are open, which is not a failure of the disk."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class FileInfo(NamedTuple):
    name: str
    size_bytes: int
    is_dir: bool
    modified_ms: int


class FileStat(NamedTuple):
    size_bytes: int
    modified_ns: int


class FileHandle(Protocol):
    """An open file."""

    def pwrite(self, parts: Sequence[Data], position: int) -> None:
        """Write all parts, one after the other, starting at `position`."""

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes: fewer if the file ends before."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """Paths are absolute strings. Every method raises OSError if the disk fails."""

    def open(self, path: str, *, create: bool = False) -> FileHandle: ...

    def read_bytes(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace the file in one step, through `<path>.tmp`."""

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None:
        """Remove a file, if it exists."""

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[FileInfo]:
        """Return the entries of a directory, ordered by name."""

    def list_names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order: cheaper than `list_dir`."""

    def list_subdirs(self, path: str) -> list[str]:
        """Return the names of the directories in a directory, ordered: cheaper than `list_dir`."""

    def read_tail(self, path: str, size_bytes: int, max_bytes: int) -> tuple[FileStat, bytes]:
        """Return the status of a file and its last bytes, none if its size is not `size_bytes`."""

    def stat(self, path: str) -> FileStat: ...

    def make_dirs(self, path: str) -> None: ...

    def shared_mode(self, path: str) -> int | None:
        """Return the mode of a directory if all users can read files in it; None otherwise, or if that is unknown."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents, if it exists."""

    def fsync_path(self, path: str) -> None:
        """Force a file, or the names in a directory, to the disk."""

    def sync_disk(self, path: str) -> None:
        """Write out all pending data of the disk that holds a directory. Errors are reported by a later fsync."""

    def set_modified(self, path: str, modified_ms: int) -> None: ...

    def disk_usage(self, path: str) -> tuple[int, int]:
        """Return (total bytes, usable bytes) of the disk that holds a directory."""

    def lock(self, path: str) -> Lock:
        """Take the lock file. Raises LogDirError if another process holds it."""


class OsFileHandle:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwrite(self, parts: Sequence[Data], position: int) -> None:
        expected = sum(map(len, parts))
        written = os.pwritev(self._fd, parts, position)
        if written != expected:
            # A short write happens when a disk fills up: the next attempt raises the reason.
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                position_now = position + expected - len(rest)
                rest = rest[os.pwrite(self._fd, rest, position_now) :]

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fsync(self) -> None:
        os.fsync(self._fd)

    def detach(self) -> int:
        """Return the descriptor and forget it: the caller closes it."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _stat_of(entry: os.DirEntry[str]) -> os.stat_result:
    """Return the status of an entry. A broken symbolic link counts as a file: it must not prevent a start."""
    try:
        return entry.stat()
    except OSError:
        if not entry.is_symlink():
            raise
        return entry.stat(follow_symlinks=False)


class OsFiles:
    """The file system of the machine. `close_idle` closes files that can be opened again; it returns whether it did."""

    _FILE_MODE: Final = 0o600
    _DIR_MODE: Final = 0o700
    """Records and credentials of the cluster are for the broker's user only."""

    def __init__(self, close_idle: Callable[[], bool] = lambda: False) -> None:
        self._close_idle = close_idle

    def _opening(self, opener: Callable[[], T]) -> T:
        """Open a file; if too many are open, close some and retry once."""
        try:
            return opener()
        except OSError as e:
            if not is_exhausted(e) or not self._close_idle():
                raise
        return opener()

    def _open_to_read(self, path: str) -> int:
        """Return a descriptor. A start opens two files per partition, so the usual case is a single call."""
        try:
            return os.open(path, _TO_READ)
        except OSError as e:
            if not is_exhausted(e):
                raise
        return self._opening(lambda: os.open(path, _TO_READ))

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFileHandle(self._opening(lambda: os.open(path, flags, self._FILE_MODE)))

    def read_bytes(self, path: str) -> bytes:
        fd = self._open_to_read(path)
        try:  # takes a third of the time of a file object; a start reads at least one file per partition
            data = os.read(fd, _SMALL_FILE)
            if len(data) < _SMALL_FILE:
                return data
            parts = [data]
            while data := os.read(fd, 1 << 20):
                parts.append(data)
            return b"".join(parts)
        finally:
            os.close(fd)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        tmp = path + ".tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        handle = OsFileHandle(self._opening(lambda: os.open(tmp, flags, self._FILE_MODE)))
        try:
            handle.pwrite((data,), 0)
            if sync:
                handle.fsync()
        finally:
            handle.close()
        os.replace(tmp, path)
        if sync:
            self.fsync_path(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_dir(self, path: str) -> list[FileInfo]:
        infos = []
        with self._opening(lambda: os.scandir(path)) as entries:
            for entry in entries:
                stat = _stat_of(entry)
                infos.append(FileInfo(entry.name, stat.st_size, S_ISDIR(stat.st_mode), stat.st_mtime_ns // 1_000_000))
        return sorted(infos)

    def list_names(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError as e:
            if not is_exhausted(e):
                raise
        return self._opening(lambda: os.listdir(path))

    def list_subdirs(self, path: str) -> list[str]:
        with self._opening(lambda: os.scandir(path)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def read_tail(self, path: str, size_bytes: int, max_bytes: int) -> tuple[FileStat, bytes]:
        fd = self._open_to_read(path)
        try:
            stat = os.fstat(fd)
            size = stat.st_size
            tail = b""
            if size == size_bytes:
                tail = os.pread(fd, max_bytes, size - max_bytes if size > max_bytes else 0)
            return FileStat(size, stat.st_mtime_ns), tail
        finally:
            os.close(fd)

    def stat(self, path: str) -> FileStat:
        stat = os.stat(path)
        return FileStat(stat.st_size, stat.st_mtime_ns)

    def make_dirs(self, path: str) -> None:
        try:
            os.mkdir(path, self._DIR_MODE)
        except OSError:  # it exists, or its parent does not
            os.makedirs(path, self._DIR_MODE, exist_ok=True)

    def shared_mode(self, path: str) -> int | None:
        try:
            mode = S_IMODE(os.stat(path).st_mode)
            if not mode & S_IXOTH:
                return None
            with os.scandir(path) as entries:
                is_shared = any(_stat_of(entry).st_mode & S_IROTH for entry in islice(entries, _SAMPLE))
        except OSError:
            return None
        return mode if is_shared else None

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def fsync_path(self, path: str) -> None:
        fd = self._open_to_read(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_disk(self, path: str) -> None:
        fd = self._open_to_read(path)
        try:
            import ctypes

            if getattr(ctypes.CDLL(None), "syncfs", lambda fd: -1)(fd) != 0:
                os.sync()
        finally:
            os.close(fd)

    def set_modified(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def disk_usage(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail

    def lock(self, path: str) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(fd)
            raise LogDirError(
                f"{os.path.dirname(path)} is used by another broker: stop that one or choose another directory"
            ) from e
        return OsLock(fd)
