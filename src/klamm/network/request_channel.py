"""RequestChannel: the bounded queues between connections and handlers.

There are two: data and control. Handlers empty the control queue first. A connection whose request finds its queue full
stops reading its socket until there is room: nothing blocks the loop, and other connections continue.
Completed responses wait in their connection; the channel knows which connections have something to send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from klamm.metrics import MetricsRegistry
from klamm.network.charging import NO_QUOTAS, RequestQuotas
from klamm.network.freed_frames import FreedFrames
from klamm.network.hoard import Hoard
from klamm.network.request import Request
from klamm.network.request_queue import Lane, RequestQueue
from klamm.network.request_tracer import RequestTracer
from klamm.network.slice_passes import SlicePasses

CONTROL_PLANE_QUEUE_LIMIT: Final = 20
UNLIMITED: Final = -1
UNSENT_RESPONSE_BYTES: Final = 128 * 1024 * 1024
"""Memory for responses that their clients have not read. Beyond it a Fetch gets `LEAST_RESPONSE_BYTES`."""
LEAST_RESPONSE_BYTES: Final = 64 * 1024
"""Minimum room of a response, however much is unsent: clients that read must make progress."""
UNFINISHED_REQUEST_BYTES: Final = 512 * 1024 * 1024
"""Memory for incomplete requests. Beyond it stalled connections are closed."""
_GROUP: Final = "kafka.network"


class MemoryPool:
    """`queued.max.request.bytes`: connections stop reading while requests that wait for a handler hold that many bytes.

    A single request may exceed the limit, as in Kafka: it is admitted whenever anything is free. Only the channel
    changes `used_bytes`.
    """

    __slots__ = ("limit_bytes", "used_bytes", "waiting")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiting: dict[Callable[[], None], None] = {}
        """Called, longest wait first, when memory is free."""

    @property
    def is_depleted(self) -> bool:
        return 0 < self.limit_bytes <= self.used_bytes

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes) if self.limit_bytes > 0 else 2**63 - 1


class RequestChannel:
    """The queues of a broker. Owner: the broker loop. Only its methods change its counters."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: MetricsRegistry,
        *,
        queued_max_requests: int = 500,
        queued_max_request_bytes: int = UNLIMITED,
        monotonic: Callable[[], float] | None = None,
        quotas: RequestQuotas = NO_QUOTAS,
        tracer: RequestTracer,
    ) -> None:
        monotonic = monotonic if monotonic is not None else loop.time
        self._loop = loop
        self.quotas: Final = quotas
        self.tracer: Final = tracer
        self.data = RequestQueue(queued_max_requests)
        self.control = RequestQueue(CONTROL_PLANE_QUEUE_LIMIT)
        self.memory_pool = MemoryPool(queued_max_request_bytes)
        self.unfinished = Hoard("unfinished requests", UNFINISHED_REQUEST_BYTES, monotonic)
        self.unread = Hoard("unread responses", 2 * UNSENT_RESPONSE_BYTES, monotonic)
        self.in_flight = 0
        """Requests that were received and have not left the broker, with a response or without."""
        self.unsent_bytes = 0
        """Responses, complete or reserved, that their clients have not read."""
        self.freed_frames = FreedFrames(loop)
        self.passes = SlicePasses()
        self.wake_handlers: Callable[[], None] = _no_handlers
        self.flushes_itself = False
        self._to_flush: deque[Callable[[], None]] = deque()
        self._flush_is_scheduled = False
        self._drained: asyncio.Future[None] | None = None
        self._register(registry)

    def _register(self, registry: MetricsRegistry) -> None:
        def gauge(type_: str, name: str, fn: Callable[[], object]) -> None:
            registry.gauge(_GROUP, type_, name, fn)

        gauge("RequestChannel", "RequestQueueSize", lambda: self.data.size)
        gauge("RequestChannel", "ControlPlaneRequestQueueSize", lambda: self.control.size)
        peaks = ("broker", "klamm.network", "RequestChannel")
        registry.peak(*peaks, "RequestQueueSizeMax", lambda: self.data.size, owner=self.data)
        registry.peak(*peaks, "ControlPlaneRequestQueueSizeMax", lambda: self.control.size, owner=self.control)
        gauge("SocketServer", "MemoryPoolAvailable", lambda: self.memory_pool.available_bytes)
        gauge("SocketServer", "MemoryPoolUsed", lambda: self.memory_pool.used_bytes)

    # Requests.

    def send_request(self, lane: Lane, request: Request) -> bool:
        """Queue a request. Return False if its queue is full: the lane reports when there is room."""
        self.in_flight += 1
        tracer = self.tracer
        if tracer.is_on and tracer.is_due():
            tracer.begin(request, self.data.size, self.control.size)
        self.memory_pool.used_bytes += request.pooled_bytes
        if lane.is_listed:  # The handlers know of the lane.
            return lane.queue.offer(lane, request)
        is_queued = lane.queue.offer(lane, request)
        self.wake_handlers()
        return is_queued

    def release_memory(self, request: Request) -> None:
        """Free the request's share of the memory pool: its frame is decoded or dropped."""
        self.memory_pool.used_bytes -= request.pooled_bytes
        request.pooled_bytes = 0

    def free(self, request: Request) -> None:
        """Drop the frame of a request that is not decoded."""
        frame, request.frame = request.frame, b""
        self.freed_frames.add(frame)

    def note_received(self) -> None:
        """Count a request that needs no handler."""
        self.in_flight += 1

    def list_again(self, lane: Lane) -> None:
        """Give a lane turns again: its client reads, its connection has ended, or its work in slices is done."""
        if lane:
            lane.queue.list_again(lane)
            self.wake_handlers()

    def admit_waiting(self) -> None:
        """Read connections again that wait for room or memory, longest wait first, while there is some."""
        self.control.admit_waiting()
        self.data.admit_waiting()
        pool = self.memory_pool
        while pool.waiting and not pool.is_depleted:
            on_memory = next(iter(pool.waiting))
            del pool.waiting[on_memory]
            on_memory()

    # Responses.

    def response_ready(self, flush: Callable[[], None]) -> None:
        """Call `flush` soon, together with the connections that become ready in the same turn."""
        self._to_flush.append(flush)
        if not self.flushes_itself and not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_is_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send all responses that are ready, including those that become ready meanwhile."""
        to_flush = self._to_flush
        while to_flush:
            to_flush.popleft()()

    def response_room(self) -> int:
        """Return how large a response may be now: half of the rest, so that a few slow readers do not take it all."""
        return max(LEAST_RESPONSE_BYTES, (UNSENT_RESPONSE_BYTES - self.unsent_bytes) // 2)

    def add_unsent(self, size_bytes: int) -> None:
        """Count bytes of a response that its client has not read; negative if they were sent or are not needed."""
        self.unsent_bytes += size_bytes

    def note_sent(self, count: int, size_bytes: int) -> None:
        """Count requests that have left the broker, and the bytes of their responses that no longer need memory."""
        self.in_flight -= count
        self.unsent_bytes -= size_bytes
        if self._drained is not None and self.in_flight == 0 and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self) -> None:
        """Return when no request is queued, being handled or unanswered."""
        while self.in_flight:
            self._drained = self._loop.create_future()
            await self._drained
        self._drained = None


def _no_handlers() -> None:
    """Requests wait in the queues until a handler pool is started."""
