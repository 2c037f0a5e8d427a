from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from klamm.waiting import after


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
