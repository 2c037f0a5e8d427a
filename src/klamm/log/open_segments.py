"""Keeps the number of open segments bounded: the one not used for longest is let go when there are too many."""

from __future__ import annotations

from typing import Final, Protocol

DEFAULT_MAX_OPEN: Final = 1000


class Releasable(Protocol):
    used: bool

    def release(self) -> None: ...


class OpenSegments:
    """The clock algorithm: a use sets the segment's flag, a round over the open ones clears it."""

    def __init__(self, max_open: int = DEFAULT_MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: dict[Releasable, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Releasable) -> None:
        segment.used = True
        self._open[segment] = None
        while len(self._open) > self._max_open:
            self._release_one(segment)

    def closed(self, segment: Releasable) -> None:
        self._open.pop(segment, None)

    def _release_one(self, keep: Releasable) -> None:
        while True:
            segment = next(iter(self._open))
            del self._open[segment]
            if segment is keep or segment.used:
                segment.used = segment is keep
                self._open[segment] = None
            else:
                segment.release()
                return
