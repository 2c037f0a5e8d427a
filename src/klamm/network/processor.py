"""Processor: the connections of one listener, what they read and write, and when they are idle for too long."""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import TYPE_CHECKING, Final

from klamm.clock import Clock
from klamm.metrics import BusyRatio, MetricsRegistry
from klamm.network.api_table import ApiTable
from klamm.network.request import Request
from klamm.network.request_channel import RequestChannel

if TYPE_CHECKING:
    from klamm.network.acceptor import Acceptor
    from klamm.network.connection import Connection

_log = logging.getLogger(__name__)
_request_log = logging.getLogger("klamm.request")
_GROUP: Final = "kafka.network"


class Processor:
    """Shares the loop with all others. Its idle ratio counts reading, parsing and writing, not handling."""

    acceptor: Acceptor

    def __init__(
        self,
        id: int,
        listener_name: str,
        *,
        is_control_plane: bool,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        registry: MetricsRegistry,
        channel: RequestChannel,
        apis: ApiTable,
        scratch: bytearray,
        max_request_bytes: int,
        connections_max_idle_ms: int,
    ) -> None:
        self.id = id
        self.listener_name = listener_name
        self.is_control_plane = is_control_plane
        self.loop = loop
        self.clock = clock
        self.channel = channel
        self.apis = apis
        self.scratch = scratch
        self.max_request_bytes = max_request_bytes
        self.connections_max_idle_ms = connections_max_idle_ms
        self.connections: dict[Connection, None] = {}
        self.idle = BusyRatio(clock)
        self.response_queue_size = 0
        self.incoming_bytes = 0
        self.outgoing_bytes = 0
        self.connections_created = 0
        self.connections_closed = 0
        self.expired_connections_killed = 0
        self._idle_heap: list[tuple[float, int, Connection]] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self._register(registry)

    def _register(self, registry: MetricsRegistry) -> None:
        tags = {"networkProcessor": str(self.id)}
        registry.gauge(_GROUP, "Processor", "IdlePercent", lambda: self.idle.value, tags)
        registry.gauge(
            _GROUP, "RequestChannel", "ResponseQueueSize", lambda: self.response_queue_size, {"processor": str(self.id)}
        )
        tags = {"listener": self.listener_name, "networkProcessor": str(self.id)}
        for name, fn in {
            "connection-count": lambda: len(self.connections),
            "connection-creation-total": lambda: self.connections_created,
            "connection-close-total": lambda: self.connections_closed,
            "incoming-byte-total": lambda: self.incoming_bytes,
            "outgoing-byte-total": lambda: self.outgoing_bytes,
            "expired-connections-killed-count": lambda: self.expired_connections_killed,
        }.items():
            registry.gauge("kafka.server", "socket-server-metrics", name, fn, tags)

    # Connections.

    def add(self, connection: Connection) -> None:
        self.connections[connection] = None
        self.connections_created += 1
        if self.connections_max_idle_ms > 0:
            heapq.heappush(self._idle_heap, (connection.last_active_at, connection.index, connection))
            self._arm_idle_timer()

    def remove(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.connections_closed += 1
            if len(self._idle_heap) > 2 * len(self.connections) + 64:
                self._forget_closed()

    def _forget_closed(self) -> None:
        """Frees the closed connections that the heap still holds; each costs this only once or twice."""
        self._idle_heap = [entry for entry in self._idle_heap if not entry[2].is_closed]
        heapq.heapify(self._idle_heap)

    def least_recently_used(self) -> Connection | None:
        return min(self.connections, key=lambda c: c.last_active_at, default=None)

    def _arm_idle_timer(self) -> None:
        """One timer for all: it looks at the connection that was looked at the longest time ago."""
        if self._idle_timer is None and self._idle_heap:
            due = self._idle_heap[0][0] + self.connections_max_idle_ms / 1000
            delay = max(0.0, due - self.clock.monotonic())
            self._idle_timer = self.loop.call_later(delay, self._close_idle)

    def _close_idle(self) -> None:
        """Each connection comes up at most once per idle period: activity only moves its stamp, never the heap."""
        self._idle_timer = None
        now = self.clock.monotonic()
        oldest = now - self.connections_max_idle_ms / 1000
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

    # Measuring.

    def record(self, request: Request, flushed_at: float, sent_at: float) -> None:
        """A request is over: all its times are known."""
        received, dequeued = request.received_at, request.dequeued_at
        local_done, remote_done = request.local_done_at, request.remote_done_at
        row = (
            (dequeued - received) * 1000,
            (local_done - dequeued) * 1000,
            (remote_done - local_done) * 1000,
            request.throttle_time_ms,
            (flushed_at - remote_done) * 1000,
            (sent_at - flushed_at) * 1000,
            (sent_at - received) * 1000,
            request.size_bytes,
        )
        api = request.api
        api.metrics.table.append(row)
        api.mark_request()
        if request.split_name is not None:
            self.apis.metrics(request.split_name).record(api.version, row)
        if _request_log.isEnabledFor(logging.DEBUG):
            _log_request(request, row)


def _log_request(request: Request, row: tuple[float, ...]) -> None:
    _request_log.debug(
        "Completed request api=%s version=%d correlationId=%d clientId=%s connection=%s listener=%s"
        " securityProtocol=%s principal=%s client=%s/%s responseBytes=%d requestQueueTime=%.3f localTime=%.3f"
        " remoteTime=%.3f throttleTime=%d responseQueueTime=%.3f sendTime=%.3f totalTime=%.3f requestBytes=%d",
        request.api.name,
        request.api_version,
        request.correlation_id,
        request.client_id,
        request.connection_id,
        request.listener_name,
        request.security_protocol.name,
        request.principal,
        request.client_software_name,
        request.client_software_version,
        request.response_size_bytes,
        *row,
    )
