"""Hoard: memory that connections hold without progress, and which of them has to go when it is too much.

Two kinds are counted: frames of which only a part has come, and responses that the client does not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klamm.network.connection import Connection

STALLED_SECONDS: Final = 1.0
"""A connection without a byte for this long has stalled."""

_log = logging.getLogger(__name__)


class Hoard:
    """Above `soft_bytes` the connection that has stalled longest is closed; above twice that, the oldest holder."""

    def __init__(self, what: str, soft_bytes: int, monotonic: Callable[[], float]) -> None:
        self.total_bytes = 0
        self._what = what
        self._soft_bytes = soft_bytes
        self._monotonic = monotonic
        self._held: dict[Connection, int] = {}

    def note(self, connection: Connection, size_bytes: int) -> None:
        """The connection now holds this much; 0 ends it."""
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
        _log.warning(
            "Closing connection %s: it holds %d bytes of %s, all connections hold %d",
            victim.context.connection_id,
            size_bytes,
            self._what,
            self.total_bytes + size_bytes,
        )
        victim.abort()
