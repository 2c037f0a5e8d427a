"""Detects a stalled event loop while the connection to ZooKeeper still works.

The connection has its own thread, so its pings say nothing about the loops that do the broker's work. Each loop
increments a counter, which the connection's thread checks. A loop whose counter has not changed within its limit is
stalled, and the session is given up, so that the cluster counts the broker as dead. Each counter has one writer and one
reader, so there are no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

BEATS: Final = 20
"""How often a loop beats within its limit."""
SHORTEST_LIMIT_S: Final = 6.0
"""On a busy machine a loop can be late by seconds, however short the session timeout is."""


class LoopPulse:
    """Beats on its loop, until `stop`. `beats` is read by the connection's thread."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self.name = name
        self.limit_s = max(limit_s, SHORTEST_LIMIT_S)
        self.beats = 0
        self.is_stopped = False
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def started(cls, name: str, limit_s: float) -> LoopPulse:
        """Start the pulse of the running loop."""
        pulse = cls(name, asyncio.get_running_loop(), limit_s)
        pulse.beat()
        return pulse

    def beat(self) -> None:
        """Increment the counter now, and periodically while the loop runs."""
        if not self.is_stopped:
            self.beats += 1
            self._timer = self._loop.call_later(self.limit_s / BEATS, self.beat)

    def stop(self) -> None:
        """Stop the checks, because the loop is about to do long work."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()


class StallWatch:
    """Without I/O: the caller passes the time, and checks more often than `LONGEST_LOOK` times per limit.

    Time counts only between checks. If the whole process could not run, because it or the machine was suspended,
    nothing was checked meanwhile, and its loops get time to catch up.
    """

    LONGEST_LOOK: Final = 10

    def __init__(self) -> None:
        self._seen: dict[LoopPulse, int] = {}
        self._still_s: dict[LoopPulse, float] = {}
        self._looked_s: float | None = None

    def stalled(self, pulses: Sequence[LoopPulse], now_s: float) -> LoopPulse | None:
        """Return the first loop that has stalled for longer than its limit."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        found = None
        for pulse in pulses:
            beats = pulse.beats
            if pulse.is_stopped or self._seen.get(pulse) != beats:
                self._seen[pulse], self._still_s[pulse] = beats, 0.0
                continue
            self._still_s[pulse] += min(passed_s, pulse.limit_s / self.LONGEST_LOOK)
            if found is None and self._still_s[pulse] > pulse.limit_s:
                found = pulse
        return found
