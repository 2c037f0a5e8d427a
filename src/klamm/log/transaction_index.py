"""The aborted transactions of a segment: 34 bytes each, in the order in which they ended."""

from __future__ import annotations

import struct
from bisect import bisect_left
from operator import attrgetter
from typing import Final, NamedTuple

from klamm.log.files import FileHandle, Files
from klamm.log.indexes import CorruptIndexError

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTxn(NamedTuple):
    """`last_offset` is the abort marker's; below `last_stable_offset` everything was decided when it was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_last_offset: Final = attrgetter("last_offset")


class TransactionIndex:
    """Has a file only if there are entries. Read completely on first use: aborted transactions are few."""

    def __init__(self, files: Files, path: str, base_offset: int, *, exists: bool) -> None:
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self._exists = exists
        self._entries: list[AbortedTxn] | None = None if exists else []
        self._handle: FileHandle | None = None
        """The file, opened for the next entry."""

    @property
    def exists(self) -> bool:
        return self._exists

    def all(self) -> list[AbortedTxn]:
        """Return all entries. Raises CorruptIndexError if the file is corrupt."""
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    def prepare(self) -> None:
        """Open the file for the next entry."""
        self.all()
        if self._handle is None:
            self._handle = self._files.open(self.path, create=True)
            self._exists = True

    def append(self, aborted: AbortedTxn) -> None:
        self.prepare()
        entries, handle = self.all(), self._handle
        assert handle is not None
        try:
            handle.pwrite((_ENTRY.pack(_VERSION, *aborted),), len(entries) * _ENTRY.size)
        finally:
            self.close()
        entries.append(aborted)

    def close(self) -> None:
        """Close the file. An entry for which it was opened was not written."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def collect(self, fetch_offset: int, upper_bound_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Return the transactions that a reader of the range must skip, and whether later segments cannot add any."""
        found = []
        entries = self.all()
        # They are in the order of their ends, and those that ended before the range do not concern it.
        for number in range(bisect_left(entries, fetch_offset, key=_last_offset), len(entries)):
            txn = entries[number]
            if txn.first_offset < upper_bound_offset:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions that ended at `offset` or later."""
        entries = self.all()
        kept = [t for t in entries if t.last_offset < offset]
        if len(kept) != len(entries):
            handle = self._files.open(self.path)
            try:
                handle.truncate(len(kept) * _ENTRY.size)
            finally:
                handle.close()
            self._entries = kept

    def reset(self) -> None:
        if self._exists:
            self._files.unlink(self.path)
        self._exists = False
        self._entries = []

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if an entry is impossible in this segment."""
        if any(t.last_offset < self.base_offset or t.first_offset > t.last_offset for t in self.all()):
            raise CorruptIndexError(f"{self.path} has a transaction that ended before it or the segment began")

    def _load(self) -> list[AbortedTxn]:
        data = self._files.read_bytes(self.path)
        data = data[: len(data) // _ENTRY.size * _ENTRY.size]
        entries = list(_ENTRY.iter_unpack(data))
        if any(e[0] != _VERSION for e in entries):
            raise CorruptIndexError(f"{self.path} has entries of an unknown version")
        return [AbortedTxn(*e[1:]) for e in entries]
