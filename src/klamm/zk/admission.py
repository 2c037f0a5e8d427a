"""Admission of connections to the embedded server: bounded per host, and ended unless they introduce themselves.

Connections without a handshake never keep others out: if a host is at its limit, the oldest of them makes room.
"""

from __future__ import annotations

from typing import Final

from klamm.zk.connection import Connection

HANDSHAKE_TIMEOUT_MS: Final = 10_000


class Admission:
    """Counts the connections of each host, and those among them that have not sent a handshake yet."""

    def __init__(self, max_per_host: int) -> None:
        self._max_per_host = max_per_host
        self._hosts: dict[str, set[int]] = {}
        self._silent: dict[int, tuple[int, Connection]] = {}
        """Oldest first, with the time at which each ends."""

    def admit(self, connection: Connection, now_ms: int) -> bool:
        """Counts a new connection. False if its host has too many that are in use."""
        of_host = self._hosts.setdefault(connection.host, set())
        of_host.add(connection.number)
        self._silent[connection.number] = now_ms + HANDSHAKE_TIMEOUT_MS, connection
        if len(of_host) <= self._max_per_host:
            return True
        oldest = next(silent for _, silent in self._silent.values() if silent.host == connection.host)
        self.remove(oldest)
        if oldest is connection:
            return False
        oldest.abort()
        return True

    def greeted(self, connection: Connection) -> None:
        """Notes that the connection has sent its handshake."""
        self._silent.pop(connection.number, None)

    def remove(self, connection: Connection) -> None:
        self._silent.pop(connection.number, None)
        of_host = self._hosts.get(connection.host, set())
        of_host.discard(connection.number)
        if not of_host:
            self._hosts.pop(connection.host, None)

    def overdue(self, now_ms: int) -> list[Connection]:
        """Connections whose time for the handshake is over."""
        found = []
        for deadline_ms, connection in self._silent.values():
            if deadline_ms > now_ms:
                break
            found.append(connection)
        return found
