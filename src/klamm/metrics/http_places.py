"""Places: the connections that the metrics endpoint may have, of one address and in all. No I/O.

A connection whose client has not proved that it may read metrics makes room for a new one.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

MAX_CONNECTIONS: Final = 64
MIN_PER_ADDRESS: Final = 4


class Client(Protocol):
    """A connection as `Places` sees it."""

    address: str
    is_admitted: bool
    """Whether the request has arrived and may be answered: such a connection is never replaced."""

    def abort(self) -> None: ...


class Places:
    """An address may have a quarter of all connections."""

    def __init__(self, max_connections: int = MAX_CONNECTIONS) -> None:
        self._max = max_connections
        self._max_per_address = max(MIN_PER_ADDRESS, max_connections // 4)
        self._open: dict[Client, None] = {}
        """Oldest first."""

    @property
    def connections(self) -> list[Client]:
        return list(self._open)

    def take(self, client: Client) -> bool:
        """Count a new connection. Returns False if all others are being answered, of its address or in all.

        If there are too many in all, the address with the most loses one.
        """
        counts = Counter(each.address for each in self._open)
        waiting = [each for each in self._open if not each.is_admitted]
        if counts[client.address] >= self._max_per_address:
            waiting = [each for each in waiting if each.address == client.address]
        elif len(self._open) < self._max:
            self._open[client] = None
            return True
        if not waiting:
            return False
        replaced = max(waiting, key=lambda each: counts[each.address])
        self.leave(replaced)
        replaced.abort()
        self._open[client] = None
        return True

    def leave(self, client: Client) -> None:
        self._open.pop(client, None)
