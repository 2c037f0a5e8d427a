"""RequestChannel: the bounded queues between connections and handlers.

There are two: data and control. Handlers empty the control queue first. A connection whose request finds its queue full
stops reading its socket until there is room: nothing ever blocks the loop, and other connections go on.
 Finished responses wait in their connection for their turn; the channel knows which connections
have something to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from klamm.metrics import MetricsRegistry
from klamm.network.hoard import Hoard
from klamm.network.request import Request
from klamm.network.request_queue import RequestQueue

if TYPE_CHECKING:
    from klamm.network.connection import Connection

CONTROL_PLANE_QUEUE_LIMIT: Final = 20
UNLIMITED: Final = -1
UNSENT_RESPONSE_BYTES: Final = 128 * 1024 * 1024
"""What responses may hold in memory until their clients have read them; beyond it a fetch gets the least there is."""
LEAST_RESPONSE_BYTES: Final = 64 * 1024
"""What a response may have however much is unsent: clients that do read must get on."""
UNFINISHED_REQUEST_BYTES: Final = 512 * 1024 * 1024
"""What requests of which only a part has come may hold before connections that have stalled are closed."""
_GROUP: Final = "kafka.network"


class MemoryPool:
    """`queued.max.request.bytes`: connections stop reading while the requests not yet handled hold that many bytes.

    A single request may overshoot, as in Kafka: it is admitted whenever anything is free.
    """

    __slots__ = ("limit_bytes", "used_bytes", "waiting")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiting: dict[Connection, None] = {}

    def release(self, request: Request) -> None:
        self.used_bytes -= request.pooled_bytes
        request.pooled_bytes = 0

    @property
    def is_depleted(self) -> bool:
        return 0 < self.limit_bytes <= self.used_bytes

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes) if self.limit_bytes > 0 else 2**63 - 1


class RequestChannel:
    """The queues of a broker. Owner: the broker loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: MetricsRegistry,
        *,
        queued_max_requests: int = 500,
        queued_max_request_bytes: int = UNLIMITED,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        monotonic = monotonic if monotonic is not None else loop.time
        self._loop = loop
        self.data = RequestQueue(queued_max_requests)
        self.control = RequestQueue(CONTROL_PLANE_QUEUE_LIMIT)
        self.memory_pool = MemoryPool(queued_max_request_bytes)
        self.unfinished = Hoard("unfinished requests", UNFINISHED_REQUEST_BYTES, monotonic)
        self.unread = Hoard("unread responses", 2 * UNSENT_RESPONSE_BYTES, monotonic)
        self.in_flight = 0
        self.unsent_bytes = 0
        self.wake_handlers: Callable[[], None] = _nobody_listens
        self.flushes_itself = False
        self._to_flush: list[Connection] = []
        self._flush_is_scheduled = False
        self._drained: asyncio.Future[None] | None = None
        self._register(registry)

    def _register(self, registry: MetricsRegistry) -> None:
        def gauge(type_: str, name: str, fn: Callable[[], object]) -> None:
            registry.gauge(_GROUP, type_, name, fn)

        gauge("RequestChannel", "RequestQueueSize", lambda: self.data.size)
        gauge("RequestChannel", "ControlPlaneRequestQueueSize", lambda: self.control.size)
        gauge("SocketServer", "MemoryPoolAvailable", lambda: self.memory_pool.available_bytes)
        gauge("SocketServer", "MemoryPoolUsed", lambda: self.memory_pool.used_bytes)

    def send_request(self, request: Request) -> bool:
        """Queues a request. False when its queue is full: its connection is called when there is room."""
        connection = request.connection
        if request.api.is_control or connection.is_control_plane:
            is_queued = self.control.offer(connection.control_lane, request)
        else:
            is_queued = self.data.offer(connection.data_lane, request)
        self.wake_handlers()
        return is_queued

    def list_again(self, connection: Connection) -> None:
        """The connection's requests may be handled again: its client reads, or it has ended."""
        if connection.data_lane and not connection.is_control_plane:
            self.data.list_again(connection.data_lane)
        if connection.control_lane:
            self.control.list_again(connection.control_lane)
        self.wake_handlers()

    def admit_waiting(self) -> None:
        """Reads connections again that wait for room or memory, longest first, while there is some."""
        self.control.admit_waiting()
        self.data.admit_waiting()
        pool = self.memory_pool
        while pool.waiting and not pool.is_depleted:
            connection = next(iter(pool.waiting))
            del pool.waiting[connection]
            connection.on_memory_available()

    def response_ready(self, connection: Connection) -> None:
        """The connection has responses to send: soon, together with others that become ready in the same turn."""
        self._to_flush.append(connection)
        if not self.flushes_itself and not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_is_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Sends what is ready; connections that become ready meanwhile are served too."""
        while self._to_flush:
            connections, self._to_flush = self._to_flush, []
            for connection in connections:
                connection.flush()

    def response_room(self) -> int:
        """How large a response may be now: half of what is left, so that a few slow readers do not take it all."""
        return max(LEAST_RESPONSE_BYTES, (UNSENT_RESPONSE_BYTES - self.unsent_bytes) // 2)

    def note_sent(self, count: int) -> None:
        """So many requests have left the broker, with a response or without."""
        self.in_flight -= count
        if self._drained is not None and self.in_flight == 0 and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self) -> None:
        """Returns when no request is queued, being handled or unanswered."""
        while self.in_flight:
            self._drained = self._loop.create_future()
            await self._drained
        self._drained = None


def _nobody_listens() -> None:
    """Requests wait in the queues until a handler pool is started."""
