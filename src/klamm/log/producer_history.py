"""Remembers how the newest batches changed the state of producers, so that a truncation can undo them.

A follower that truncates cuts the batches above the high watermark, which are few. Without this history it would read
the whole active segment again: the newest snapshot of the producers is of its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from klamm.log.producer_entry import ProducerStateEntry

MAX_CHANGES: Final = 2_000
"""Per log. The high watermark passes most changes within milliseconds; more of them wait while a follower lags."""
MAX_OLD_CHANGES: Final = 50
"""The same for batches that are read again without a known high watermark. Very many logs may be opened on their first
use, and most of their batches are replicated."""
NO_CHANGE: Final = 1 << 63
"""Above all offsets."""
UnreplicatedEnd = tuple[int, int]
"""The offset of a marker, and the first offset of the transaction that it ended."""


Change = tuple[int, int, ProducerStateEntry | None, tuple[UnreplicatedEnd, ...] | None]
"""The change of a batch: its last offset, its producer, a copy of the former entry (None if the producer was new), and
the ends of other transactions that were dropped (None if the batch did not end a transaction)."""


class ProducerHistory:
    """Owner: the `ProducerStateManager`. It has all changes from some offset on, in the order of the batches."""

    __slots__ = ("_changes", "_start_offset", "oldest")

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._start_offset = 0
        self.oldest = NO_CHANGE
        """The last offset of the first batch whose change is known. The log compares it with each high watermark."""

    def __len__(self) -> int:
        return len(self._changes)

    def restart(self, offset: int) -> None:
        """Forget all: the state is that of the batches before `offset`, and earlier changes are unknown."""
        self._changes.clear()
        self._start_offset = offset
        self.oldest = NO_CHANGE

    def note(self, change: Change, high_watermark: int | None) -> None:
        """Add the change of the newest batch, and forget those that no truncation is expected to undo."""
        changes = self._changes
        most, replicated = (MAX_OLD_CHANGES, 0) if high_watermark is None else (MAX_CHANGES, high_watermark)
        while changes and (changes[0][0] < replicated or len(changes) >= most):
            self._start_offset = changes.popleft()[0] + 1
        changes.append(change)
        self.oldest = changes[0][0]

    def forget_before(self, high_watermark: int) -> None:
        """Forget the changes of replicated batches: a log that is idle now keeps nothing."""
        changes = self._changes
        while changes and changes[0][0] < high_watermark:
            self._start_offset = changes.popleft()[0] + 1
        self.oldest = changes[0][0] if changes else NO_CHANGE

    def reaches(self, offset: int) -> bool:
        """Whether the changes of all batches that end at `offset` or later are known."""
        return offset >= self._start_offset

    def take_from(self, offset: int) -> Iterator[Change]:
        """Remove and yield the changes of batches that end at `offset` or later, the newest first."""
        while self._changes and self._changes[-1][0] >= offset:
            yield self._changes.pop()
        if not self._changes:
            self.oldest = NO_CHANGE


NO_HISTORY: Final = ProducerHistory()
"""Of a log that is not open."""
