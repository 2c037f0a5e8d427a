"""A value that may come later, without an event loop: the coordinator's answers and the log's appends.

It is completed once. Whoever waits gives a function; on an event loop `deliver` makes that function a future's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")


class Deferred(Generic[T]):
    __slots__ = ("_callbacks", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._callbacks: list[Callable[[T], None]] = []

    @classmethod
    def of(cls, value: T) -> Deferred[T]:
        deferred = cls()
        deferred.complete(value)
        return deferred

    @property
    def value(self) -> T:
        assert self.done, "the value is not there yet"
        return cast(T, self._value)

    def complete(self, value: T) -> None:
        assert not self.done, "an answer is given once"
        self.done = True
        self._value = value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def then(self, callback: Callable[[T], None]) -> None:
        """Calls `callback` with the value: now if it is there, else when it comes."""
        if self.done:
            callback(self.value)
        else:
            self._callbacks.append(callback)


def deliver(loop: asyncio.AbstractEventLoop, deferred: Deferred[T], convert: Callable[[T], R]) -> R | asyncio.Future[R]:
    """The converted value if it is there, else a future of it. A cancelled future (the client left) stays so."""
    if deferred.done:
        return convert(deferred.value)
    future: asyncio.Future[R] = loop.create_future()

    def resolve(value: T) -> None:
        if not future.done():
            future.set_result(convert(value))

    deferred.then(resolve)
    return future
