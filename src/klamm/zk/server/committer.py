"""Group commit: answers to clients wait until the changes that they depend on are on disk.

All records of one turn of the loop, and all that arrive while a sync runs, share the next sync. The sync runs in a
thread of its own. Nothing that depends on an unsynced change leaves the server before that change is on disk: neither
its own reply, nor a watch event, nor the answer to another client's read.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from klamm.zk.model.ops import NotLogged
from klamm.zk.server.txnlog import sync_dir

log = logging.getLogger(__name__)

_Roll: TypeAlias = tuple[int, int, asyncio.Future[None]]
"""The number of records before the switch, the new file, and the future of the caller."""


class Committer:
    """Owns the open log file. After the first error `on_failure` is called; no record is accepted or released then."""

    def __init__(
        self,
        fd: int,
        directory: Path,
        *,
        fsync: bool,
        on_released: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._directory = directory
        self._on_released = on_released
        self._on_failure = on_failure
        self._executor = ThreadPoolExecutor(1, "zk-log") if fsync else None
        self._records: list[bytes] = []
        self._roll: _Roll | None = None
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._appended = 0
        self._synced = 0
        self._running: asyncio.Future[None] | None = None
        self._scheduled = False
        self._failed = False
        self.size_bytes = 0
        self.pending_bytes = 0
        """Records that are not on disk yet."""

    @property
    def is_safe(self) -> bool:
        """Whether everything appended is on disk, and everything that waited for it is delivered."""
        return self._appended == self._synced and not self._waiting

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def append(self, record: bytes) -> None:
        """Append a record. Raises NotLogged if the log has failed: the change must not be made."""
        if self._failed:
            raise NotLogged(message="the log cannot be written")
        self.pending_bytes += len(record)
        self._records.append(record)
        self._appended += 1
        self.size_bytes += len(record)
        self._schedule()

    def when_safe(self, deliver: Callable[[], None]) -> None:
        """Call `deliver` once everything appended so far is on disk, in the order of the calls."""
        if self.is_safe:
            deliver()
        else:
            self._waiting.append((self._appended, deliver))

    def roll(self, new_fd: int) -> asyncio.Future[None]:
        """Append to another file from now on. Done when the old file is complete, synced and closed."""
        assert self._roll is None, "one roll at a time"
        done: asyncio.Future[None] = self._loop.create_future()
        self._roll = (self._appended, new_fd, done)
        self.size_bytes = 0
        self._schedule()
        return done

    def fail(self, error: OSError) -> None:
        """End the log: a change could not be written, so no later one may be either."""
        if self._failed:
            return
        self._failed = True
        log.error("the log cannot be written, so the server stops: %s", error)
        self._on_failure(error)

    def _schedule(self) -> None:
        if not self._scheduled and self._running is None and not self._failed:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._running is not None or self._failed or not (self._records or self._roll):
            return
        count = len(self._records) if self._roll is None else self._roll[0] - self._synced
        records, self._records = self._records[:count], self._records[count:]
        target, fd, roll = self._synced + count, self._fd, self._roll
        size = sum(map(len, records))
        if roll is not None:
            self._fd, self._roll = roll[1], None
        directory = self._directory
        sync = self._executor is not None

        def work() -> None:
            _write(fd, records, sync=sync)
            if roll is not None:
                os.close(fd)
                if sync:
                    sync_dir(directory)

        if self._executor is None:
            self._finish(target, size, _try(work), roll)
            return
        running = self._running = self._loop.run_in_executor(self._executor, work)
        running.add_done_callback(lambda done: self._on_synced(target, size, done, roll))

    def _on_synced(self, target: int, size: int, done: asyncio.Future[None], roll: _Roll | None) -> None:
        self._running = None
        error = done.exception()
        if error is not None and not isinstance(error, OSError):
            error = OSError(errno.EIO, repr(error))
        self._finish(target, size, error, roll)

    def _finish(self, target: int, size: int, error: OSError | None, roll: _Roll | None) -> None:
        if error is not None:
            self.fail(error)
            return
        self._synced = target
        self.pending_bytes -= size
        while self._waiting and self._waiting[0][0] <= target:
            self._waiting.popleft()[1]()
        self._on_released()
        if roll is not None and not roll[2].done():
            roll[2].set_result(None)
        if self._records or self._roll:
            self._schedule()

    async def settle(self) -> None:
        """Wait until everything appended is on disk, or the disk has failed."""
        while not self._failed and (self._records or self._running is not None or self._roll is not None):
            if self._running is None:
                self._start()
            if self._running is not None:
                await asyncio.wait([self._running])
            await asyncio.sleep(0)  # lets the callback of the sync run

    async def close(self) -> None:
        """Settle, then close the file."""
        await self.settle()
        if self._executor is not None:
            self._executor.shutdown()
        os.close(self._fd)


def _write(fd: int, records: list[bytes], *, sync: bool) -> None:
    view = memoryview(b"".join(records))
    while view:
        view = view[os.write(fd, view) :]
    if sync:
        os.fdatasync(fd)


def _try(action: Callable[[], None]) -> OSError | None:
    try:
        action()
    except OSError as error:
        return error
    return None
