"""Results that may come later.

A function whose result may come later returns the result itself or a future of it (`T | asyncio.Future[T]`). `after` is
the one way to continue with such a result: at once if it is there, so that the common case costs no turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")


@overload
def after(
    first: asyncio.Future[A],
    step: Callable[[A], B | asyncio.Future[B]],
    *,
    on_failure: Callable[[BaseException], B] | None = None,
    timeout_ms: int | None = None,
    on_timeout: Callable[[], B] | None = None,
) -> asyncio.Future[B]: ...


@overload
def after(
    first: A | asyncio.Future[A],
    step: Callable[[A], B | asyncio.Future[B]],
    *,
    on_failure: Callable[[BaseException], B] | None = None,
    timeout_ms: int | None = None,
    on_timeout: Callable[[], B] | None = None,
) -> B | asyncio.Future[B]: ...


def after(
    first: A | asyncio.Future[A],
    step: Callable[[A], B | asyncio.Future[B]],
    *,
    on_failure: Callable[[BaseException], B] | None = None,
    timeout_ms: int | None = None,
    on_timeout: Callable[[], B] | None = None,
) -> B | asyncio.Future[B]:
    """Return `step(result)` once the result of `first` is there, or a future of it.

    `on_failure` turns a failure of `first` or of `step`, or its cancellation, into a result. `on_timeout` gives the
    result if there is none after `timeout_ms`; `first` is not cancelled then, so the request may still take effect.
    """
    if isinstance(first, asyncio.Future):
        following = _Continuation(first.get_loop(), step, on_failure)
        if timeout_ms is not None and on_timeout is not None:
            following.expire_after(timeout_ms, on_timeout)
        first.add_done_callback(following.on_first)
        return following.future
    if on_failure is None:
        return step(first)
    try:
        result = step(first)
    except Exception as failure:
        return on_failure(failure)
    if isinstance(result, asyncio.Future):
        return after(result, _same, on_failure=on_failure)
    return result


def _same(result: A) -> A:
    return result


class _Continuation(Generic[A, B]):
    """A step that waits for its input, and the future of its result."""

    __slots__ = ("_on_failure", "_step", "_timer", "future")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        step: Callable[[A], B | asyncio.Future[B]],
        on_failure: Callable[[BaseException], B] | None,
    ) -> None:
        self.future: asyncio.Future[B] = loop.create_future()
        self._step = step
        self._on_failure = on_failure
        self._timer: asyncio.TimerHandle | None = None

    def expire_after(self, timeout_ms: int, on_timeout: Callable[[], B]) -> None:
        def expire() -> None:
            if not self.future.done():
                self.future.set_result(on_timeout())

        self._timer = self.future.get_loop().call_later(timeout_ms / 1000, expire)

    def on_first(self, done: asyncio.Future[A]) -> None:
        if self._has_ended(done):
            return
        try:
            result = self._step(done.result())
        except Exception as failure:
            self._fail(failure)
            return
        if isinstance(result, asyncio.Future):
            result.add_done_callback(self._on_following)
        else:
            self._succeed(result)

    def _on_following(self, done: asyncio.Future[B]) -> None:
        if not self._has_ended(done):
            self._succeed(done.result())

    def _has_ended(self, done: asyncio.Future[Any]) -> bool:
        """Whether there is nothing to continue with: the input failed, or nobody waits for the result."""
        if self.future.done():
            if self._timer is not None and not done.cancelled():
                done.exception()  # It came too late to be reported.
            return True
        if done.cancelled():
            if self._on_failure is None:
                self._stop_timer()
                self.future.cancel()
            else:
                self._fail(asyncio.CancelledError())
            return True
        failure = done.exception()
        if failure is None:
            return False
        self._fail(failure)
        return True

    def _succeed(self, result: B) -> None:
        self._stop_timer()
        self.future.set_result(result)

    def _fail(self, failure: BaseException) -> None:
        self._stop_timer()
        if self._on_failure is None:
            self.future.set_exception(failure)
            return
        try:
            self.future.set_result(self._on_failure(failure))
        except Exception as another:
            self.future.set_exception(another)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
