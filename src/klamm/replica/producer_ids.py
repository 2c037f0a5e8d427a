"""Producer ids from blocks that the controller allocates, so that no two brokers share one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from klamm.errors import ErrorCode


class ProducerIdBlock(Protocol):
    """A block of ids, or an error."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...


class ProducerIdManager:
    """Asks for the next block once the current one is used up; later callers wait for the same answer.

    No caller waits longer than `MAX_WAIT_S`: the client retries, and a late block serves it then.
    """

    MAX_WAITING = 10_000
    MAX_WAIT_S = 1.0

    def __init__(
        self, loop: asyncio.AbstractEventLoop, allocate: Callable[[], asyncio.Future[ProducerIdBlock]]
    ) -> None:
        self._loop = loop
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._waiting: deque[asyncio.Future[int | ErrorCode]] = deque()
        self._is_asking = False
        self._timer: asyncio.TimerHandle | None = None

    def generate(self) -> int | ErrorCode | asyncio.Future[int | ErrorCode]:
        """Return a new producer id, now or later; a retriable error if the controller provides none."""
        if self._next < self._end:
            self._next += 1
            return self._next - 1
        if len(self._waiting) >= self.MAX_WAITING:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        waiter: asyncio.Future[int | ErrorCode] = self._loop.create_future()
        self._waiting.append(waiter)
        if self._timer is None:
            self._timer = self._loop.call_later(self.MAX_WAIT_S, self._refuse_all)
        if not self._is_asking:
            self._ask()
        return waiter

    def _ask(self) -> None:
        self._is_asking = True
        self._allocate().add_done_callback(self._on_block)

    def _on_block(self, done: asyncio.Future[ProducerIdBlock]) -> None:
        self._is_asking = False
        if done.cancelled() or done.exception() is not None or done.result().error != ErrorCode.NONE:
            self._refuse_all()
            return
        block = done.result()
        self._next, self._end = block.start, block.start + block.length
        while self._waiting and self._next < self._end:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(self._next)
                self._next += 1
        if self._waiting:
            self._ask()
        else:
            self._stop_timer()

    def _refuse_all(self) -> None:
        """Refuse all waiting requests: the broker was not the controller, or did not answer. Clients retry."""
        self._stop_timer()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
