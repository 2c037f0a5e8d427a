"""A bounded buffer for records that are not written yet. It never delays the code that records."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

from klamm.clock import Clock
from klamm.control_log.records import ControlRecord


class ControlLog(Protocol):
    """The target of the control plane's records. Check `is_enabled` before you compute something for a record."""

    @property
    def is_enabled(self) -> bool: ...

    def record(self, record: ControlRecord) -> None: ...


class _NoControlLog:
    is_enabled = False

    def record(self, record: ControlRecord) -> None: ...


NO_CONTROL_LOG: Final[ControlLog] = _NoControlLog()


class Entry(NamedTuple):
    """A record with its times. `sequence` numbers the records of one loop, so a gap means dropped records."""

    sequence: int
    at_ms: int
    monotonic_s: float
    record: ControlRecord


class ControlLogBuffer:
    """One loop appends and the broker loop takes. If the buffer is full, the oldest record is dropped.

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
