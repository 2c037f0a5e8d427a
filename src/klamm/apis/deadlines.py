"""How long a request waits for somebody who may not answer: the controller, or ZooKeeper behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")


class Deadline:
    """The end of a request's time, whoever it has to wait for one after the other."""

    __slots__ = ("_end", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        self._loop = loop
        self._end = loop.time() + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """0 when the time is over."""
        return max(0, round((self._end - self._loop.time()) * 1000))


def within(first: asyncio.Future[A], timeout_ms: int, late: Callable[[], A]) -> asyncio.Future[A]:
    """`first`, or what `late` gives when the time is over. `first` itself goes on: what was asked may yet be done."""
    loop = first.get_loop()
    outer: asyncio.Future[A] = loop.create_future()

    def on_late() -> None:
        if not outer.done():
            outer.set_result(late())

    timer = loop.call_later(timeout_ms / 1000, on_late)

    def on_done(done: asyncio.Future[A]) -> None:
        timer.cancel()
        failure = None if done.cancelled() else done.exception()
        if outer.done():
            return
        if done.cancelled():
            outer.cancel()
        elif failure is not None:
            outer.set_exception(failure)
        else:
            outer.set_result(done.result())

    first.add_done_callback(on_done)
    return outer
