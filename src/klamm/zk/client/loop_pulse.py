"""Detects a stalled event loop while the connection to ZooKeeper still works.

The connection has a thread of its own, so its pings say nothing about the loops that do the broker's work. Each loop
beats; the connection's thread looks. A loop that has not beaten for its limit is stalled, and the session, which the
cluster takes for the broker's life, is given up. One writer, one reader, no locks.
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
        """Of the running loop."""
        pulse = cls(name, asyncio.get_running_loop(), limit_s)
        pulse.beat()
        return pulse

    def beat(self) -> None:
        """Now, and again for as long as the loop turns."""
        if not self.is_stopped:
            self.beats += 1
            self._timer = self._loop.call_later(self.limit_s / BEATS, self.beat)

    def stop(self) -> None:
        """The loop is about to do long work: stop the checks."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()


class StallWatch:
    """Sans-IO: the times are the caller's, who looks more often than `LONGEST_LOOK` times per limit.

    Time counts only while the caller looks. A process that could not run at all, because the machine slept or it was
    stopped, finds on its return that nobody has looked: its loops get their time to beat.
    """

    LONGEST_LOOK: Final = 10

    def __init__(self) -> None:
        self._seen: dict[LoopPulse, int] = {}
        self._still_s: dict[LoopPulse, float] = {}
        self._looked_s: float | None = None

    def stalled(self, pulses: Sequence[LoopPulse], now_s: float) -> LoopPulse | None:
        """The first loop that has not beaten for its limit."""
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
