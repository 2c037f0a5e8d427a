"""`flush.ms`: which logs have something that is not on the disk, by the time when it has waited long enough."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.log.log import Log


class FlushQueue:
    """A log is in it from its first unflushed record on. A pass costs the logs that are due, not all there are."""

    def __init__(self, is_in_use: Callable[[Log], bool]) -> None:
        self._is_in_use = is_in_use
        self._heap: list[tuple[int, int, Log]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, log: Log) -> None:
        """Something was appended, or `flush.ms` was changed; nothing for a log that is on the disk or has no limit."""
        if (due_ms := log.flush_due_ms) is not None:
            self._put(log, due_ms)

    def _put(self, log: Log, due_ms: int) -> None:
        if log.queued_flush_ms is None or due_ms < log.queued_flush_ms:
            log.queued_flush_ms = due_ms
            self._count += 1
            heapq.heappush(self._heap, (due_ms, self._count, log))

    def flush_due(self, now_ms: int) -> int:
        """Asks for the flushes that are due; returns how many logs were looked at."""
        looked_at = 0
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, log = heapq.heappop(self._heap)
            looked_at += 1
            if log.queued_flush_ms != due_ms or not self._is_in_use(log):  # queued for an earlier time, or gone
                continue
            log.queued_flush_ms = None
            log.flush_if_older(now_ms)
            if (next_ms := log.flush_due_ms) is not None:  # a flush is under way, which may yet fail
                self._put(log, next_ms if next_ms > now_ms else now_ms + max(log.config.flush_ms, 1))
        return looked_at
