"""The segments of a log, by base offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from klamm.log.segment import LogSegment


class LogSegments:
    """Owner: the `Log`. The last segment is active: only that one grows."""

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments = sorted(segments, key=lambda s: s.base_offset)
        self._bases = [s.base_offset for s in self._segments]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(tuple(self._segments))

    def __contains__(self, segment: LogSegment) -> bool:
        return self.at(segment.base_offset) is segment

    @property
    def active(self) -> LogSegment:
        return self._segments[-1]

    @property
    def first(self) -> LogSegment:
        return self._segments[0]

    @property
    def size_bytes(self) -> int:
        return sum(s.size_bytes for s in self._segments)

    @property
    def base_offsets(self) -> list[int]:
        return list(self._bases)

    def at(self, base_offset: int) -> LogSegment | None:
        i = bisect_left(self._bases, base_offset)
        return self._segments[i] if i < len(self._bases) and self._bases[i] == base_offset else None

    def floor(self, offset: int) -> LogSegment | None:
        """Return the last segment that begins at or before `offset`."""
        i = bisect_right(self._bases, offset) - 1
        return self._segments[i] if i >= 0 else None

    def higher(self, offset: int) -> LogSegment | None:
        """Return the first segment that begins after `offset`."""
        i = bisect_right(self._bases, offset)
        return self._segments[i] if i < len(self._segments) else None

    def between(self, start: int, end: int) -> list[LogSegment]:
        """Return the segments that can hold offsets of [start, end)."""
        first = max(bisect_right(self._bases, start) - 1, 0)
        return self._segments[first : bisect_left(self._bases, end)]

    def add(self, segment: LogSegment) -> None:
        i = bisect_left(self._bases, segment.base_offset)
        self._segments.insert(i, segment)
        self._bases.insert(i, segment.base_offset)

    def remove(self, segment: LogSegment) -> None:
        i = bisect_left(self._bases, segment.base_offset)
        if i < len(self._segments) and self._segments[i] is segment:
            del self._segments[i]
            del self._bases[i]
