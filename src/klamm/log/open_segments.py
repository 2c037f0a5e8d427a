"""Bounds the number of open segments and the memory of their indexes; closes the least recently used ones."""

from __future__ import annotations

import logging
from typing import Final, Protocol

_log = logging.getLogger(__name__)
DEFAULT_MAX_OPEN: Final = 1000
DEFAULT_MAX_INDEX_BYTES: Final = 128 * 1024 * 1024


class Releasable(Protocol):
    used: bool

    @property
    def index_memory_bytes(self) -> int: ...

    def release(self) -> None: ...

    def discard(self) -> None: ...


class OpenSegments:
    """The clock algorithm: a use sets the segment's flag, a round over the open ones clears it."""

    def __init__(self, max_open: int = DEFAULT_MAX_OPEN, max_index_bytes: int = DEFAULT_MAX_INDEX_BYTES) -> None:
        self._max_open = max_open
        self._max_index_bytes = max_index_bytes
        self._index_bytes = 0
        self._open: dict[Releasable, int] = {}
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Releasable) -> None:
        """Count a segment whose indexes were loaded, with their present size, and close others if needed."""
        segment.used = True
        self._add(segment, segment.index_memory_bytes)
        attempts = 2 * len(self._open)
        while attempts > 0 and (len(self._open) > self._max_open or self._index_bytes > self._max_index_bytes):
            attempts -= 1
            self._try_oldest(segment)

    def close_idle(self) -> int:
        """Close some of the least recently used segments, since files are needed elsewhere; return how many."""
        if self._is_closing:
            return 0
        self._is_closing = True
        before = len(self._open)
        wanted = max(before // 4, 1)
        attempts = 2 * before
        while attempts > 0 and before - len(self._open) < wanted:
            attempts -= 1
            self._try_oldest(None)
        self._is_closing = False
        return before - len(self._open)

    def discard(self) -> None:
        """Close all segments without writing."""
        for segment in list(self._open):
            segment.discard()

    def closed(self, segment: Releasable) -> None:
        self._index_bytes -= self._open.pop(segment, 0)

    def _add(self, segment: Releasable, index_bytes: int) -> None:
        self.closed(segment)
        self._open[segment] = index_bytes
        self._index_bytes += index_bytes

    def _try_oldest(self, keep: Releasable | None) -> None:
        segment, index_bytes = next(iter(self._open.items()))
        if segment is not keep and not segment.used:
            try:
                segment.release()
                self.closed(segment)
                return
            except OSError as e:
                # The disk of another log has failed: the next use of that log reports it.
                _log.warning("closing %s failed: %s", segment, e)
        segment.used = segment is keep
        self._add(segment, index_bytes)
