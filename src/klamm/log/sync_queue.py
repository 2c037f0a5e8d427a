"""Small files that must reach the disk soon: they are forced to it together.

A file system that keeps a journal writes it for the first file and has little left to do for those that were changed
before it. One fsync after each change would write the journal once a file instead, and make whoever creates or renames
files meanwhile wait for it: the broker loop, when thousands of partitions come or change their leader.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from klamm.log.background import BackgroundWorker
from klamm.log.files import Files
from klamm.log.jobs import fsync_job

DELAY_S: Final = 0.5
FILES_A_JOB: Final = 64
"""Other jobs have their turn in between."""


class SyncQueue:
    """Owner: the `LogManager`. Without a loop everything happens at once."""

    def __init__(self, files: Files, worker: BackgroundWorker) -> None:
        self._files = files
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, dict[str, None]] = {}
        self._is_scheduled = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, log_dir: str, *paths: str) -> None:
        """A file that is changed again before its turn is forced once."""
        self._waiting.setdefault(log_dir, {}).update(dict.fromkeys(paths))
        if self._loop is None:
            self.stop()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_later(DELAY_S, self._next)

    def stop(self) -> None:
        """Forces all that waits, as soon as the worker gets to it; what comes later is not delayed any more."""
        self._loop = None
        while self._waiting:
            self._next()

    def forget(self) -> None:
        """Nothing of it happens any more, as after a kill."""
        self._loop = None
        self._waiting.clear()

    def _next(self) -> None:
        """Hands the next files of one directory to the worker, and goes on when they are done."""
        if not self._waiting:
            self._is_scheduled = False
            return
        log_dir, paths = next(iter(self._waiting.items()))
        part = list(islice(paths, FILES_A_JOB))
        for path in part:
            del paths[path]
        if not paths:
            del self._waiting[log_dir]
        self._worker.submit(fsync_job(self._files, log_dir, part, self._done, self._done))

    def _done(self) -> None:
        if self._loop is not None:
            self._next()
