"""Small files that must reach the disk soon. They are forced to the disk together.

The first fsync writes the journal of the file system, and little is left to do for files that were changed before it.
One fsync after each change would write the journal once per file. Creating and renaming files would wait for that,
and with it the broker loop, when thousands of partitions are created or change their leader.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from klamm.log.background import BackgroundWorker
from klamm.log.files import Files
from klamm.log.jobs import fsync_job

DELAY_S: Final = 0.5
FILES_PER_JOB: Final = 64
"""Other jobs run in between."""


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
        """Queue files. A file that is changed again before its turn is forced to the disk once."""
        self._waiting.setdefault(log_dir, {}).update(dict.fromkeys(paths))
        if self._loop is None:
            self.stop()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_later(DELAY_S, self._next)

    def stop(self) -> None:
        """Submit all queued files now; later ones are no longer delayed."""
        self._loop = None
        while self._waiting:
            self._next()

    def forget(self) -> None:
        """Drop all queued files, as a kill does."""
        self._loop = None
        self._waiting.clear()

    def _next(self) -> None:
        """Submit the next files of one directory, and continue when they are done."""
        if not self._waiting:
            self._is_scheduled = False
            return
        log_dir, paths = next(iter(self._waiting.items()))
        part = list(islice(paths, FILES_PER_JOB))
        for path in part:
            del paths[path]
        if not paths:
            del self._waiting[log_dir]
        self._worker.submit(fsync_job(self._files, log_dir, part, self._done, self._done))

    def _done(self) -> None:
        if self._loop is not None:
            self._next()
