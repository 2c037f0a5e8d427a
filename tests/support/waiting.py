"""Waits for a condition on a loop; the time limit of the tests ends a wait for a condition that is never met."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition is anything a test can see
        await asyncio.sleep(0.001)
