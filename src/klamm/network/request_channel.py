"""RequestChannel: the bounded queues between connections and handlers.

There are two: data and control. Handlers empty the control queue first. A connection whose request finds its queue full
keeps the request, stops reading its socket and is called when there is room: nothing ever blocks the loop, and other
connections go on. Finished responses wait in their connection for their turn; the channel knows which connections
have something to send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from klamm.metrics import MetricsRegistry
from klamm.network.request import Request

if TYPE_CHECKING:
    from klamm.network.connection import Connection

CONTROL_PLANE_QUEUE_LIMIT: Final = 20
UNLIMITED: Final = -1
UNSENT_RESPONSE_BYTES: Final = 128 * 1024 * 1024
"""What responses may hold in memory until their clients have read them; beyond it a fetch gets the least there is."""
LEAST_RESPONSE_BYTES: Final = 64 * 1024
"""What a response may have however much is unsent: clients that do read must get on."""
_GROUP: Final = "kafka.network"


class RequestQueue:
    """A bounded FIFO of requests and the connections that wait for room in it."""

    __slots__ = ("limit", "requests", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.requests: deque[Request] = deque()
        self.waiting: dict[Connection, None] = {}

    def offer(self, request: Request) -> bool:
        """False when the queue is full, or when others already wait for room: nobody overtakes them."""
        if len(self.requests) >= self.limit or self.waiting:
            return False
        self.requests.append(request)
        return True


class MemoryPool:
    """`queued.max.request.bytes`: connections stop reading while the requests not yet handled hold that many bytes.

    A single request may overshoot, as in Kafka: it is admitted whenever anything is free.
    """

    __slots__ = ("limit_bytes", "used_bytes", "waiting")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiting: dict[Connection, None] = {}

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
    ) -> None:
        self._loop = loop
        self.data = RequestQueue(queued_max_requests)
        self.control = RequestQueue(CONTROL_PLANE_QUEUE_LIMIT)
        self.memory_pool = MemoryPool(queued_max_request_bytes)
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

        gauge("RequestChannel", "RequestQueueSize", lambda: len(self.data.requests))
        gauge("RequestChannel", "ControlPlaneRequestQueueSize", lambda: len(self.control.requests))
        gauge("SocketServer", "MemoryPoolAvailable", lambda: self.memory_pool.available_bytes)
        gauge("SocketServer", "MemoryPoolUsed", lambda: self.memory_pool.used_bytes)

    def queue_for(self, request: Request) -> RequestQueue:
        return self.control if request.api.is_control or request.connection.is_control_plane else self.data

    def send_request(self, request: Request) -> bool:
        """Queues a request; False when its queue is full, and then its connection is called when there is room."""
        queue = self.queue_for(request)
        if not queue.offer(request):
            queue.waiting[request.connection] = None
            return False
        self.wake_handlers()
        return True

    def put_back(self, requests: deque[Request]) -> None:
        """Queues requests that were taken and not handled, before all others and whatever the limit."""
        while requests:
            request = requests.pop()
            self.queue_for(request).requests.appendleft(request)
        self.wake_handlers()

    def admit_waiting(self) -> None:
        """Calls the connections that wait, longest first, while there is room."""
        for queue in (self.control, self.data):
            waiting = queue.waiting
            while waiting and len(queue.requests) < queue.limit:
                connection = next(iter(waiting))
                del waiting[connection]
                request = connection.take_parked_request()
                if request is not None:
                    queue.requests.append(request)
                    self.wake_handlers()
                connection.on_queue_room()
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
