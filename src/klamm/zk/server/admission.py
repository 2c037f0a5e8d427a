"""Admission of connections to the embedded server: bounded per host, and by time outside a session.

A connection ends after 10 s without a handshake, or without the secret if the server has one, or if it is being closed
and its client does not read. Such connections never keep others out: if a host is at its limit, the oldest of them
makes room.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from klamm.security.failure_log import FailureLog
from klamm.zk.server.server_connection import Connection

IDLE_TIMEOUT_MS: Final = 10_000
log = logging.getLogger(__name__)


class Admission:
    """Counts the connections of each host, and those among them that are not in use."""

    def __init__(self, max_per_host: int) -> None:
        self._max_per_host = max_per_host
        self._hosts: dict[str, set[int]] = {}
        self._idle: dict[int, tuple[int, Connection]] = {}
        """Oldest first, with the time at which each ends."""
        self._failures = FailureLog()

    def admit(self, connection: Connection, now_ms: int) -> bool:
        """Count a new connection, not yet in use. Returns False if its host has too many connections in use."""
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

    def on_proven(self, connection: Connection) -> None:
        """Note that the connection is in use: after its handshake, and after the secret if there is one."""
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

    def log_end(self, connection: Connection, reason: str, now_ms: int) -> None:
        """Log why a connection is closed, unless its host has caused too many such lines."""
        if (more := self._failures.note(connection.host, reason, now_ms / 1_000)) is not None:
            log.warning("closing the connection from %s: %s%s", connection.host, reason, more)


def greediest(connections: Mapping[int, Connection], max_bytes: int) -> Iterator[tuple[int, Connection]]:
    """Yield those that hold the most bytes, with their size, until the others together hold at most `max_bytes`."""
    held = sorted((connection.held_bytes, number) for number, connection in connections.items())
    excess = sum(size for size, _ in held) - max_bytes
    while excess > 0:
        size, number = held.pop()
        excess -= size
        yield size, connections[number]
