"""Small files are forced to the disk together, once however often they change, and without holding up other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any
from uuid import UUID

from klamm.clock import SystemClock
from klamm.log.background import BackgroundWorker
from klamm.log.jobs import FileJob
from klamm.log.log_manager import LogManager
from klamm.log.memory_files import MemoryFiles
from klamm.log.sync_queue import FILES_PER_JOB, SyncQueue
from klamm.model import TopicPartition

DIR = "/data"


class CountingFiles(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self.forced: list[str] = []

    def fsync_path(self, path: str) -> None:
        self.forced.append(path)
        super().fsync_path(path)


def worker() -> BackgroundWorker:
    return BackgroundWorker(lambda log_dir, error, doing: None)


def test_without_a_loop_it_happens_at_once() -> None:
    files = CountingFiles()
    files.make_dirs(DIR)
    SyncQueue(files, worker()).put(DIR, DIR)
    assert files.forced == [DIR]


class ByHand(Executor):
    """Does a job when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.has_job = asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        self.has_job.set()
        return future

    async def do_one(self) -> None:
        """Run the next job and everything that follows from its end."""
        await self.has_job.wait()
        future, work = self.jobs.pop(0)
        if not self.jobs:
            self.has_job.clear()
        future.set_result(work())
        await asyncio.sleep(0)


def test_a_file_that_changes_again_is_flushed_once_and_others_have_their_turn() -> None:
    files = CountingFiles()
    files.make_dirs(DIR)
    paths = [f"{DIR}/{number}" for number in range(2 * FILES_PER_JOB)]
    for path in paths:
        files.write_atomic(path, b"x", sync=False)
    forced_before_other: list[int] = []

    async def run() -> None:
        background, thread = worker(), ByHand()
        queue = SyncQueue(files, background)
        background.start(asyncio.get_running_loop(), thread)
        queue.start(asyncio.get_running_loop())
        queue.put(DIR, *paths)
        queue.put(DIR, *paths)
        assert not thread.jobs, "nothing is forced while more may come"
        await thread.has_job.wait()
        background.submit(FileJob(DIR, lambda: forced_before_other.append(len(files.forced))))
        for _ in range(3):
            await thread.do_one()
        assert not thread.jobs
        queue.put(DIR, paths[0])
        await thread.do_one()

    asyncio.run(run())
    assert files.forced == [*paths, paths[0]]
    assert forced_before_other == [FILES_PER_JOB]


def test_a_shutdown_flushes_waiting_files_and_a_kill_does_not() -> None:
    for ends_cleanly in (True, False):
        files = CountingFiles()

        async def run(files: CountingFiles, ends_cleanly: bool) -> str:
            manager = LogManager([DIR], clock=SystemClock(), rng=Random(1), files=files)
            manager.load_logs()
            manager.start_background(asyncio.get_running_loop())
            log = manager.get_or_create_log(TopicPartition("orders", 0), UUID(int=7))
            metadata = f"{log.dir}/partition.metadata"
            assert metadata not in files.forced
            if ends_cleanly:
                manager.shutdown()
            else:
                manager.abandon()
            return metadata

        metadata = asyncio.run(run(files, ends_cleanly))
        assert (metadata in files.forced) == ends_cleanly
