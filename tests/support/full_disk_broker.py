"""A broker whose disk is full while a file exists: `full_disk_broker.py FLAG_FILE ARGUMENT...`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from klamm.log.files import Data, FileHandle, OsFileHandle, OsFiles
from klamm.server.__main__ import run
from klamm.server.environment import Environment


def check(flag: Path) -> None:
    if flag.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFileHandle(OsFileHandle):
    __slots__ = ("_flag",)

    def __init__(self, fd: int, flag: Path) -> None:
        super().__init__(fd)
        self._flag = flag

    def pwrite(self, parts: Sequence[Data], position: int) -> None:
        check(self._flag)
        super().pwrite(parts, position)


class FullFiles(OsFiles):
    """The file system of the machine; writes fail while the flag is there."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self._flag = flag

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        opened = super().open(path, create=create)
        assert isinstance(opened, OsFileHandle)
        return FullFileHandle(opened.detach(), self._flag)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        check(self._flag)
        super().write_atomic(path, data, sync=sync)


if __name__ == "__main__":
    sys.exit(run(Environment(files=FullFiles(Path(sys.argv.pop(1))))))
