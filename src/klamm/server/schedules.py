"""The periodic work of a broker, on the broker loop: each task at its interval, one run after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Scheduler:
    """Owner: the broker loop. A task that fails is logged and runs again at its next time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def every(self, name: str, interval_ms: int, task: Callable[[], object], *, first_ms: int | None = None) -> None:
        """Runs `task` every `interval_ms`, counted from the end of the run before."""
        delay_ms = interval_ms if first_ms is None else first_ms

        def run() -> None:
            try:
                task()
            except Exception:
                log.exception("The periodic task %s failed", name)
            if name in self._timers:
                self._timers[name] = self._loop.call_later(interval_ms / 1000, run)

        self._timers[name] = self._loop.call_later(delay_ms / 1000, run)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
