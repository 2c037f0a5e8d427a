"""Time as an argument. Production passes `SystemClock`, the simulator its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, for the timestamps of records and znodes."""

    def monotonic(self) -> float:
        """Seconds of a monotonic clock, for durations and deadlines."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.perf_counter)
