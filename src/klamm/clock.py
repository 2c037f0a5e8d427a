"""Time as an argument. Production passes `SystemClock`, the simulator its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch: what records and znodes are stamped with."""

    def monotonic(self) -> float:
        """Seconds that never go back: what durations and deadlines are measured with."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.perf_counter)
