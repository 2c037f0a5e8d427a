from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from types import GeneratorType
from typing import Any

import pytest

from klamm.waiting import PromptFuture, Steps, after, all_results, begin, follow, promptly, result_of


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def broken(value: int) -> int:
    raise ValueError(value)


def double(value: int) -> int:
    return 2 * value


def spin(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def waiting_for(result: int | asyncio.Future[int]) -> asyncio.Future[int]:
    assert isinstance(result, asyncio.Future)
    return result


def test_a_result_that_is_there_is_used_at_once() -> None:
    assert after(2, double) == 4
    with pytest.raises(ValueError, match="1"):
        after(1, broken)


def test_values_and_futures_are_chained(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    second: asyncio.Future[int] = loop.create_future()
    waiting = waiting_for(after(first, lambda value: second))
    first.set_result(1)
    spin(loop)
    assert not waiting.done()
    second.set_result(7)
    assert loop.run_until_complete(waiting) == 7


def test_failures_and_cancellation_are_passed_on(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    waiting = waiting_for(after(first, broken))
    first.set_result(1)
    with pytest.raises(ValueError, match="1"):
        loop.run_until_complete(waiting)
    cancelled: asyncio.Future[int] = loop.create_future()
    chained = waiting_for(after(cancelled, broken))
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(chained)
    left: asyncio.Future[int] = loop.create_future()
    given_up = waiting_for(after(left, broken))
    given_up.cancel()
    left.set_result(1)
    spin(loop)


@pytest.mark.parametrize("place", ["step at once", "step", "first", "cancelled", "following", "following at once"])
def test_a_failure_may_become_a_result(loop: asyncio.AbstractEventLoop, place: str) -> None:
    failures: list[BaseException] = []

    def on_failure(failure: BaseException) -> int:
        failures.append(failure)
        return -1

    failing: asyncio.Future[int] = loop.create_future()
    first: asyncio.Future[int] = loop.create_future()
    if place == "step at once":
        assert after(1, broken, on_failure=on_failure) == -1
    elif place == "following at once":
        waiting = waiting_for(after(1, lambda _: failing, on_failure=on_failure))
        failing.set_exception(ValueError(1))
        assert loop.run_until_complete(waiting) == -1
    else:
        step = {"step": broken, "following": lambda _: failing}.get(place, double)
        waiting = waiting_for(after(first, step, on_failure=on_failure))  # type: ignore[arg-type]
        if place == "first":
            first.set_exception(ValueError(1))
        elif place == "cancelled":
            first.cancel()
        else:
            first.set_result(1)
        if place == "following":
            failing.set_exception(ValueError(1))
        assert loop.run_until_complete(waiting) == -1
    kind = asyncio.CancelledError if place == "cancelled" else ValueError
    assert len(failures) == 1 and isinstance(failures[0], kind)


def test_a_result_that_is_late_is_replaced(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    waiting = waiting_for(after(first, double, timeout_ms=1, on_timeout=lambda: -1))
    assert loop.run_until_complete(waiting) == -1
    first.set_exception(ValueError("too late to be reported"))
    spin(loop)


def test_a_result_in_time_stops_the_timer(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    waiting = waiting_for(after(first, double, timeout_ms=3_600_000, on_timeout=lambda: -1))
    first.set_result(2)
    assert loop.run_until_complete(waiting) == 4


def test_results_of_many_parts_keep_their_order(loop: asyncio.AbstractEventLoop) -> None:
    assert all_results([]) == []
    assert all_results([1, 2]) == [1, 2]
    first: asyncio.Future[int] = loop.create_future()
    last: asyncio.Future[int] = loop.create_future()
    whole = all_results([first, 2, last])
    assert isinstance(whole, asyncio.Future)
    last.set_result(3)
    spin(loop)
    assert not whole.done()
    first.set_result(1)
    assert loop.run_until_complete(whole) == [1, 2, 3]


def test_a_part_that_fails_or_is_cancelled_ends_the_whole(loop: asyncio.AbstractEventLoop) -> None:
    parts: list[asyncio.Future[int]] = [loop.create_future() for _ in range(3)]
    whole = all_results([*parts, 4])
    assert isinstance(whole, asyncio.Future)
    parts[1].set_exception(ValueError("the second"))
    parts[2].set_exception(ValueError("too late to be reported"))
    with pytest.raises(ValueError, match="the second"):
        loop.run_until_complete(whole)
    parts[0].cancel()
    spin(loop)
    cancelled = all_results([parts[0], 1])
    assert isinstance(cancelled, asyncio.Future)
    spin(loop)
    assert cancelled.cancelled()


def test_the_steps_after_a_prompt_future_run_with_its_result(loop: asyncio.AbstractEventLoop) -> None:
    first: PromptFuture[int] = PromptFuture(loop)
    seen: list[int] = []
    last = promptly(promptly(first, double), double)
    follow(last, lambda done: seen.append(done.result()))
    awaited = loop.create_task(_result_of(first))
    spin(loop)
    first.set_result(1)
    assert seen == [4], "no turn of the loop is needed"
    assert loop.run_until_complete(awaited) == 1, "a task may wait for the same future"
    assert promptly(3, double) == 6


async def _result_of(future: asyncio.Future[int]) -> int:
    return await future


def test_a_prompt_future_that_fails_or_is_cancelled_ends_its_steps(loop: asyncio.AbstractEventLoop) -> None:
    failed, cancelled = PromptFuture[int](loop), PromptFuture[int](loop)
    after_failed, after_cancelled = promptly(failed, double), promptly(cancelled, double)
    ended: list[asyncio.Future[int]] = []
    follow(after_failed, ended.append)
    follow(after_cancelled, ended.append)
    failed.set_exception(ValueError("the first"))
    assert cancelled.cancel() and not cancelled.cancel()
    assert str(after_failed.exception()) == "the first" and after_cancelled.cancelled()
    broken_step = PromptFuture[int](loop)
    result = promptly(broken_step, broken)
    follow(result, ended.append)
    broken_step.set_result(5)
    assert str(result.exception()) == "5", "the failure does not reach the code that completes the first future"
    assert ended == [after_failed, after_cancelled, result]
    spin(loop)


def test_a_step_that_comes_after_the_result_runs_in_the_next_turn(loop: asyncio.AbstractEventLoop) -> None:
    first: PromptFuture[int] = PromptFuture(loop)
    first.set_result(2)
    late = promptly(first, double)
    assert not late.done()
    assert loop.run_until_complete(late) == 4
    unfollowed: PromptFuture[int] = PromptFuture(loop)
    awaited = promptly(unfollowed, double)
    unfollowed.set_result(3)
    assert not awaited.done(), "nobody asked for more"
    assert loop.run_until_complete(awaited) == 6
    plain: asyncio.Future[int] = loop.create_future()
    following = promptly(plain, double)
    plain.set_result(4)
    assert not following.done()
    assert loop.run_until_complete(following) == 8


def sum_of(*parts: int | asyncio.Future[int]) -> Steps[int]:
    """Add numbers that may come later, one per slice."""
    total = 0
    for part in parts:
        if total:
            yield
        total += yield from result_of(part)
    return total


def take_all(slices: Generator[None, None, Any]) -> Any:
    """Run slices as the request handlers do, and return their result."""
    while True:
        try:
            assert next(slices) is None, "only `begin` knows what the steps wait for"
        except StopIteration as done:
            return done.value


def test_steps_without_a_pause_return_their_result() -> None:
    assert begin(sum_of(5)) == 5


def test_steps_pause_between_slices() -> None:
    slices = begin(sum_of(1, 2, 3))
    assert isinstance(slices, GeneratorType)
    assert take_all(slices) == 6


def test_steps_wait_and_continue_in_slices(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    second: asyncio.Future[int] = loop.create_future()
    waiting = begin(sum_of(first, 2, second, 4))
    assert isinstance(waiting, asyncio.Future)
    first.set_result(1)
    slices: Any = loop.run_until_complete(waiting)
    assert isinstance(slices, GeneratorType)
    again = take_all(slices)
    assert isinstance(again, asyncio.Future) and not again.done(), "the second wait begins in a slice"
    second.set_result(3)
    assert take_all(loop.run_until_complete(again)) == 10


def test_waits_without_a_pause_between_them_have_one_future(loop: asyncio.AbstractEventLoop) -> None:
    parts: list[asyncio.Future[int]] = [loop.create_future() for _ in range(3)]

    def add() -> Steps[int]:
        total = 0
        for part in parts:
            total += yield from result_of(part)
        return total

    waiting = begin(add())
    assert isinstance(waiting, asyncio.Future)
    for part in parts:
        part.set_result(1)
    spin(loop)
    spin(loop)
    assert waiting.done() and waiting.result() == 3, "a result that is there costs no turn of the loop"


def test_a_failure_is_raised_in_the_steps_that_wait(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()

    def caught() -> Steps[str]:
        try:
            yield from result_of(first)
        except ValueError as error:
            return str(error)
        return "not raised"

    waiting = begin(caught())
    uncaught = begin(sum_of(first))
    assert isinstance(waiting, asyncio.Future) and isinstance(uncaught, asyncio.Future)
    first.set_exception(ValueError("broken"))
    assert loop.run_until_complete(waiting) == "broken"
    with pytest.raises(ValueError, match="broken"):
        loop.run_until_complete(uncaught)


def test_a_cancelled_wait_cancels_the_result(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    waiting = begin(sum_of(first))
    assert isinstance(waiting, asyncio.Future)
    first.cancel()
    spin(loop)
    assert waiting.cancelled()


def test_steps_are_closed_if_their_result_is_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    closed: list[bool] = []

    def guarded() -> Steps[int]:
        try:
            return (yield from result_of(first))
        finally:
            closed.append(True)

    waiting = begin(guarded())
    assert isinstance(waiting, asyncio.Future)
    waiting.cancel()
    first.set_result(1)
    spin(loop)
    assert closed == [True]


def test_closed_slices_close_their_steps() -> None:
    closed: list[bool] = []

    def guarded() -> Steps[int]:
        try:
            yield
            yield
        finally:
            closed.append(True)
        return 1

    steps = guarded()
    slices = begin(steps)
    assert isinstance(slices, GeneratorType)
    next(slices)
    slices.close()
    assert closed == [True], "although `steps` is still referenced"


def test_steps_may_end_with_a_result_that_comes_later(loop: asyncio.AbstractEventLoop) -> None:
    first: asyncio.Future[int] = loop.create_future()
    second: asyncio.Future[int] = loop.create_future()

    def ends_with(answer: Any) -> Steps[Any]:
        yield from result_of(first)
        return answer

    late, sliced = begin(ends_with(second)), begin(ends_with(begin(sum_of(1, 2))))
    first.set_result(0)
    spin(loop)
    assert isinstance(late, asyncio.Future) and not late.done()
    second.set_result(7)
    assert loop.run_until_complete(late) == 7
    assert take_all(loop.run_until_complete(sliced)) == 3


def test_a_failure_handler_may_pass_a_cancellation_on(loop: asyncio.AbstractEventLoop) -> None:
    def passed_on(failure: BaseException) -> int:
        raise failure

    first: asyncio.Future[int] = loop.create_future()
    waiting = waiting_for(after(first, double, on_failure=passed_on))
    first.cancel()
    spin(loop)
    assert waiting.cancelled()
