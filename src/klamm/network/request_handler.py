"""KafkaRequestHandlerPool: takes requests from the channel and runs their API.

Kafka has `num.io.threads` threads that block on the queue. Here handlers are plain functions on the broker loop, so a
handler is not a thread but a share of a loop turn: in each turn the pool first empties the control queue, then lets
each of its `size` handlers take one data request, or more until a millisecond is over, sends the responses, and gives
the loop back so that sockets are read and written in between. A larger pool favours throughput, a smaller one the
latency of everything else on the loop. The hand-over is one `call_soon` a turn: about 0.2 us a request where waking
tasks on a queue costs 2 us and more.

A control request that waits for something (a topic's configuration, its turn among others) goes on in steps of a loop
turn each. While one is under way the pool gives the loop back `CONTROL_ROUNDS` times, for `CONTROL_SECONDS` at most,
before it takes data requests again, so that a dozen short steps do not cost a dozen milliseconds of other people's
produces, and long ones do not cost the others their turns.

`RequestHandlerAvgIdlePercent` is the share of time in which no data request was being handled, the control plane's the
same for control requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Final

from klamm.clock import Clock
from klamm.errors import ErrorCode
from klamm.metrics import BusyRatio, MetricsRegistry
from klamm.network.api_table import API_VERSIONS_KEY
from klamm.network.request import Request
from klamm.network.request_channel import RequestChannel, RequestQueue
from klamm.protocol.wire import Message

_log = logging.getLogger(__name__)
TURN_SECONDS: Final = 0.001
"""A turn that is younger goes on when every handler has had its request.

Small requests are so answered in larger groups, with fewer system calls: 16 KiB produces took 7 to 10 % less CPU.
"""
CONTROL_ROUNDS: Final = 8
CONTROL_SECONDS: Final = 0.002
_GROUP: Final = "kafka.server"
_TYPE: Final = "KafkaRequestHandlerPool"


class KafkaRequestHandlerPool:
    """Handles the requests of one channel. Owner: the broker loop."""

    def __init__(
        self,
        channel: RequestChannel,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        registry: MetricsRegistry,
        num_io_threads: int = 8,
    ) -> None:
        if num_io_threads < 1:
            raise ValueError(f"num.io.threads is {num_io_threads}; at least one handler is needed")
        self._channel = channel
        self._loop = loop
        self._monotonic = clock.monotonic
        self._now_ms = clock.now_ms
        self._size = num_io_threads
        self._is_scheduled = False
        self._is_running = False
        self._serves_data = False
        self._control_under_way = 0
        self._rounds = 0
        self._data_at = 0.0
        self._idle = registry.busy_ratio(_GROUP, _TYPE, "RequestHandlerAvgIdlePercent")
        self._control_idle = registry.busy_ratio(_GROUP, _TYPE, "ControlPlaneRequestHandlerAvgIdlePercent")

    @property
    def size(self) -> int:
        return self._size

    @property
    def serves_data(self) -> bool:
        return self._serves_data

    def start(self, *, data: bool = True) -> None:
        """Begins to handle what is queued; until then requests wait. Without `data`, control requests only."""
        self._is_running = True
        self._serves_data = data
        self._channel.wake_handlers = self._schedule
        self._schedule()

    def open_data_plane(self) -> None:
        self._serves_data = True
        self._schedule()

    def resize(self, num_io_threads: int) -> None:
        """Changes the number of handlers, from the next turn on; no request is lost or handled twice."""
        if num_io_threads < 1:
            raise ValueError(f"num.io.threads is {num_io_threads}; at least one handler is needed")
        if num_io_threads != self._size:
            _log.info("The request handlers go from %d to %d", self._size, num_io_threads)
        self._size = num_io_threads

    def shutdown(self) -> None:
        """Handles nothing more; what is queued stays queued."""
        self._is_running = False

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._is_running:
            return
        channel = self._channel
        control, data = channel.control, channel.data
        channel.flushes_itself = True
        if control.requests:
            self._handle_some(control, len(control.requests), self._control_idle)
        if data.requests:
            if not self._serves_data:
                self._answer_who_asks_for_versions(data.requests)
            elif not self._is_controls_turn():
                self._handle_some(data, self._size, self._idle)
                self._rounds, self._data_at = 0, self._monotonic()
        channel.flushes_itself = False
        channel.flush()
        if control.waiting or data.waiting or channel.memory_pool.waiting:
            channel.admit_waiting()
        if control.requests or (data.requests and self._serves_data):
            self._schedule()

    def _is_controls_turn(self) -> bool:
        if not self._control_under_way or self._rounds >= CONTROL_ROUNDS:
            return False
        self._rounds += 1
        return self._monotonic() < self._data_at + CONTROL_SECONDS

    def _answer_who_asks_for_versions(self, requests: deque[Request]) -> None:
        """While the data plane is closed: other brokers ask for versions before they send control requests."""
        for _ in range(len(requests)):
            request = requests.popleft()
            if request.api.key == API_VERSIONS_KEY:
                request.dequeued_at = self._monotonic()
                self._handle(request)
            else:
                requests.append(request)

    def _handle_some(self, queue: RequestQueue, most: int, ratio: BusyRatio) -> None:
        requests = queue.requests
        now = start = self._monotonic()
        long_enough = start + TURN_SECONDS
        while requests and (most > 0 or now < long_enough):
            most -= 1
            request = requests.popleft()
            if request.connection.is_write_paused:
                request.connection.hold(request)
                continue
            request.dequeued_at = now
            now = self._handle(request)
        ratio.busy_seconds += now - start

    def _handle(self, request: Request) -> float:
        """Runs the API; returns the time at which it was done."""
        message, request.message = request.message, None
        request.now_ms = self._now_ms()
        try:
            result = request.api.dispatch(request, message)
            request.local_done_at = request.remote_done_at = self._monotonic()
            if isinstance(result, asyncio.Future):
                is_control = request.api.is_control
                self._control_under_way += is_control
                result.add_done_callback(partial(self._on_delayed_control if is_control else self._on_delayed, request))
            else:
                request.connection.complete(request, result)
        except Exception:
            request.local_done_at = request.remote_done_at = self._monotonic()
            self._on_bug(request)
        if self._channel.memory_pool.limit_bytes > 0:
            self._channel.memory_pool.used_bytes -= request.size_bytes
        return self._monotonic()

    def _on_delayed(self, request: Request, future: asyncio.Future[Message | None]) -> None:
        request.remote_done_at = self._monotonic()
        try:
            request.connection.complete(request, future.result())
        except (Exception, asyncio.CancelledError):
            self._on_bug(request)

    def _on_delayed_control(self, request: Request, future: asyncio.Future[Message | None]) -> None:
        """Sent at once: the controller has the next request for this broker ready, and waits."""
        self._control_under_way -= 1
        self._on_delayed(request, future)
        if not self._channel.flushes_itself:
            self._channel.flush()

    def _on_bug(self, request: Request) -> None:
        """A handler raised, or made a response that cannot be encoded: the connection pays, the broker lives."""
        _log.exception(
            "%s v%d from %s (client %s) failed; its connection is closed",
            request.api.name,
            request.api_version,
            request.connection_id,
            request.client_id,
        )
        request.api.metrics.count_errors((ErrorCode.UNKNOWN_SERVER_ERROR,))
        request.connection.complete_with_close(request)
