"""What was recorded and is not written yet: bounded, counted, and never in anybody's way."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

from klamm.clock import Clock
from klamm.control_log.records import ControlRecord


class ControlLog(Protocol):
    """Where the control plane records. Whoever must compute something for a record asks `is_enabled` before."""

    @property
    def is_enabled(self) -> bool: ...

    def record(self, record: ControlRecord) -> None: ...


class _NoControlLog:
    is_enabled = False

    def record(self, record: ControlRecord) -> None: ...


NO_CONTROL_LOG: Final[ControlLog] = _NoControlLog()


class Entry(NamedTuple):
    """A record and its stamp; `sequence` counts without gaps what one loop recorded, so a gap is what was dropped."""

    sequence: int
    at_ms: int
    monotonic_s: float
    record: ControlRecord


class ControlLogBuffer:
    """One loop records, the broker loop takes. When it is full the oldest goes.

    Each counter has one writer, and a deque's ends may be used from two threads: nothing is locked.
    """

    is_enabled = True

    def __init__(self, loop_name: str, capacity: int, clock: Clock) -> None:
        self.loop_name = loop_name
        self._capacity = capacity
        self._clock = clock
        self._entries: deque[Entry] = deque()
        self._sequence = 0
        self.dropped = 0
        """Written by the loop that records; read from anywhere."""

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, record: ControlRecord) -> None:
        self._sequence += 1
        if len(self._entries) >= self._capacity:
            self._drop_oldest()
        self._entries.append(Entry(self._sequence, self._clock.now_ms(), self._clock.monotonic(), record))

    def take(self, limit: int) -> list[Entry]:
        """The oldest entries, at most `limit`. On the broker loop only."""
        taken: list[Entry] = []
        try:
            while len(taken) < limit:
                taken.append(self._entries.popleft())
        except IndexError:  # the other loop may have dropped the last one in between
            pass
        return taken

    def _drop_oldest(self) -> None:
        try:
            self._entries.popleft()
        except IndexError:  # just taken
            return
        self.dropped += 1
