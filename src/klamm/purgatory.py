"""Operations that wait for a condition or for their time to run out.

An operation is watched under keys. Whoever changes what a key stands for calls `check_and_complete(key)`; the
operation looks for itself whether it is done. Owner: the event loop it was made on. Cost of a check: the
operations watched under that key, never all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DelayedOperation(Generic[T]):
    """`try_complete` gives the result once the condition holds, else None; `on_expire` gives it at the deadline.

    `on_key`, where an operation has it, is asked in its place when one key changed: it looks at that key alone.
    """

    __slots__ = ("_keys", "_on_expire", "_on_key", "_timer", "_try_complete", "future")

    def __init__(
        self,
        future: asyncio.Future[T],
        try_complete: Callable[[], T | None],
        on_expire: Callable[[], T],
        on_key: Callable[[Any], T | None] | None = None,
    ) -> None:
        self.future = future
        self._try_complete = try_complete
        self._on_expire = on_expire
        self._on_key = on_key
        self._keys: tuple[Hashable, ...] = ()
        self._timer: asyncio.TimerHandle | None = None


class DelayedOperationPurgatory:
    """All waiting operations of one kind (`Produce`, `Fetch`, `Rebalance`, `Topic`, ...)."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._loop = loop
        self._watchers: dict[Hashable, dict[DelayedOperation[Any], None]] = {}
        self._size = 0
        self._watched = 0
        self.expired_count = 0

    @property
    def size(self) -> int:
        """Operations that wait now: Kafka's `NumDelayedOperations`."""
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
    ) -> T | asyncio.Future[T]:
        """The result now if the condition already holds or there is no time to wait, else a future of it."""
        if (result := try_complete()) is not None:
            return result
        if timeout_ms <= 0:
            return on_expire()
        future: asyncio.Future[T] = self._loop.create_future()
        operation = DelayedOperation(future, try_complete, on_expire, on_key)
        operation._keys = tuple(dict.fromkeys(keys))
        operation._timer = self._loop.call_later(timeout_ms / 1000, self._expire, operation)
        for key in operation._keys:
            self._watchers.setdefault(key, {})[operation] = None
        self._size += 1
        self._watched += len(operation._keys)
        future.add_done_callback(lambda _: self._forget(operation))
        return future

    def check_and_complete(self, key: Hashable) -> int:
        """Completes what waits under `key` and is done; returns how many operations that were."""
        watchers = self._watchers.get(key)
        if not watchers:
            return 0
        completed = 0
        for operation in list(watchers):
            if operation.future.done():
                continue
            try:
                result = operation._try_complete() if operation._on_key is None else operation._on_key(key)
            except Exception as failure:  # it is the waiting request's, not of whoever made the change
                self._forget(operation)
                if not operation.future.done():
                    operation.future.set_exception(failure)
                continue
            # Looking may have changed what a key stands for, and a nested check may have completed the operation.
            if result is not None and not operation.future.done():
                self._forget(operation)
                operation.future.set_result(result)
                completed += 1
        return completed

    def check_all(self) -> None:
        """Like `check_and_complete` for every key that something waits under."""
        for key in list(self._watchers):
            self.check_and_complete(key)

    def shutdown(self) -> None:
        """Answers everything that still waits as if its time had run out."""
        for operation in {op: None for ops in self._watchers.values() for op in ops}:
            self._expire(operation)

    def _expire(self, operation: DelayedOperation[T]) -> None:
        if operation.future.done():
            return
        self._forget(operation)
        self.expired_count += 1
        try:
            result = operation._on_expire()
        except Exception as failure:
            if not operation.future.done():
                operation.future.set_exception(failure)
            return
        if not operation.future.done():
            operation.future.set_result(result)

    def _forget(self, operation: DelayedOperation[T]) -> None:
        if operation._timer is None:
            return
        operation._timer.cancel()
        operation._timer = None
        self._size -= 1
        self._watched -= len(operation._keys)
        for key in operation._keys:
            ops = self._watchers.get(key)
            if ops is not None:
                ops.pop(operation, None)
                if not ops:
                    del self._watchers[key]
