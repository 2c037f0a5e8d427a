"""Admission of connections to the embedded server: bounded per host, and by time outside a session.

A connection without a handshake, or one that is being closed and whose client does not read, ends after 10 s. Such
connections never keep others out: if a host is at its limit, the oldest of them makes room.
"""

from __future__ import annotations

from typing import Final

from klamm.zk.server.server_connection import Connection

IDLE_TIMEOUT_MS: Final = 10_000


class Admission:
    """Counts the connections of each host, and those among them that are not in use."""

    def __init__(self, max_per_host: int) -> None:
        self._max_per_host = max_per_host
        self._hosts: dict[str, set[int]] = {}
        self._idle: dict[int, tuple[int, Connection]] = {}
        """Oldest first, with the time at which each ends."""

    def admit(self, connection: Connection, now_ms: int) -> bool:
        """Count a new connection without a handshake. Returns False if its host has too many connections in use."""
        of_host = self._hosts.setdefault(connection.host, set())
        of_host.add(connection.number)
        self._idle[connection.number] = now_ms + IDLE_TIMEOUT_MS, connection
        if len(of_host) <= self._max_per_host:
            return True
        oldest = next(idle for _, idle in self._idle.values() if idle.host == connection.host)
        self.remove(oldest)
        if oldest is connection:
            return False
        oldest.abort()
        return True

    def on_handshake(self, connection: Connection) -> None:
        """Note that the connection is in use."""
        self._idle.pop(connection.number, None)

    def on_closing(self, connection: Connection, now_ms: int) -> None:
        """Note that the connection only has to send its last answers."""
        self._idle.pop(connection.number, None)
        if connection.number in self._hosts.get(connection.host, ()):
            self._idle[connection.number] = now_ms + IDLE_TIMEOUT_MS, connection

    def remove(self, connection: Connection) -> None:
        self._idle.pop(connection.number, None)
        of_host = self._hosts.get(connection.host, set())
        of_host.discard(connection.number)
        if not of_host:
            self._hosts.pop(connection.host, None)

    def overdue(self, now_ms: int) -> list[Connection]:
        """Return the connections whose time is over."""
        found = []
        for deadline_ms, connection in self._idle.values():
            if deadline_ms > now_ms:
                break
            found.append(connection)
        return found
