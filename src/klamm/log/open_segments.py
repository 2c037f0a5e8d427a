"""Keeps the number of open segments bounded: the one not used for longest is let go when there are too many."""

from __future__ import annotations

import logging
from typing import Final, Protocol

_log = logging.getLogger(__name__)
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
        attempts = 2 * len(self._open)
        while len(self._open) > self._max_open and attempts > 0:
            attempts -= 1
            self._try_oldest(segment)

    def closed(self, segment: Releasable) -> None:
        self._open.pop(segment, None)

    def _try_oldest(self, keep: Releasable) -> None:
        segment = next(iter(self._open))
        del self._open[segment]
        if segment is not keep and not segment.used:
            try:
                segment.release()
                return
            except OSError as e:
                # the disk of another log: whoever uses that one next is told
                _log.warning("%s cannot be let go: %s", segment, e)
        segment.used = segment is keep
        self._open[segment] = None
