"""LoopMeter: how busy an event loop is, how long its turns take, and how late its timers fire.

It samples a few times per second, because a sample wakes an idle loop. To time every turn, every callback would need
extra code, because uvloop has no hook for turns.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from klamm.metrics.instruments import PEAK_PERIOD_S, BusyRatio
from klamm.metrics.registry import MetricsRegistry

SAMPLE_S: Final = 0.25
_GROUP: Final = "klamm.server"
_TYPE: Final = "EventLoop"


class LoopMeter:
    """Lives on the loop that it measures, until `stop`.

    - Idle share: from the CPU time of the loop's thread. Waits for the interpreter or for a file count as idle.
    - Turn time: the time from one turn to the next, without the wait for events, of one turn per sample.
    - Lag: how much later than due the timer of a sample fires.
    """

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, registry: MetricsRegistry, sample_s: float = SAMPLE_S
    ) -> None:
        tags = {"loop": name}
        self._sample_s = sample_s
        self._name = name
        self._loop = loop
        self._registry = registry
        self._monotonic = registry.clock.monotonic
        self._idle = BusyRatio(registry.clock)
        self._turns = registry.histogram(_GROUP, _TYPE, "TurnTimeMs", tags)
        self._lags = registry.histogram(_GROUP, _TYPE, "LagMs", tags)
        self._highest_lag = registry.peak(name, _GROUP, _TYPE, "LagMsMax", lambda: 0, tags)
        registry.gauge(_GROUP, _TYPE, "IdlePercent", lambda: self._idle.value, tags)
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._turn_at = self._rotate_at = 0.0
        self._first_cpu_s = time.thread_time()

    @classmethod
    def started(cls, name: str, registry: MetricsRegistry, sample_s: float = SAMPLE_S) -> LoopMeter:
        """Start the meter of the running loop."""
        meter = cls(name, asyncio.get_running_loop(), registry, sample_s)
        meter._arm(meter._monotonic())
        return meter

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now: float) -> None:
        self._due = now + self._sample_s
        self._timer = self._loop.call_later(self._sample_s, self._sample)

    def _sample(self) -> None:
        now = self._monotonic()
        lag_ms = max(0.0, now - self._due) * 1000
        self._lags.update(lag_ms)
        if lag_ms > self._highest_lag.highest:
            self._highest_lag.highest = lag_ms
        self._idle.busy_seconds = time.thread_time() - self._first_cpu_s
        if now >= self._rotate_at:
            self._rotate_at = now + PEAK_PERIOD_S
            self._registry.rotate_peaks(self._name)
        self._loop.call_soon(self._begin_turn)
        self._arm(now)

    def _begin_turn(self) -> None:
        self._turn_at = self._monotonic()
        self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turns.update((self._monotonic() - self._turn_at) * 1000)
