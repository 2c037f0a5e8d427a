"""Operations that wait for a condition or for their deadline.

An operation is watched under keys. Code that changes the state behind a key calls `check_and_complete(key)`; each
operation under that key then checks its condition. Owner: the event loop that the purgatory was made on. Cost of a
check: the operations watched under that key, never all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from klamm.request_log.handling import WaitTrace, begin_wait
from klamm.waiting import PromptFuture

T = TypeVar("T")


class _Operation(Generic[T]):
    """`try_complete` returns the result once the condition holds, else None; `on_expire` returns it at the deadline.

    `on_key`, if given, is called instead of `try_complete` when one key changed: it checks that key alone.
    """

    __slots__ = ("future", "keys", "on_end", "on_expire", "on_key", "timer", "try_complete", "wait")

    def __init__(
        self,
        future: PromptFuture[T],
        try_complete: Callable[[], T | None],
        on_expire: Callable[[], T],
        on_key: Callable[[Any], T | None] | None,
        on_end: Callable[[], None] | None,
    ) -> None:
        self.future = future
        self.try_complete = try_complete
        self.on_expire = on_expire
        self.on_key = on_key
        self.on_end = on_end
        self.keys: tuple[Hashable, ...] = ()
        self.timer: asyncio.TimerHandle | None = None
        self.wait: WaitTrace | None = None
        """The wait of a traced request."""


class DelayedOperationPurgatory:
    """All waiting operations of one kind (`Produce`, `Fetch`, `Topic`, ...)."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._loop = loop
        self._watchers: dict[Hashable, dict[_Operation[Any], None]] = {}
        self._size = 0
        self._watched = 0
        self.completed_count = self.expired_count = 0
        """Operations that waited and ended by their condition, or by their deadline."""

    @property
    def size(self) -> int:
        """Operations that are waiting: Kafka's `NumDelayedOperations`."""
        return self._size

    @property
    def watched(self) -> int:
        """Entries over all watcher lists: Kafka's `PurgatorySize`."""
        return self._watched

    def try_complete_else_watch(
        self,
        keys: Iterable[Hashable],
        timeout_ms: int,
        try_complete: Callable[[], T | None],
        on_expire: Callable[[], T],
        on_key: Callable[[Any], T | None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> T | asyncio.Future[T]:
        """Return the result if the condition already holds or there is no time to wait, else a future of it.

        `on_end` is called when an operation no longer waits, for whatever reason.
        """
        if (result := try_complete()) is not None:
            return result
        if timeout_ms <= 0:
            return on_expire()
        future: PromptFuture[T] = PromptFuture(self._loop)
        operation = _Operation(future, try_complete, on_expire, on_key, on_end)
        operation.wait = begin_wait(self.name)
        operation.keys = tuple(dict.fromkeys(keys))
        operation.timer = self._loop.call_later(timeout_ms / 1000, self._expire, operation)
        for key in operation.keys:
            self._watchers.setdefault(key, {})[operation] = None
        self._size += 1
        self._watched += len(operation.keys)
        future.on_cancel = partial(self._forget, operation)
        return future

    def check_and_complete(self, key: Hashable) -> int:
        """Complete the operations under `key` whose condition holds; return their number."""
        watchers = self._watchers.get(key)
        if not watchers:
            return 0
        completed = 0
        for operation in list(watchers):
            if operation.future.done():
                continue
            try:
                result = operation.try_complete() if operation.on_key is None else operation.on_key(key)
            except Exception as failure:  # It belongs to the waiting request, not to the change that led here.
                self._forget(operation)
                if operation.wait is not None:
                    operation.wait.fail()
                if not operation.future.done():
                    operation.future.set_exception(failure)
                continue
            # The check may have changed the state itself, and a nested check may have completed the operation.
            if result is not None and not operation.future.done():
                self._forget(operation)
                if operation.wait is not None:
                    operation.wait.complete(key)
                operation.future.set_result(result)
                completed += 1
        self.completed_count += completed
        return completed

    def check_all(self) -> None:
        """Call `check_and_complete` for every key."""
        for key in list(self._watchers):
            self.check_and_complete(key)

    def shutdown(self) -> None:
        """Expire all operations that still wait."""
        for operation in {op: None for ops in self._watchers.values() for op in ops}:
            self._expire(operation)

    def _expire(self, operation: _Operation[T]) -> None:
        if operation.future.done():
            return
        self._forget(operation)
        self.expired_count += 1
        if operation.wait is not None:
            operation.wait.expire()
        try:
            result = operation.on_expire()
        except Exception as failure:
            if not operation.future.done():
                operation.future.set_exception(failure)
            return
        if not operation.future.done():
            operation.future.set_result(result)

    def _forget(self, operation: _Operation[T]) -> None:
        if operation.timer is None:
            return
        operation.timer.cancel()
        operation.timer = None
        operation.future.on_cancel = None
        self._size -= 1
        self._watched -= len(operation.keys)
        for key in operation.keys:
            ops = self._watchers.get(key)
            if ops is not None:
                ops.pop(operation, None)
                if not ops:
                    del self._watchers[key]
        if operation.on_end is not None:
            operation.on_end()
