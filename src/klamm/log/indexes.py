"""The two sparse indexes of a segment, in Kafka's file formats.

The entries are in memory while the segment is in use and are written when it is flushed, rolled or closed. That is
safe: after an unclean stop unflushed entries are rebuilt from the log. Preallocated files of Kafka end in zeros, which
are not entries, because an entry never points at the first batch.
"""

from __future__ import annotations

import struct
import sys
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from typing import ClassVar, NamedTuple

from klamm.log.files import Files
from klamm.protocol.record_batch import NO_TIMESTAMP


class CorruptIndexError(Exception):
    """The file of an index is corrupt: the index has to be rebuilt."""


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class _Index(ABC):
    """Common part of both indexes: entries of fixed size, loaded on first use."""

    ENTRY_BYTES: ClassVar[int]

    def __init__(self, files: Files, path: str, base_offset: int, max_bytes: int) -> None:
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self._max_entries = max_bytes // self.ENTRY_BYTES
        self._loaded = False
        self._written = 0
        self._dirty = False
        self.is_file_stale = False
        """Whether the file has entries that were removed: it must not be used."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """How many entries there are, written out or not."""

    @abstractmethod
    def _decode(self, data: bytes) -> None:
        """Load the entries of a file."""

    @abstractmethod
    def _encode(self, start: int) -> bytes:
        """Return the entries from `start` on, in the format of the file."""

    @abstractmethod
    def _cut(self, count: int) -> None:
        """Keep the first `count` entries."""

    def create(self) -> None:
        """Start empty, whatever the file contains."""
        self._loaded = True
        self._cut(0)
        self._written = 0
        self._dirty = self.is_file_stale = True

    def load(self) -> None:
        if self._loaded:
            return
        data = self._files.read_bytes(self.path)
        if len(data) % self.ENTRY_BYTES:
            raise CorruptIndexError(f"{self.path} has {len(data)} bytes, which is not a multiple of {self.ENTRY_BYTES}")
        self._decode(data)
        self._loaded = True
        self._written = self.entries
        self._dirty = self.entries * self.ENTRY_BYTES != len(data)
        self.is_file_stale = False

    def write_out(self) -> None:
        """Bring the file up to date and cut it after the last entry."""
        if not self._loaded or not self._dirty:
            return
        handle = self._files.open(self.path, create=True)
        try:
            size = self._written * self.ENTRY_BYTES
            data = self._encode(self._written)
            if data:
                handle.pwrite((data,), size)
            handle.truncate(size + len(data))
            self._written = self.entries
            self._dirty = self.is_file_stale = False
        finally:
            handle.close()

    def release(self) -> None:
        """Write missing entries and free the memory; the next use loads the entries again."""
        self.write_out()
        if self._loaded:
            self._cut(0)
            self._loaded = False

    def forget(self) -> None:
        """Free the memory without writing: the file is about to be deleted or was replaced."""
        self._cut(0)
        self._loaded = False
        self._dirty = False

    def truncate_entries(self, count: int) -> None:
        if count < self.entries:
            self._cut(count)
            self.is_file_stale = self.is_file_stale or count < self._written
            self._written = min(self._written, count)
            self._dirty = True


class OffsetIndex(_Index):
    """Offset -> position of the batch that ends with it; 8 bytes per entry: relative offset, position."""

    ENTRY_BYTES: ClassVar[int] = 8

    def __init__(self, files: Files, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(files, path, base_offset, max_bytes)
        self._offsets = array("I")
        self._positions = array("I")

    @property
    def entries(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self._max_entries

    def append(self, offset: int, position: int) -> None:
        self._offsets.append(offset - self.base_offset)
        self._positions.append(position)
        self._dirty = True

    def lookup(self, offset: int) -> int:
        """Return a position at or before the batch that holds `offset`."""
        slot = bisect_right(self._offsets, offset - self.base_offset) - 1
        return self._positions[slot] if slot >= 0 else 0

    def position_before(self, position: int) -> int:
        """Return the last indexed start of a batch at or before `position`."""
        slot = bisect_right(self._positions, position) - 1
        return self._positions[slot] if slot >= 0 else 0

    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def truncate_to(self, offset: int) -> None:
        """Remove the entries of `offset` and later ones."""
        self.truncate_entries(bisect_left(self._offsets, offset - self.base_offset))

    def _decode(self, data: bytes) -> None:
        words = array("I", data)
        if sys.byteorder == "little":
            words.byteswap()
        self._offsets, self._positions = words[0::2], words[1::2]
        while self._positions and self._positions[-1] == 0:
            self._offsets.pop()
            self._positions.pop()
        if self._offsets and (self._offsets[-1] < self._offsets[0] or self._positions[-1] < self._positions[0]):
            raise CorruptIndexError(f"the entries of {self.path} are out of order")

    def _encode(self, start: int) -> bytes:
        words = array("I", bytes(8 * (len(self._offsets) - start)))
        words[0::2], words[1::2] = self._offsets[start:], self._positions[start:]
        if sys.byteorder == "little":
            words.byteswap()
        return words.tobytes()

    def _cut(self, count: int) -> None:
        del self._offsets[count:]
        del self._positions[count:]


class TimeIndex(_Index):
    """Timestamp -> offset: no batch before the offset is newer than the timestamp. 12 bytes per entry."""

    ENTRY_BYTES: ClassVar[int] = 12
    _ENTRY = struct.Struct(">qI")

    def __init__(self, files: Files, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(files, path, base_offset, max_bytes)
        self._timestamps = array("q")
        self._offsets = array("I")

    @property
    def entries(self) -> int:
        return len(self._timestamps)

    @property
    def is_full(self) -> bool:
        """Whether only the entry is left that is reserved for the end of the segment."""
        return len(self._timestamps) >= self._max_entries - 1

    def last_entry(self) -> TimestampOffset:
        if not self._timestamps:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(self._timestamps[-1], self.base_offset + self._offsets[-1])

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if the timestamp is newer than the last one."""
        if timestamp > (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)
            self._dirty = True

    def first_offset_at(self, timestamp: int) -> int | None:
        """Return the offset of the first entry that is at least as new as the timestamp; None if there is none."""
        slot = bisect_left(self._timestamps, timestamp)
        return self.base_offset + self._offsets[slot] if slot < len(self._offsets) else None

    def truncate_to(self, offset: int) -> None:
        self.truncate_entries(bisect_left(self._offsets, offset - self.base_offset))

    def _decode(self, data: bytes) -> None:
        pairs = list(self._ENTRY.iter_unpack(data))
        while pairs and pairs[-1] == (0, 0):
            pairs.pop()
        self._timestamps = array("q", [p[0] for p in pairs])
        self._offsets = array("I", [p[1] for p in pairs])
        if pairs and (self._timestamps[-1] < self._timestamps[0] or self._offsets[-1] < self._offsets[0]):
            raise CorruptIndexError(f"the entries of {self.path} are out of order")

    def _encode(self, start: int) -> bytes:
        pack = self._ENTRY.pack
        return b"".join(map(pack, self._timestamps[start:], self._offsets[start:]))

    def _cut(self, count: int) -> None:
        del self._timestamps[count:]
        del self._offsets[count:]
