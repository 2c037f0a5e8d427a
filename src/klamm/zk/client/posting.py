"""Passes calls, replies and callbacks from the connection's thread to event loops, in order."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any, Final

from klamm.zk.model.ops import ZkError

log = logging.getLogger(__name__)


class Inbox:
    """Calls from the connection's thread to a loop, in order; many of them wake the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_awake = False

    def post(self, call: Callable[..., object], *args: Any) -> None:
        self._calls.append((call, args))
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for it
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_awake = False
        try:
            while self._calls:
                call, args = self._calls.popleft()
                call(*args)
        finally:
            if self._calls:  # report the failure to the loop; the other callbacks still run
                self._loop.call_soon(self._drain)


class Reply:
    """Receives one reply on the connection's thread and resolves a loop's future.

    `note` is called first, on that thread.
    """

    __slots__ = ("_inbox", "_note", "future")

    def __init__(self, inbox: Inbox, future: asyncio.Future[Any], note: Callable[[Any], None] | None) -> None:
        self.future = future
        self._inbox = inbox
        self._note = note

    def set(self, value: Any) -> None:
        if self._note is not None:
            self._note(value)
        self._inbox.post(resolve, self.future, value)

    def set_exception(self, exception: ZkError) -> None:
        self._inbox.post(_fail, self.future, exception)


def resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], exception: ZkError) -> None:
    if not future.done():
        future.set_exception(exception)


_RUNNING: Final[set[asyncio.Task[None]]] = set()


def start_callback(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], Awaitable[None] | None], done: ThreadFuture[None]
) -> None:
    """Runs a callback on the listener's loop and reports its end. A failure is only logged."""

    async def run() -> None:
        try:
            outcome = callback()
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception("a listener of the ZooKeeper session failed")
        finally:
            done.set_result(None)

    task = loop.create_task(run(), name="zookeeper-listener")
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)


def forget_callbacks(loop: asyncio.AbstractEventLoop) -> None:
    """Drop the running callbacks of a loop that is about to be closed without finishing them."""
    _RUNNING.difference_update([task for task in _RUNNING if task.get_loop() is loop])
