"""Hoard: memory that connections hold without progress, and the choice of the connection to close if it is too much.

There are two hoards: incomplete requests, and responses that their clients do not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

STALLED_SECONDS: Final = 1.0
"""A connection that neither sent nor received a byte for this long has stalled."""


class Holder(Protocol):
    """A connection that holds memory."""

    @property
    def last_active_at(self) -> float: ...

    def log_refusal(self, level: int, action: str, reason: str) -> None: ...

    def abort(self) -> None: ...


class Hoard:
    """Above `soft_bytes`, closes the connection that stalled first. Above twice that, closes the oldest holder."""

    def __init__(self, what: str, soft_bytes: int, monotonic: Callable[[], float]) -> None:
        self.total_bytes = 0
        self._what = what
        self._soft_bytes = soft_bytes
        self._monotonic = monotonic
        self._held: dict[Holder, int] = {}

    def note(self, connection: Holder, size_bytes: int) -> None:
        """Set how much the connection holds; 0 removes it."""
        self.total_bytes += size_bytes - self._held.get(connection, 0)
        if size_bytes:
            self._held[connection] = size_bytes
        else:
            self._held.pop(connection, None)
        if self.total_bytes > self._soft_bytes:
            self._evict()

    def _evict(self) -> None:
        victim = min(self._held, key=lambda connection: connection.last_active_at)
        if victim.last_active_at > self._monotonic() - STALLED_SECONDS:
            if self.total_bytes <= 2 * self._soft_bytes:
                return
            victim = next(iter(self._held))
        size_bytes = self._held.pop(victim)
        self.total_bytes -= size_bytes
        together = self.total_bytes + size_bytes
        reason = f"it holds {size_bytes} bytes of {self._what}; all connections together hold {together}"
        victim.log_refusal(logging.WARNING, "Closing", reason)
        victim.abort()
