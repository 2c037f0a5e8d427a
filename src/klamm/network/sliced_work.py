"""SlicedWork: requests that take longer than a slice of the loop's time, a slice at a time.

Decoding a large frame, a handler that is a generator, encoding a large response and freeing both are steps of one
generator per request. A few of them run in turns, so that the memory of decoded requests stays bounded. The others
wait: smaller frames come first, but only until their total size has reached that of the frame that waits for them.
While a request runs, its connection's lane is busy.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

from klamm.network.request import Request, Steps

MAX_RUNNING: Final = 4
"""Requests that are worked on at once. Each may hold the memory budget of a message."""
LARGE_BYTES: Final = 1 << 20
MAX_LARGE_BYTES: Final = 16 << 20
"""Total size of the larger frames that are decoded at once; a frame above it is decoded while there is no other.

A frame with very many elements grows by a factor of 20 and more when it is decoded.
"""
LEAST_BYTES: Final = 64 << 10
"""Least size of a request in the order of those that wait: a request with a small frame may have a large response."""
_Waiting = tuple[int, int, int, Request, Steps]
"""Order, number and size of a request that has not begun. The number is its own, so no more is compared."""


class SlicedWork:
    """The requests of one plane in progress. `on_done` is called with each when it has ended.

    If a step raises, `on_failed` is called first, while the exception is handled.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        on_done: Callable[[Request], None],
        on_failed: Callable[[Request], None],
    ) -> None:
        self._monotonic = monotonic
        self._on_done = on_done
        self._on_failed = on_failed
        self._running: deque[tuple[Request, Steps, int]] = deque()
        """With the size of a large frame, otherwise 0."""
        self._waiting: list[_Waiting] = []
        self._waiting_large: list[_Waiting] = []
        self._number = 0
        self._begun_bytes = 0
        self._large_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._running)

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting) + len(self._waiting_large)

    def add(self, request: Request, steps: Steps, *, decodes: bool) -> None:
        """Begin, or wait. `decodes`: the steps decode the frame; others work on what was decoded, or free it."""
        size = request.size_bytes if decodes else 0
        self._number += 1
        waiting = self._waiting_large if size > LARGE_BYTES else self._waiting
        heapq.heappush(waiting, (self._begun_bytes + size, self._number, size, request, steps))
        self._start()

    def _start(self) -> None:
        while len(self._running) < MAX_RUNNING and (waiting := self._next()) is not None:
            _, _, size, request, steps = heapq.heappop(waiting)
            large_bytes = size if size > LARGE_BYTES else 0
            self._begun_bytes += max(request.size_bytes, LEAST_BYTES)
            self._large_bytes += large_bytes
            self._running.append((request, steps, large_bytes))

    def _next(self) -> list[_Waiting] | None:
        """Return the heap whose first request begins next. A large one that has no room does not hold up others."""
        small, large = self._waiting, self._waiting_large
        if not large or (self._large_bytes and self._large_bytes + large[0][2] > MAX_LARGE_BYTES):
            return small or None
        return large if not small or large[0] < small[0] else small

    def run(self, seconds: float) -> float:
        """Work for about this long, on each request in turn; return the time at the end."""
        now = self._monotonic()
        until = now + seconds
        while self._running and now < until:
            request, steps, large_bytes = self._running.popleft()
            began_at = request.slice_at = now
            try:
                rest = self._step(request, steps)
            except (Exception, asyncio.CancelledError):  # A handler may have waited for a cancelled future.
                rest = None
                self._on_failed(request)
            if rest is None:
                self._large_bytes -= large_bytes
                self._start()
                self._on_done(request)
            else:
                self._running.append((request, rest, large_bytes))
            now = self._monotonic()
            request.sliced_seconds += now - began_at
        return now

    def _step(self, request: Request, steps: Steps) -> Steps | None:
        """Do one step; return the steps that are left.

        If the client has gone, a read is given up. A large read that has been decoded takes all of its steps, and so
        does the encoding of a large response. An early end would free in one step everything that the steps have made,
        which takes longer than a slice.
        """
        if request.may_be_given_up and request.is_abandoned:
            steps.close()
            request.connection.drop(request)
            return request.freed()
        try:
            next(steps)
        except StopIteration:
            return None
        return steps
