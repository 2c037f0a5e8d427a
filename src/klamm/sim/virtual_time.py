"""Virtual time: a heap of (time, number, call). Nothing happens between calls, and equal seeds give equal runs."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class Scheduler:
    """Times are milliseconds since the beginning of the run. It is the `Clock` of everything simulated."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.time_ms = 0
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, delay_ms: int, call: Callable[..., object], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.time_ms + delay_ms, self._number, call, args))

    def run_until(self, end_ms: int) -> None:
        """Run everything that is due until `end_ms`, in order."""
        while self._heap and self._heap[0][0] <= end_ms:
            self.time_ms, _, call, args = heapq.heappop(self._heap)
            call(*args)
        self.time_ms = max(self.time_ms, end_ms)

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000


class Link:
    """One direction between two parties: delays vary, the order is kept."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._last_ms = 0

    def send(self, delay_ms: int, call: Callable[..., object], *args: Any) -> None:
        now = self._scheduler.time_ms
        due = max(now + delay_ms, self._last_ms)
        self._last_ms = due
        self._scheduler.at(due - now, call, *args)
