"""Snapshots of a running server: a separate process creates one from closed logs, then covered files are removed."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server.committer import Committer
from klamm.zk.server.txnlog import DataDir, DataDirError

log = logging.getLogger(__name__)

MAX_LOG_FILES: Final = 8
"""Number of logs without a snapshot at which a start has one written."""
COMPACTION_RETRY_MS: Final = 60_000
"""Pause after a disk error before the next compaction."""


class Compaction:
    """Runs at most one compaction at a time. After an error the logs are kept."""

    def __init__(
        self,
        data_dir: DataDir,
        tree: ZnodeTree,
        committer: Committer,
        roll_bytes: int,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._data_dir = data_dir
        self._tree = tree
        self._committer = committer
        self._roll_bytes = roll_bytes
        self._monotonic_ms = monotonic_ms
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._due_ms = 0

    def start_after_recovery(self) -> None:
        """Compact the logs of earlier runs if there are many; the log of this run has just begun."""
        if self._data_dir.uncovered_logs() > MAX_LOG_FILES:
            self._start(self._tree.last_zxid + 1)

    def start_if_due(self) -> None:
        """Begin a new log and compact the old ones if the log is large enough."""
        is_full = self._committer.size_bytes > self._roll_bytes
        if is_full and self._task is None and self._monotonic_ms() >= self._due_ms:
            self._start(None)

    def _start(self, closed_before: int | None) -> None:
        self._task = self._loop.create_task(self._compact(closed_before), name="zookeeper-snapshot")

    async def _compact(self, closed_before: int | None) -> None:
        directory = self._data_dir.path
        try:
            if closed_before is None:
                closed_before = self._tree.last_zxid + 1
                await self._committer.roll(self._data_dir.new_log(closed_before))
            status = await self._loop.run_in_executor(None, self._run, closed_before)
            if status == 0:
                await self._loop.run_in_executor(None, self._data_dir.remove_covered)
            elif not self._is_stopping:
                log.error(
                    "the snapshot before %#x was not written (exit status %d); logs are kept", closed_before, status
                )
        except (OSError, DataDirError) as error:  # the current log continues: only finished logs would shrink
            self._due_ms = self._monotonic_ms() + COMPACTION_RETRY_MS
            log.error("the logs in %s cannot be compacted now: %s; they are kept", directory, error)
        finally:
            self._task = self._process = None

    def _run(self, closed_before: int) -> int:
        command = [sys.executable, "-m", "klamm.zk.server.txnlog", str(self._data_dir.path), str(closed_before)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return self._process.wait()

    async def stop(self, *, log_failed: bool) -> None:
        """End a compaction in progress: after a failure of the log it could not complete."""
        task, self._is_stopping = self._task, True
        while task is not None and not task.done():
            if self._process is not None:
                self._process.terminate()
            if log_failed:
                task.cancel()
            await asyncio.wait([task], timeout=0.05)
