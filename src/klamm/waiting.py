"""Results that may come later.

A function whose result may come later returns the result itself or a future of it (`T | asyncio.Future[T]`). `after`
continues with such a result: at once if it is available, so the common case costs no turn of the loop. `all_results`
makes one such result of many. The follower of a `PromptFuture` does not wait for the next turn of the loop (`promptly`,
`follow`).

Work that takes long or waits several times is a generator (`Steps`): it yields None where others may use the loop, and
waits by `yield from result_of(...)`. `begin` starts it.

`after`, `promptly` and steps are three forms and not one, because one would cost more or do less. `after` is for a
single wait, for which steps cost four times as much if the result is available. `promptly` is for a continuation that
changes no state: only that may run inside the change that it waited for. `klamm.apis.api_declaration` says which form
a handler uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import Any, Generic, TypeAlias, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
Steps: TypeAlias = Generator[Any, None, A]
"""Yields None at the end of a slice, or a future to be resumed when it is done."""
Slices: TypeAlias = Generator[None, None, Any]
"""The steps of a result up to the next wait, for the caller to run. They return the result or a future of it."""


class PromptFuture(asyncio.Future[A]):
    """A future that can have a follower: it runs inside `set_result`, not in a later turn of the loop.

    A follower must not change the state whose change led to the result: it encodes an answer, or the like. All other
    callbacks, and tasks that await the future, run in a later turn as usual.
    """

    __slots__ = ("_before", "_follower", "on_cancel")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._follower: Callable[[asyncio.Future[A]], object] | None = None
        self._before: tuple[PromptFuture[Any], Callable[[asyncio.Future[Any]], None]] | None = None
        """The future whose result becomes this one's, and the step between them."""
        self.on_cancel: Callable[[], object] | None = None
        """Called inside `cancel`. A done callback would cost a turn of the loop for every other end, too."""

    def follow(self, follower: Callable[[asyncio.Future[A]], object]) -> None:
        """Set the follower; there is one at most. The steps before it are prompt, too."""
        if self.done():
            self.add_done_callback(follower)
            return
        assert self._follower is None, "a future has one follower"
        self._follower = follower
        if self._before is not None:
            (first, step), self._before = self._before, None
            if not first.done():
                first.remove_done_callback(step)
                first.follow(step)

    def come_after(self, first: PromptFuture[B], step: Callable[[asyncio.Future[B]], None]) -> None:
        """`step` sets the result of this future from that of `first`: in a later turn, unless this one is followed."""
        self._before = first, step
        first.add_done_callback(step)

    def set_result(self, result: A) -> None:
        super().set_result(result)
        if self._follower is not None:
            self._call_follower()

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        if self._follower is not None:
            self._call_follower()

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.on_cancel is not None:
            self.on_cancel()
        if is_cancelled and self._follower is not None:
            self._call_follower()
        return is_cancelled

    def _call_follower(self) -> None:
        follower, self._follower = self._follower, None
        assert follower is not None
        follower(self)


def follow(first: asyncio.Future[A], follower: Callable[[asyncio.Future[A]], object]) -> None:
    """Call `follower` with the future when it is done: at once if it is prompt."""
    if isinstance(first, PromptFuture):
        first.follow(follower)
    else:
        first.add_done_callback(follower)


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
    """Return `step(result)` once the result of `first` is available, or a future of it.

    `on_failure` turns a failure of `first` or of `step`, or its cancellation, into a result, or raises it. `on_timeout`
    gives the result if there is none after `timeout_ms`; `first` is not cancelled then, so the request may still take
    effect.
    """
    if isinstance(first, asyncio.Future):
        following = _Continuation(first.get_loop().create_future(), step, on_failure)
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


@overload
def promptly(first: asyncio.Future[A], step: Callable[[A], B]) -> asyncio.Future[B]: ...


@overload
def promptly(first: A | asyncio.Future[A], step: Callable[[A], B]) -> B | asyncio.Future[B]: ...


def promptly(first: A | asyncio.Future[A], step: Callable[[A], B]) -> B | asyncio.Future[B]:
    """Return `step(result)` or a future of it, like `after`.

    If `first` is prompt and the future is followed, `step` runs inside the `set_result` of `first`. So an answer is
    encoded in the turn of the change that it waited for, before other work that the change causes. `step` must not
    change the state whose change led to the result.
    """
    if not isinstance(first, PromptFuture):
        return after(first, step)
    future: PromptFuture[B] = PromptFuture(first.get_loop())
    future.come_after(first, _Continuation(future, step, None).on_first)
    return future


def all_results(parts: Sequence[A | asyncio.Future[A]]) -> list[A] | asyncio.Future[list[A]]:
    """Return the results in the order of `parts`, or a future of them, which fails with the first part that fails."""
    waiting = [part for part in parts if isinstance(part, asyncio.Future)]
    if not waiting:
        return [part for part in parts if not isinstance(part, asyncio.Future)]
    whole: asyncio.Future[list[A]] = waiting[0].get_loop().create_future()
    missing = len(waiting)

    def on_part(done: asyncio.Future[A]) -> None:
        nonlocal missing
        missing -= 1
        failure = None if done.cancelled() else done.exception()
        if whole.done():
            return
        if done.cancelled():
            whole.cancel()
        elif failure is not None:
            whole.set_exception(failure)
        elif not missing:
            whole.set_result([part.result() if isinstance(part, asyncio.Future) else part for part in parts])

    for part in waiting:
        part.add_done_callback(on_part)
    return whole


def _same(result: A) -> A:
    return result


class _Continuation(Generic[A, B]):
    """A step that waits for its input, and the future of its result."""

    __slots__ = ("_on_failure", "_step", "_timer", "future")

    def __init__(
        self,
        future: asyncio.Future[B],
        step: Callable[[A], B | asyncio.Future[B]],
        on_failure: Callable[[BaseException], B] | None,
    ) -> None:
        self.future = future
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
        except asyncio.CancelledError:
            self.future.cancel()
        except Exception as another:
            self.future.set_exception(another)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def begin(steps: Steps[A]) -> A | asyncio.Future[A] | Slices:
    """Take the first step; return the result if there are no others.

    Otherwise return the slices that are left or, if the steps wait, a future of the result or of further slices.
    """
    try:
        first = next(steps)
    except StopIteration as done:
        result: A = done.value
        return result
    return _slices(steps) if first is None else _Resumption(steps, first).future


@overload
def result_of(answer: asyncio.Future[A]) -> Steps[A]: ...


@overload
def result_of(answer: A | asyncio.Future[A]) -> Steps[A]: ...


def result_of(answer: A | asyncio.Future[A]) -> Steps[A]:
    """Wait, as a step, for a result that may come later. Run it if it is slices."""
    found: Any = answer
    while True:
        if isinstance(found, asyncio.Future):
            if not found.done():
                yield found
            found = found.result()
        elif isinstance(found, GeneratorType):
            found = yield from found
        else:
            result: A = found
            return result


def _slices(steps: Steps[Any]) -> Slices:
    """Take the steps up to the next wait."""
    while True:
        try:
            first = next(steps)
        except StopIteration as done:
            return (yield from done.value) if isinstance(done.value, GeneratorType) else done.value
        if first is not None:
            return _Resumption(steps, first).future
        try:
            yield
        except GeneratorExit:
            steps.close()
            raise


class _Resumption:
    """Resumes steps when a future is done. It serves all waits up to the next slice, so that they form no chain."""

    __slots__ = ("_steps", "future")

    def __init__(self, steps: Steps[Any], first: asyncio.Future[Any]) -> None:
        self._steps = steps
        self.future: asyncio.Future[Any] = first.get_loop().create_future()
        first.add_done_callback(self._resume)

    def _resume(self, _: asyncio.Future[Any]) -> None:
        if self.future.done():  # Nobody waits for the result.
            self._steps.close()
            return
        try:
            following = next(self._steps)
        except StopIteration as done:
            self._finish(done.value)
        except asyncio.CancelledError:
            self.future.cancel()
        except Exception as failure:
            self.future.set_exception(failure)
        else:
            if following is None:
                self.future.set_result(_slices(self._steps))
            else:
                following.add_done_callback(self._resume)

    def _finish(self, result: Any) -> None:
        if isinstance(result, asyncio.Future):
            self._steps = result_of(result)
            self._resume(result)
        else:
            self.future.set_result(result)
