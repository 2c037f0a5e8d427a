"""Admission of connections to the embedded server: bounded per host and in total, and by time outside a session.

A connection ends after 10 s without a handshake, or without the secret if the server has one, or if it is being closed
and its client does not read. Such connections never keep others out: if a host is at its limit, the oldest of them
makes room, and if there are too many in total, the oldest of the host with the most of them. Connections in use stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from klamm.security.failure_log import FailureLog
from klamm.zk.model.limits import MAX_CONNECTIONS
from klamm.zk.server.server_connection import Connection

IDLE_TIMEOUT_MS: Final = 10_000
log = logging.getLogger(__name__)


class Admission:
    """Counts the connections of each host, and those among them that are not in use."""

    def __init__(self, max_per_host: int, max_connections: int = MAX_CONNECTIONS) -> None:
        self._max_per_host = max_per_host
        self._max_connections = max_connections
        self._hosts: dict[str, set[int]] = {}
        self._total = 0
        self._idle: dict[int, tuple[int, Connection]] = {}
        """Oldest first, with the time at which each ends."""
        self._idle_of: dict[str, dict[int, Connection]] = {}
        """The same by host."""
        self._failures = FailureLog()

    def admit(self, connection: Connection, now_ms: int) -> bool:
        """Count a new connection, not yet in use. Returns False if too many are in use, of its host or in total."""
        of_host = self._hosts.setdefault(connection.host, set())
        of_host.add(connection.number)
        self._total += 1
        self._begin_idling(connection, now_ms)
        if len(of_host) > self._max_per_host:
            host = connection.host
        elif self._total > self._max_connections:
            host = max(self._idle_of, key=lambda host: len(self._idle_of[host]))
        else:
            return True
        oldest = next(iter(self._idle_of[host].values()))
        self.remove(oldest)
        if oldest is connection:
            self.log_end(oldest, "too many connections are in use", now_ms)
            return False
        self.log_end(oldest, "it was not in use, and a new one needs its place", now_ms)
        oldest.abort()
        return True

    def on_proven(self, connection: Connection) -> None:
        """Note that the connection is in use: after its handshake, and after the secret if there is one."""
        self._end_idling(connection)

    def on_closing(self, connection: Connection, now_ms: int) -> None:
        """Note that the connection only has to send its last answers."""
        self._end_idling(connection)
        if connection.number in self._hosts.get(connection.host, ()):
            self._begin_idling(connection, now_ms)

    def remove(self, connection: Connection) -> None:
        self._end_idling(connection)
        of_host = self._hosts.get(connection.host, set())
        if connection.number in of_host:
            of_host.remove(connection.number)
            self._total -= 1
        if not of_host:
            self._hosts.pop(connection.host, None)

    def _begin_idling(self, connection: Connection, now_ms: int) -> None:
        self._idle[connection.number] = now_ms + IDLE_TIMEOUT_MS, connection
        self._idle_of.setdefault(connection.host, {})[connection.number] = connection

    def _end_idling(self, connection: Connection) -> None:
        if self._idle.pop(connection.number, None) is None:
            return
        of_host = self._idle_of[connection.host]
        del of_host[connection.number]
        if not of_host:
            del self._idle_of[connection.host]

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
