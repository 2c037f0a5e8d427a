"""The thread for file work that must not block the broker loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final

from klamm.log.files import is_exhausted
from klamm.log.jobs import Job

_ATTEMPTS: Final = 50
_RETRY_SECONDS: Final = 0.1
_log = logging.getLogger(__name__)


class BackgroundWorker:
    """Runs jobs in order of arrival and commits each on the loop. Without a loop everything happens at once."""

    def __init__(
        self, on_failure: Callable[[str, OSError, str], None], close_idle: Callable[[], bool] = lambda: False
    ) -> None:
        self._on_failure = on_failure
        self._close_idle = close_idle
        self._is_stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: Executor | None = None
        self._pending: dict[Job, Future[None]] = {}

    def start(self, loop: asyncio.AbstractEventLoop, executor: Executor | None = None) -> None:
        """Run jobs in `executor`, which does one at a time; by default in a new thread."""
        self._loop = loop
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="klamm-log")

    def submit(self, job: Job) -> None:
        if self._executor is None or self._loop is None:
            self._run_now(job)
            return
        loop = self._loop
        future = self._executor.submit(self._work, job, loop)
        self._pending[job] = future
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._finish, job))

    def run_in_steps(self, steps: Iterator[None]) -> None:
        """Run work of the loop in steps, with other callbacks between them: the first now, all without a loop."""
        for _ in steps:
            if self._loop is not None:
                self._loop.call_soon(self.run_in_steps, steps)
                return

    def stop(self) -> None:
        """Wait for the submitted jobs and commit them; later jobs are run at once."""
        executor, self._executor, self._loop = self._executor, None, None
        self._is_stopping.set()
        if executor is not None:
            executor.shutdown(wait=True)
            for job in tuple(self._pending):
                self._finish(job)

    def _work(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        """Run a job. If too many files are open, wait until some are closed; later jobs wait as well."""
        for _ in range(_ATTEMPTS):
            try:
                job.work()
                return
            except OSError as e:
                if not is_exhausted(e) or self._is_stopping.is_set():
                    raise
            loop.call_soon_threadsafe(self._close_idle)
            self._is_stopping.wait(_RETRY_SECONDS)
        job.work()

    def _run_now(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            job.work()
        except Exception as e:
            error = e
        self._conclude(job, error)

    def _finish(self, job: Job) -> None:
        future = self._pending.pop(job, None)
        if future is None:
            return
        self._conclude(job, future.exception())

    def _conclude(self, job: Job, error: BaseException | None) -> None:
        """Commit or abandon a job: its owner can start the next one in either case."""
        if error is None:
            try:
                job.commit()
                return
            except Exception as e:
                error = e
        if isinstance(error, OSError):
            self._on_failure(job.log_dir, error, "working on its files")
        else:
            _log.error("%s: a file job failed", job.log_dir, exc_info=error)
        job.abandon()
