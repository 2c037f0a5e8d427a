"""A disk that can be slow: every write, read and fsync is delayed by the time that the owner of the cluster sets.

The owner and the broker share a file of eight bytes. The broker maps it, so reading it costs nothing.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from klamm.log.files import Data, FileHandle, FileStat, OsFileHandle, OsFiles

_DELAY: Final = struct.Struct("<d")


def write_delay(path: Path, seconds: float) -> None:
    """Set the delay of every access. The file is changed in place: the broker has mapped it."""
    if not path.exists():
        path.write_bytes(_DELAY.pack(0.0))
    with path.open("r+b") as file:
        file.write(_DELAY.pack(seconds))


def read_delay(path: Path) -> float:
    return float(_DELAY.unpack(path.read_bytes())[0]) if path.exists() else 0.0


class SharedDelay:
    """The broker's view of the file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _DELAY.size, access=mmap.ACCESS_READ)

    def wait(self) -> None:
        if (seconds := _DELAY.unpack_from(self._map)[0]) > 0:
            time.sleep(seconds)


class SlowFileHandle(OsFileHandle):
    __slots__ = ("_wait",)

    def __init__(self, fd: int, wait: Callable[[], None]) -> None:
        super().__init__(fd)
        self._wait = wait

    def pwrite(self, parts: Sequence[Data], position: int) -> None:
        self._wait()
        super().pwrite(parts, position)

    def pread(self, size: int, position: int) -> bytes:
        self._wait()
        return super().pread(size, position)

    def fsync(self) -> None:
        self._wait()
        super().fsync()


class SlowFiles(OsFiles):
    """The file system of the machine, with the delay before each access to contents."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        opened = super().open(path, create=create)
        assert isinstance(opened, OsFileHandle)
        return SlowFileHandle(opened.detach(), self._wait)

    def read_tail(self, path: str, size_bytes: int, max_bytes: int) -> tuple[FileStat, bytes]:
        self._wait()
        return super().read_tail(path, size_bytes, max_bytes)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._wait()
        super().write_atomic(path, data, sync=sync)

    def fsync_path(self, path: str) -> None:
        self._wait()
        super().fsync_path(path)
