from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from klamm.purgatory import DelayedOperationPurgatory
from klamm.waiting import follow, promptly


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_complete_operation_does_not_wait(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    assert purgatory.try_complete_else_watch(["a"], 1000, lambda: "done", lambda: "late") == "done"
    assert purgatory.try_complete_else_watch(["a"], 0, lambda: None, lambda: "late") == "late"
    assert (purgatory.size, purgatory.watched) == (0, 0)
    assert (purgatory.completed_count, purgatory.expired_count) == (0, 0), "only operations that waited count"


def test_a_check_completes_the_operations_of_its_key(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    ready: dict[str, str] = {}
    waiting = {
        name: purgatory.try_complete_else_watch(keys, 60_000, lambda name=name: ready.get(name), lambda: "late")  # type: ignore[misc]
        for name, keys in {"one": ["a", "b"], "two": ["b", "b"]}.items()
    }
    assert (purgatory.size, purgatory.watched) == (2, 3)
    ready["one"] = ready["two"] = "done"
    assert purgatory.check_and_complete("a") == 1
    assert isinstance(waiting["one"], asyncio.Future) and waiting["one"].result() == "done"
    assert isinstance(waiting["two"], asyncio.Future) and not waiting["two"].done()
    assert purgatory.check_and_complete("c") == 0 and purgatory.check_and_complete("b") == 1
    assert (purgatory.size, purgatory.watched, purgatory.expired_count) == (0, 0, 0)
    assert purgatory.completed_count == 2


def test_time_runs_out(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    waiting = purgatory.try_complete_else_watch(["a"], 1, lambda: None, lambda: "late")
    assert isinstance(waiting, asyncio.Future)
    assert loop.run_until_complete(waiting) == "late"
    assert (purgatory.size, purgatory.watched, purgatory.expired_count) == (0, 0, 1)
    assert purgatory.completed_count == 0


def test_an_operation_that_gives_up_is_forgotten(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    waiting = purgatory.try_complete_else_watch(["a"], 60_000, lambda: None, lambda: "late")
    assert isinstance(waiting, asyncio.Future)
    waiting.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    assert (purgatory.size, purgatory.watched) == (0, 0)


def test_a_failure_is_the_waiting_requests_own(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    broken = [False]

    def try_complete() -> str | None:
        if broken[0]:
            raise ValueError("broken")
        return None

    waiting = purgatory.try_complete_else_watch(["a"], 60_000, try_complete, lambda: "late")
    broken[0] = True
    assert purgatory.check_and_complete("a") == 0
    assert isinstance(waiting, asyncio.Future)
    with pytest.raises(ValueError, match="broken"):
        waiting.result()
    assert purgatory.size == 0


def test_shutdown_answers_all_waiting_operations(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    waiting = [purgatory.try_complete_else_watch(["a", i], 60_000, lambda: None, lambda: "late") for i in range(3)]
    purgatory.shutdown()
    assert [each.result() for each in waiting if isinstance(each, asyncio.Future)] == ["late"] * 3
    assert purgatory.size == 0


def test_an_operation_may_be_completed_by_a_check_that_its_own_look_causes(loop: asyncio.AbstractEventLoop) -> None:
    """A follower's fetch moves the high watermark while it is looked at, and that checks the same key again."""
    purgatory = DelayedOperationPurgatory("Test", loop)
    looks: list[int] = []

    def try_complete() -> int | None:
        looks.append(len(looks))
        if len(looks) == 2:
            purgatory.check_and_complete("a")
        return len(looks) if len(looks) > 1 else None

    waiting = purgatory.try_complete_else_watch(["a"], 60_000, try_complete, lambda: -1)
    assert purgatory.check_and_complete("a") == 0 and len(looks) == 3
    assert isinstance(waiting, asyncio.Future) and waiting.result() == 3
    assert (purgatory.size, purgatory.watched) == (0, 0)


def test_a_failure_after_a_nested_completion_is_nobodys(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    looks: list[int] = []

    def try_complete() -> str | None:
        looks.append(len(looks))
        if len(looks) == 2:
            purgatory.check_and_complete("a")
            raise ValueError("broken")
        return "done" if len(looks) == 3 else None

    waiting = purgatory.try_complete_else_watch(["a"], 60_000, try_complete, lambda: "late")
    purgatory.check_and_complete("a")
    assert isinstance(waiting, asyncio.Future) and waiting.result() == "done"


def test_an_expiry_that_completes_the_operation_itself(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    waiting = purgatory.try_complete_else_watch(["a"], 60_000, lambda: None, lambda: finish())
    assert isinstance(waiting, asyncio.Future)
    future = waiting

    def finish() -> str:
        future.set_result("done")
        return "late"

    purgatory.shutdown()
    assert future.result() == "done"


def test_an_answer_is_ready_in_the_turn_of_the_change(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    is_done = False
    waiting = purgatory.try_complete_else_watch(["a"], 60_000, lambda: 7 if is_done else None, lambda: 8)
    assert isinstance(waiting, asyncio.Future)
    answers: list[str] = []
    follow(promptly(waiting, str), lambda done: answers.append(done.result()))
    is_done = True
    assert purgatory.check_and_complete("a") == 1
    assert answers == ["7"]


def test_every_end_is_reported_once_and_in_the_turn_of_its_cause(loop: asyncio.AbstractEventLoop) -> None:
    purgatory = DelayedOperationPurgatory("Test", loop)
    ends: list[str] = []
    states: dict[str, str] = {}

    def wait(name: str) -> asyncio.Future[str]:
        def try_complete() -> str | None:
            if states.get(name) == "broken":
                raise ValueError(name)
            return states.get(name)

        waiting = purgatory.try_complete_else_watch(
            [name], 60_000, try_complete, lambda: "late", on_end=lambda: ends.append(name)
        )
        assert isinstance(waiting, asyncio.Future)
        return waiting

    complete, broken, cancelled, expired = (wait(name) for name in ("complete", "broken", "cancelled", "expired"))
    assert ends == []
    states |= {"complete": "done", "broken": "broken"}
    purgatory.check_and_complete("complete")
    purgatory.check_and_complete("broken")
    cancelled.cancel()
    purgatory.shutdown()
    assert ends == ["complete", "broken", "cancelled", "expired"]
    assert complete.result() == "done" and expired.result() == "late" and isinstance(broken.exception(), ValueError)
    loop.run_until_complete(asyncio.sleep(0))
    assert len(ends) == 4 and (purgatory.size, purgatory.watched) == (0, 0)
