"""Processor: the connections of one listener, their traffic, and the end of idle ones."""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import Final

from klamm.metrics import MetricsRegistry
from klamm.network.connection import Connection
from klamm.network.connection_environment import ConnectionEnvironment

_log = logging.getLogger(__name__)
_GROUP: Final = "kafka.network"
TIMER_MARGIN_S: Final = 0.001
"""How much later than due the timer of idle connections fires."""


class Processor:
    """Shares the loop with the other processors. Its idle ratio counts reading, parsing and writing, not handling."""

    def __init__(
        self,
        id: int,
        listener_name: str,
        environment: ConnectionEnvironment,
        registry: MetricsRegistry,
        *,
        connections_max_idle_ms: int,
    ) -> None:
        self.id = id
        self.listener_name = listener_name
        self.environment = environment
        self.is_control_plane = environment.is_control_plane
        self.idle = environment.traffic.idle
        self.connections: dict[Connection, None] = {}
        self.connections_created = 0
        self.connections_closed = 0
        self.expired_connections_killed = 0
        self._connections_max_idle_ms = connections_max_idle_ms
        self._monotonic = environment.clock.monotonic
        self._idle_heap: list[tuple[float, int, Connection]] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self._register(registry)

    def _register(self, registry: MetricsRegistry) -> None:
        tags = {"networkProcessor": str(self.id)}
        traffic = self.environment.traffic
        registry.gauge(_GROUP, "Processor", "IdlePercent", lambda: self.idle.value, tags)
        registry.gauge(
            _GROUP, "RequestChannel", "ResponseQueueSize", lambda: self.response_queue_size, {"processor": str(self.id)}
        )
        tags = {"listener": self.listener_name, "networkProcessor": str(self.id)}
        counts = self.environment.security.counts
        for name, fn in {
            "successful-authentication-total": lambda: counts.succeeded,
            "failed-authentication-total": lambda: counts.failed,
            "successful-reauthentication-total": lambda: counts.succeeded_again,
            "failed-reauthentication-total": lambda: counts.failed_again,
            "successful-authentication-no-reauth-total": lambda: counts.without_reauthentication,
            "connection-count": lambda: len(self.connections),
            "connection-creation-total": lambda: self.connections_created,
            "connection-close-total": lambda: self.connections_closed,
            "incoming-byte-total": lambda: traffic.incoming_bytes,
            "outgoing-byte-total": lambda: traffic.outgoing_bytes,
            "expired-connections-killed-count": lambda: self.expired_connections_killed + counts.expired,
        }.items():
            registry.gauge("kafka.server", "socket-server-metrics", name, fn, tags)

    @property
    def response_queue_size(self) -> int:
        """Complete responses that have not been written, counted when asked for."""
        return sum(connection.responses_waiting for connection in self.connections)

    # Connections.

    def add(self, connection: Connection) -> None:
        self.connections[connection] = None
        self.connections_created += 1
        if self._connections_max_idle_ms > 0:
            heapq.heappush(self._idle_heap, (connection.last_active_at, connection.index, connection))
            self._arm_idle_timer()

    def remove(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.connections_closed += 1
            if len(self._idle_heap) > 2 * len(self.connections) + 64:
                self._forget_closed()

    def _forget_closed(self) -> None:
        """Free the closed connections that the heap still holds. Each is visited once or twice."""
        self._idle_heap = [entry for entry in self._idle_heap if not entry[2].is_closed]
        heapq.heapify(self._idle_heap)

    def least_recently_used(self) -> Connection | None:
        return min(self.connections, key=lambda c: c.last_active_at, default=None)

    def _arm_idle_timer(self) -> None:
        """Set one timer for all connections: it is due for the one that was checked first."""
        if self._idle_timer is None and self._idle_heap:
            due = self._idle_heap[0][0] + self._connections_max_idle_ms / 1000
            # With rounding, a timer without a margin may find the connection not due yet, and spin until it is.
            delay = max(0.0, due - self._monotonic()) + TIMER_MARGIN_S
            self._idle_timer = self.environment.loop.call_later(delay, self._close_idle)

    def _close_idle(self) -> None:
        """Check each connection at most once per idle period: activity changes its time stamp, never the heap."""
        self._idle_timer = None
        now = self._monotonic()
        oldest = now - self._connections_max_idle_ms / 1000
        heap = self._idle_heap
        while heap and heap[0][0] <= oldest:
            _, index, connection = heapq.heappop(heap)
            if connection.is_closed:
                continue
            if connection.is_idle_since(oldest):
                self._kill(connection)
                heapq.heappush(heap, (now, index, connection))
            else:
                seen = now if connection.last_active_at <= oldest else connection.last_active_at
                heapq.heappush(heap, (seen, index, connection))
        self._arm_idle_timer()

    def _kill(self, connection: Connection) -> None:
        _log.debug("Closing connection %s: idle for too long", connection.context.connection_id)
        self.expired_connections_killed += 1
        connection.abort()

    def stop_reading(self) -> None:
        for connection in self.connections:
            connection.stop_reading()

    def shutdown(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._idle_heap.clear()
