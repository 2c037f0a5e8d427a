"""The periodic work of a broker, on the broker loop: each task at its interval, one run after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

log = logging.getLogger(__name__)
_END: Final = object()


class Scheduler:
    """Owner: the broker loop. A task that fails is logged and runs again at its next time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[str, asyncio.Handle] = {}

    def every(self, name: str, interval_ms: int, task: Callable[[], object], *, first_ms: int | None = None) -> None:
        """Run `task` every `interval_ms`, counted from the end of the previous run.

        A task may return an iterator of further steps; one step is taken in each turn of the loop.
        """
        delay_ms = interval_ms if first_ms is None else first_ms

        def run() -> None:
            step_and_reschedule(lambda: begun if isinstance(begun := task(), Iterator) else None)

        def step_and_reschedule(step: Callable[[], Iterator[object] | None]) -> None:
            rest: Iterator[object] | None = None
            try:
                rest = step()
            except Exception:
                log.exception("periodic task %s failed", name)
            if name not in self._timers:
                return
            if rest is None:
                self._timers[name] = self._loop.call_later(interval_ms / 1000, run)
            else:
                self._timers[name] = self._loop.call_soon(
                    step_and_reschedule, lambda: None if next(rest, _END) is _END else rest
                )

        self._timers[name] = self._loop.call_later(delay_ms / 1000, run)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
