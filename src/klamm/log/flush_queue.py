"""`flush.ms`: the logs with records that are not on the disk, by the time when their flush is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from klamm.log.jobs import Flushable

LOGS_PER_STEP: Final = 10
"""Flushes that are requested before the loop serves others: a fifth of a millisecond."""


class FlushQueue:
    """Owner: the broker loop. A log is queued from its first unflushed record on.

    The cost of a pass follows the number of logs that are due, not the number of all logs.
    """

    def __init__(self, is_in_use: Callable[[Flushable], bool]) -> None:
        self._is_in_use = is_in_use
        self._heap: list[tuple[int, int, Flushable]] = []
        self._due_ms: dict[Flushable, int] = {}
        self._count = 0

    def put(self, log: Flushable) -> None:
        """Queue a log that was appended to or whose `flush.ms` has changed, if it has something to flush."""
        if (due_ms := log.flush_due_ms) is not None:
            self._put(log, due_ms)

    def _put(self, log: Flushable, due_ms: int) -> None:
        queued_ms = self._due_ms.get(log)
        if queued_ms is None or due_ms < queued_ms:
            self._due_ms[log] = due_ms
            self._count += 1
            heapq.heappush(self._heap, (due_ms, self._count, log))

    def flush_due(self, now_ms: int) -> Iterator[bool]:
        """Request the flushes that are due, in steps."""
        count = 0
        while self._heap and self._heap[0][0] <= now_ms:
            self._flush_first(now_ms)
            count += 1
            if count % LOGS_PER_STEP == 0:
                yield True

    def _flush_first(self, now_ms: int) -> None:
        due_ms, _, log = heapq.heappop(self._heap)
        if self._due_ms.get(log) != due_ms:  # queued again for an earlier time
            return
        del self._due_ms[log]
        log.is_flush_queued = False  # One that is not in use may be used later: its disk is full, or it is a copy.
        if not self._is_in_use(log):
            return
        log.flush_if_older(now_ms)
        if (next_ms := log.flush_due_ms) is not None:  # a flush is in progress and may still fail
            self._put(log, next_ms if next_ms > now_ms else now_ms + max(log.config.flush_ms, 1))
