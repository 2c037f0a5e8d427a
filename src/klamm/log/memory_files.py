"""A file system in memory that can fail, tear writes and lose data that was not forced to the disk.

For tests and the simulator. `fault` is called before every operation and may raise OSError. For a write it may also
return how many bytes are written before the error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from klamm.errors import LogDirError
from klamm.log.files import Data, FileHandle, FileInfo, FileStat, Lock

Fault = Callable[[str, str], int | None]


class _File:
    __slots__ = ("change", "data", "modified_ms", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.modified_ms = 0
        self.change = 0
        """Number of the last change: a modification time of full precision."""


class _MemoryHandle:
    def __init__(self, files: MemoryFiles, path: str, file: _File) -> None:
        self._files = files
        self._path = path
        self._file = file

    def pwrite(self, parts: Sequence[Data], position: int) -> None:
        data = b"".join(bytes(p) for p in parts)
        allowed = self._files.check("pwrite", self._path)
        written = data if allowed is None else data[:allowed]
        content = self._file.data
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(written)] = written
        self._file.modified_ms = self._files.now_ms
        self._file.change = self._files.next_change()
        if allowed is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def pread(self, size: int, position: int) -> bytes:
        self._files.check("pread", self._path)
        return bytes(self._file.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._files.check("truncate", self._path)
        content = self._file.data
        self._file.change = self._files.next_change()
        del content[size:]
        content.extend(bytes(size - len(content)))

    def size(self) -> int:
        return len(self._file.data)

    def fsync(self) -> None:
        self._files.check("fsync", self._path)
        self._file.synced = bytes(self._file.data)

    def close(self) -> None:
        pass


class _MemoryLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class MemoryFiles:
    """Directories exist if they were made or contain something. Renames are durable at once."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.now_ms = 0
        self._files: dict[str, _File] = {}
        self._dirs: set[str] = set()
        self._locks: set[str] = set()
        self._changes = 0
        self._dir_changes: dict[str, int] = {}
        """By directory: the number of the last change of its names."""

    def next_change(self) -> int:
        self._changes += 1
        return self._changes

    def _change_names(self, path: str) -> None:
        """Note that a name was added to the directory of `path` or removed from it."""
        self._dir_changes[path.rpartition("/")[0]] = self.next_change()

    def check(self, operation: str, path: str) -> int | None:
        return self.fault(operation, path) if self.fault is not None else None

    def crash(self, rng: Random, is_kept: Callable[[str], bool] = lambda path: False) -> MemoryFiles:
        """Return the disk after a power failure: of unforced data, some prefix of each file has survived.

        Files for which `is_kept` is true were written out in time.
        """
        after = MemoryFiles()
        after.restore(self.now_ms, self._changes, self._dirs, self._dir_changes)
        for path, file in self._files.items():
            common = len(file.data) if is_kept(path) else _common_bytes(file.data, file.synced)
            data = file.data[: rng.randint(common, max(common, len(file.data)))]
            after.put(path, file, data, bytes(data))
        return after

    def restore(self, now_ms: int, changes: int, dirs: Iterable[str], dir_changes: Mapping[str, int]) -> None:
        """Start with the state of another disk, without its files and locks."""
        self.now_ms = now_ms
        self._changes = changes
        self._dirs = set(dirs)
        self._dir_changes = dict(dir_changes)

    def put(self, path: str, file: _File, data: bytearray, synced: bytes) -> None:
        """Add a copy of a file, possibly with other content."""
        kept = self._files[path] = _File()
        kept.data, kept.synced, kept.modified_ms = bytearray(data), synced, file.modified_ms
        kept.change = file.change if kept.data == file.data else self.next_change()

    def after_kill(self) -> MemoryFiles:
        """Return the disk after a kill of the process: everything that it wrote, and no locks."""
        after = MemoryFiles()
        after.restore(self.now_ms, self._changes, self._dirs, self._dir_changes)
        for path, file in self._files.items():
            after.put(path, file, file.data, file.synced)
        return after

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        self.check("open", path)
        if path not in self._files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._files[path] = _File()
            self._change_names(path)
        return _MemoryHandle(self, path, self._files[path])

    def read_bytes(self, path: str) -> bytes:
        self.check("read", path)
        return bytes(self._get(path).data)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self.check("write", path)
        file = _File()
        file.data = bytearray(data)
        file.synced = data if sync else b""
        file.modified_ms = self.now_ms
        file.change = self.next_change()
        self._files[path] = file
        self._change_names(path)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        self._change_names(old)
        self._change_names(new)
        if old in self._files:
            self._files[new] = self._files.pop(old)
            return
        inside = [p for p in self._files if p.startswith(old + "/")]
        if old not in self._dirs and not inside:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        self._dirs = {new + d[len(old) :] if d == old or d.startswith(old + "/") else d for d in self._dirs}
        for path in inside:
            self._files[new + path[len(old) :]] = self._files.pop(path)
        moved = {p: n for p, n in self._dir_changes.items() if p == old or p.startswith(old + "/")}
        for path, change in moved.items():
            del self._dir_changes[path]
            self._dir_changes[new + path[len(old) :]] = change

    def unlink(self, path: str) -> None:
        self.check("unlink", path)
        if self._files.pop(path, None) is not None:
            self._change_names(path)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._dirs

    def list_dir(self, path: str) -> list[FileInfo]:
        self.check("list", path)
        start = path + "/"
        infos = {
            name: FileInfo(name, len(f.data), False, f.modified_ms)
            for p, f in self._files.items()
            if p.startswith(start) and "/" not in (name := p[len(start) :])
        }
        for p in (*self._files, *self._dirs):
            if p.startswith(start) and (name := p[len(start) :].split("/")[0]) not in infos:
                infos[name] = FileInfo(name, 0, True, 0)
        return sorted(infos.values())

    def list_names(self, path: str) -> list[str]:
        return [info.name for info in self.list_dir(path)]

    def list_subdirs(self, path: str) -> list[str]:
        return [info.name for info in self.list_dir(path) if info.is_dir]

    def read_tail(self, path: str, size_bytes: int, max_bytes: int) -> tuple[FileStat, bytes]:
        stat = self.stat(path)
        if stat.size_bytes != size_bytes or size_bytes == 0:
            return stat, b""
        tail = min(size_bytes, max_bytes)
        return stat, self.open(path).pread(tail, size_bytes - tail)

    def stat(self, path: str) -> FileStat:
        self.check("stat", path)
        if path not in self._files and path in self._dir_changes:
            return FileStat(0, self._dir_changes[path])
        file = self._get(path)
        return FileStat(len(file.data), file.change)

    def make_dirs(self, path: str) -> None:
        self.check("mkdir", path)
        if not self.exists(path):
            self._change_names(path)
        self._dirs.add(path)

    def shared_mode(self, path: str) -> None:
        """There are no other users."""

    def remove_tree(self, path: str) -> None:
        self.check("rmtree", path)
        self._change_names(path)
        self._dir_changes = {d: n for d, n in self._dir_changes.items() if d != path and not d.startswith(path + "/")}
        self._dirs = {d for d in self._dirs if d != path and not d.startswith(path + "/")}
        self._files = {p: f for p, f in self._files.items() if not p.startswith(path + "/")}

    def fsync_path(self, path: str) -> None:
        self.check("fsync", path)
        if path in self._files:
            self._files[path].synced = bytes(self._files[path].data)
        elif not any(p.startswith(path + "/") for p in (*self._files, *self._dirs)) and path not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def sync_disk(self, path: str) -> None:
        """Do nothing: a power failure may still lose files that were not forced to the disk one by one."""

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._get(path).modified_ms = modified_ms

    def disk_usage(self, path: str) -> tuple[int, int]:
        return 1 << 40, (1 << 40) - sum(len(f.data) for f in self._files.values())

    def lock(self, path: str) -> Lock:
        if path in self._locks:
            raise LogDirError(f"{os.path.dirname(path)} is used by another broker")
        self._locks.add(path)
        return _MemoryLock(self._locks, path)

    def _get(self, path: str) -> _File:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file


def _common_bytes(one: bytearray, other: bytes) -> int:
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
