"""Files and directories to remove later: readers may still have them open."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from klamm.clock import Clock, elapsed_ms
from klamm.log.files import Files
from klamm.log.jobs import FileJob, Job, unlink_job


class DeletionQueue:
    """Owner: the `LogManager`."""

    def __init__(self, files: Files, clock: Clock, submit: Callable[[Job], None]) -> None:
        self._files = files
        self._clock = clock
        self._submit = submit
        self._heap: list[tuple[int, int, Job]] = []
        self._count = 0

    def put_tree(self, log_dir: str, path: str, delay_ms: int) -> None:
        self._put(FileJob(log_dir, lambda: self._files.remove_tree(path)), delay_ms)

    def put_files(self, log_dir: str, paths: Sequence[str], delay_ms: int) -> None:
        self._put(unlink_job(self._files, log_dir, paths), delay_ms)

    def _put(self, job: Job, delay_ms: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (elapsed_ms(self._clock) + delay_ms, self._count, job))

    def remove_due(self, now_ms: int) -> int:
        """Start the removals whose delay is over; return how many."""
        started = 0
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, job = heapq.heappop(self._heap)
            self._submit(job)
            started += 1
        return started
