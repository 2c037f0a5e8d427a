"""Services that a host provides to its logs: file work off the loop, delayed deletions, flushes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from klamm.clock import Clock
from klamm.log.background import BackgroundWorker
from klamm.log.deletion_queue import DeletionQueue
from klamm.log.files import Files
from klamm.log.flush_queue import FlushQueue
from klamm.log.jobs import Flushable, Job
from klamm.log.sync_queue import SyncQueue
from klamm.model import ConnectionOrder, TopicPartition


class LogServices:
    """The `LogHost` of all logs. Owner: the `LogManager`, which learns of failures through `on_failure`.

    `close_idle` closes segments that are not in use, if too many files are open.
    """

    def __init__(
        self,
        files: Files,
        clock: Clock,
        *,
        close_idle: Callable[[], bool],
        is_in_use: Callable[[Flushable], bool],
        on_failure: Callable[[str, OSError, str], None],
        on_flushed: Callable[[TopicPartition, int], None],
    ) -> None:
        self._on_failure = on_failure
        self._on_flushed = on_flushed
        self.youngest_connection: Callable[[], ConnectionOrder] = lambda: 0
        self._worker = BackgroundWorker(on_failure, close_idle)
        self._syncs = SyncQueue(files, self._worker)
        self.deletions = DeletionQueue(files, clock, self.submit)
        self.flushes = FlushQueue(is_in_use)

    def start(self, loop: asyncio.AbstractEventLoop, executor: Executor | None) -> None:
        self._worker.start(loop, executor)
        self._syncs.start(loop)

    def stop(self) -> None:
        """Finish all work that was submitted; later work is done at once."""
        self._syncs.stop()
        self._worker.stop()

    def abandon(self) -> None:
        """Like `stop`, without the files that wait to be forced to the disk."""
        self._syncs.forget()
        self._worker.stop()

    def submit(self, job: Job) -> None:
        self._worker.submit(job)

    def run_in_steps(self, steps: Iterator[None]) -> None:
        """Run work of the loop in steps: see `BackgroundWorker`."""
        self._worker.run_in_steps(steps)

    def sync_soon(self, log_dir: str, *paths: str) -> None:
        self._syncs.put(log_dir, *paths)

    def delete_later(self, log_dir: str, paths: Sequence[str], delay_ms: int) -> None:
        self.deletions.put_files(log_dir, paths, delay_ms)

    def failed(self, log_dir: str, error: OSError, doing: str) -> None:
        self._on_failure(log_dir, error, doing)

    def flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        self._on_flushed(tp, recovery_point)

    def unflushed(self, log: Flushable) -> None:
        self.flushes.put(log)
