"""Periodic work: long tasks are taken in steps, between which the loop does other things."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from klamm.server.schedules import Scheduler


def test_the_loop_runs_between_the_steps_of_a_long_task() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        scheduler, seen = Scheduler(loop), list[str]()
        is_over = asyncio.Event()

        def steps() -> Iterator[None]:
            for i in range(3):
                seen.append(f"step {i}")
                loop.call_soon(seen.append, "other")
                yield
            is_over.set()

        scheduler.every("long", 3_600_000, steps, first_ms=0)
        async with asyncio.timeout(30):
            await is_over.wait()
        scheduler.stop()
        assert seen == ["step 0", "other", "step 1", "other", "step 2", "other"]

    asyncio.run(scenario())


def test_a_long_task_that_fails_is_logged_and_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        scheduler, runs = Scheduler(loop), list[int]()
        has_begun_again = asyncio.Event()

        def steps() -> Iterator[None]:
            runs.append(0)
            yield
            if len(runs) > 1:
                has_begun_again.set()
            else:
                raise ValueError("disk")

        with caplog.at_level(logging.ERROR):
            scheduler.every("long", 1, steps)
            async with asyncio.timeout(30):
                await has_begun_again.wait()
        scheduler.stop()
        assert "periodic task long failed" in caplog.text

    asyncio.run(scenario())


def test_a_scheduler_that_stops_takes_no_further_step() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        scheduler, taken = Scheduler(loop), list[int]()
        has_begun = asyncio.Event()

        def steps() -> Iterator[None]:
            while True:
                taken.append(0)
                has_begun.set()
                yield

        scheduler.every("endless", 1, steps)
        async with asyncio.timeout(30):
            await has_begun.wait()
        scheduler.stop()
        count = len(taken)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(taken) == count

    asyncio.run(scenario())
