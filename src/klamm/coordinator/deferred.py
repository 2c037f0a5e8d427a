"""A value that may come later, without an event loop: the results of the coordinator's rules and of its appends.

A Deferred is completed once, and its callbacks run at once. `on` makes it a future for the code on an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from klamm.request_log.handling import begin_wait
from klamm.waiting import PromptFuture

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
        assert self.done, "the value is not available yet"
        return cast(T, self._value)

    def complete(self, value: T) -> None:
        assert not self.done, "an answer is given once"
        self.done = True
        self._value = value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def then(self, callback: Callable[[T], None]) -> None:
        """Call `callback` with the value: now if it is known, otherwise when it arrives."""
        if self.done:
            callback(self.value)
        else:
            self._callbacks.append(callback)

    def map(self, convert: Callable[[T], R]) -> Deferred[R]:
        """Return the converted value, which is available when this one is."""
        converted: Deferred[R] = Deferred()
        self.then(lambda value: converted.complete(convert(value)))
        return converted

    def on(self, loop: asyncio.AbstractEventLoop, purgatory: str = "", key: object = "") -> T | asyncio.Future[T]:
        """Return the value if it is available, else a future of it. A cancelled future stays cancelled.

        Traces of requests show the wait under the name `purgatory`, if it is given.
        """
        if self.done:
            return self.value
        future: PromptFuture[T] = PromptFuture(loop)
        wait = begin_wait(purgatory) if purgatory else None

        def resolve(value: T) -> None:
            if wait is not None:
                wait.complete(key)
            if not future.done():
                future.set_result(value)

        self.then(resolve)
        return future


def all_of(parts: Sequence[Deferred[T]]) -> Deferred[list[T]]:
    """Return all values, in order, once the last is available."""
    whole: Deferred[list[T]] = Deferred()
    missing = len(parts)
    if not missing:
        whole.complete([])

    def on_part(_: T) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            whole.complete([part.value for part in parts])

    for part in parts:
        part.then(on_part)
    return whole
