"""Time as an argument. Production passes `SystemClock`, the simulator its own."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, for the timestamps of records and znodes."""

    def monotonic(self) -> float:
        """Seconds of a monotonic clock, for durations and deadlines."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.perf_counter)


_LONG_AGO_MS: Final = 1 << 40


def elapsed_ms(clock: Clock) -> int:
    """Milliseconds of the monotonic clock, which no correction of the wall clock moves.

    They begin so late that 0, "it never happened", is longer ago than any limit, even if the machine has just started.
    """
    return _LONG_AGO_MS + int(clock.monotonic() * 1000)
