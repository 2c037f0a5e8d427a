"""KafkaRequestHandlerPool: takes requests from the channel and runs their API.

Kafka has `num.io.threads` threads that block on the queue. Here handlers are functions on the broker loop. Each turn
first empties the control queue. Then it takes `size` data requests, or more during the first millisecond. Then it sends
the responses and gives the loop back, so that sockets are read and written in between. A larger pool favours
throughput, a smaller one the latency of everything else on the loop. The hand-over is one `call_soon` per turn: about
0.2 us per request, where waking tasks on a queue costs 2 us and more.

A control request that waits for something (a topic's configuration, other changes) continues in steps of one loop turn
each. Meanwhile the pool gives the loop back `CONTROL_ROUNDS` times, for `CONTROL_SECONDS` at most, before
it takes data requests again, so that a dozen short steps do not delay the control request by a dozen milliseconds of
produces, and long steps do not keep data requests from their turns.

A request above `WHOLE_BYTES` is decoded in slices, and a handler or an encoder may work in slices too (`sliced_work`).
A message that took several slices is freed in slices, too, after the request's end. While there is such work, turns
that continue it alternate with turns for small requests. A turn continues it for `SLICE_SECONDS`, and such turns follow
each other until they have taken `SHARE_SECONDS`: the loop serves everything else in between.

`RequestHandlerAvgIdlePercent` is the share of time in which no data request was being handled, the control plane's the
same for control requests.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial
from mmap import mmap
from types import GeneratorType
from typing import Any, Final

from klamm.clock import Clock
from klamm.errors import ErrorCode, ProtocolError
from klamm.metrics import BusyRatio, MetricsRegistry
from klamm.network.request import WHOLE_BYTES, Request, Steps
from klamm.network.request_channel import RequestChannel
from klamm.network.request_queue import RequestQueue
from klamm.network.sliced_work import SlicedWork
from klamm.protocol.chunked import Held
from klamm.protocol.frames import API_VERSIONS
from klamm.protocol.wire import Message
from klamm.waiting import follow

_log = logging.getLogger(__name__)
TURN_SECONDS: Final = 0.001
"""Until this time a turn continues after every handler has had its request.

Small requests are then answered in larger groups, with fewer system calls: 16 KiB produces took 7 to 10 % less CPU.
"""
MAX_TURN_SECONDS: Final = 0.004
"""After this time a turn takes no further request, even if a handler is free."""
SLICE_SECONDS: Final = 0.0005
"""Maximum time of a turn for requests that take several slices. The step at hand takes about half a millisecond more.

With a millisecond, such a turn took 1.2 to 2.4 ms.
"""
SHARE_SECONDS: Final = 0.002
"""Time that requests in slices get before small requests have their turn, and the same again after it."""
FEW_ROWS: Final = 2
"""Requests that were decoded in at most this many slices are freed at once: most have large records, few partitions."""
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
        self._release_memory = channel.release_memory
        self._tracer = channel.tracer
        self._loop = loop
        self._context = copy_context()
        """Turns run in a separate context, not in that of the request whose handling scheduled them."""
        self._monotonic = clock.monotonic
        self._now_ms = clock.now_ms
        self._size = num_io_threads
        self._is_scheduled = False
        self._is_running = False
        self._serves_data = False
        self._sliced = SlicedWork(clock.monotonic, self._on_sliced_done, self._on_step_failed)
        self._sliced_control = SlicedWork(clock.monotonic, self._on_sliced_done, self._on_step_failed)
        self._sliced_seconds = 0.0
        """Used by requests in slices since the last turn for small requests."""
        self._was_control_sliced = False
        """Control requests do not come first here: any client can send large ones, although they are refused in the
        end.
        """
        self._control_under_way = 0
        self._rounds = 0
        self._data_at = 0.0
        self.on_failed: Callable[[Request, str], None] = lambda request, error: None
        """Called when a handler failed and its connection is being closed."""
        self._idle = registry.busy_ratio(_GROUP, _TYPE, "RequestHandlerAvgIdlePercent")
        self._control_idle = registry.busy_ratio(_GROUP, _TYPE, "ControlPlaneRequestHandlerAvgIdlePercent")

    @property
    def size(self) -> int:
        return self._size

    @property
    def serves_data(self) -> bool:
        return self._serves_data

    def start(self, *, data: bool = True) -> None:
        """Start handling queued requests. Without `data`, handle control requests only."""
        self._is_running = True
        self._serves_data = data
        self._channel.wake_handlers = self._schedule
        self._schedule()

    def open_data_plane(self) -> None:
        self._serves_data = True
        self._schedule()

    def resize(self, num_io_threads: int) -> None:
        """Change the number of handlers from the next turn on. No request is lost or handled twice."""
        if num_io_threads < 1:
            raise ValueError(f"num.io.threads is {num_io_threads}; at least one handler is needed")
        if num_io_threads != self._size:
            _log.info("num.io.threads changed from %d to %d", self._size, num_io_threads)
        self._size = num_io_threads

    def shutdown(self) -> None:
        """Stop handling requests; queued requests stay in the queue."""
        self._is_running = False
        self._channel.passes.end()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._is_running:
            return
        channel = self._channel
        control, data = channel.control, channel.data
        channel.flushes_itself = True
        try:
            if control:
                self._handle_some(control, control.size, self._control_idle)
            if not self._continue_sliced() and data:
                if not self._serves_data:
                    self._answer_api_versions(data)
                elif not self._control_first():
                    self._handle_some(data, self._size, self._idle)
                    self._rounds, self._data_at = 0, self._monotonic()
        finally:  # Only a bug raises here. The requests that are left must not wait because of it.
            channel.flushes_itself = False
            if control or self._sliced_control or self._sliced or (data and self._serves_data):
                self._schedule()
            channel.flush()
        if control.waiting or data.waiting or channel.memory_pool.waiting:
            channel.admit_waiting()

    def _continue_sliced(self) -> bool:
        """Continue requests that take several slices until their share is used. Return whether this turn did so.

        A pass of the collector takes a separate turn: together with a slice it would hold the loop for too long. A
        control request that is being applied has slices of its own in the same turns, so both are shorter.
        """
        if self._sliced_seconds >= SHARE_SECONDS or not (self._sliced_control or self._sliced):
            self._sliced_seconds = 0.0
            return False
        passes = self._channel.passes
        start = self._monotonic()
        if passes.is_due:
            passes.run()
            seconds = self._monotonic() - start
            self._idle.busy_seconds += seconds
            self._sliced_seconds += seconds
            return True
        is_control = bool(self._sliced_control) and not (self._sliced and self._was_control_sliced)
        work, ratio = (self._sliced_control, self._control_idle) if is_control else (self._sliced, self._idle)
        self._was_control_sliced = is_control
        passes.hold_back()
        seconds = work.run(SLICE_SECONDS / 2 if self._control_under_way else SLICE_SECONDS) - start
        self._sliced_seconds += seconds
        if self._sliced_control or self._sliced:
            passes.note_slice(seconds)
        else:
            passes.end()
        ratio.busy_seconds += seconds
        return True

    def _control_first(self) -> bool:
        if not self._control_under_way or self._rounds >= CONTROL_ROUNDS:
            return False
        self._rounds += 1
        return self._monotonic() < self._data_at + CONTROL_SECONDS

    def _answer_api_versions(self, data: RequestQueue) -> None:
        """Answer ApiVersions while the data plane is closed: other brokers send it before control requests."""
        for request in data.take_all(API_VERSIONS):
            request.dequeued_at = self._monotonic()
            request.now_ms = self._now_ms()
            self._handle(request)

    def _handle_some(self, queue: RequestQueue, most: int, ratio: BusyRatio) -> None:
        take, handle = queue.take, self._handle
        now = start = self._monotonic()
        now_ms, next_ms = self._now_ms(), start + 0.001
        long_enough, too_long = start + TURN_SECONDS, start + MAX_TURN_SECONDS
        while now < long_enough or (most > 0 and now < too_long):
            request = take()
            if request is None:
                break
            most -= 1
            if now > next_ms:  # One reading serves all requests of a millisecond.
                now_ms, next_ms = self._now_ms(), now + 0.001
            request.dequeued_at = now
            request.now_ms = now_ms
            now = handle(request)
        ratio.busy_seconds += now - start

    def _handle(self, request: Request) -> float:
        """Run the API and return the time at which it was done."""
        connection, api = request.connection, request.api
        if request.is_dropped or ((connection.is_closed or connection.paused) and request.is_abandoned):
            connection.drop(request)
            return self._monotonic()
        try:
            if request.size_bytes <= WHOLE_BYTES:
                request.client_id, message = connection.decoder.decode(api, request.frame)
            else:
                large = self._begin_large(request)
                if large is None:
                    return self._monotonic()
                message = large
        except ProtocolError as error:
            connection.refuse(request, str(error))
        except Exception:
            request.local_done_at = request.remote_done_at = self._monotonic()
            self._on_bug(request)
        else:
            request.frame = b""
            rest = self._dispatch(request, message)
            if rest is not None:
                self._begin(request, rest, decodes=False)
        self._release_memory(request)
        return self._monotonic()

    def _begin_large(self, request: Request) -> Message | None:
        """Decode the first slice of a large request. Return the message if that is all of it, else continue later.

        Most large requests are a few record batches: after one slice they are handled like small ones. Frames with
        pages of their own are not, because the pages are freed in steps.
        """
        decoder = request.connection.decoder
        if isinstance(request.frame, mmap):
            # Only the request keeps the rows: pages are not freed while something else does.
            request.held = []
            decoding = decoder.decode_in_slices(request.api, request.frame, request.held)
            self._begin(request, self._handle_large(request, decoding), decodes=True)
            return None
        held: Held = []
        decoding = decoder.decode_in_slices(request.api, request.frame, held)
        try:
            next(decoding)
        except StopIteration as done:
            request.client_id, message = done.value
            large: Message = message
            return large
        request.note_first_slice(self._monotonic() - request.dequeued_at)
        request.held = held
        self._add_sliced(request, self._handle_large(request, decoding), decodes=True)
        return None

    def _handle_large(self, request: Request, decoding: Generator[None, None, tuple[str | None, Message]]) -> Steps:
        """Continue with a large request. A generator that has ended keeps nothing, so `decoding` may stay."""
        frame, request.frame = request.frame, b""
        rest = None
        try:
            request.client_id, message = yield from decoding
            if request.held is not None and len(request.held) <= FEW_ROWS:
                request.held = None
            rest = self._dispatch(request, message)
            del message  # Not kept while the response is encoded.
        except ProtocolError as error:
            request.connection.refuse(request, str(error))
        except Exception:
            request.local_done_at = request.remote_done_at = self._monotonic()
            self._on_bug(request)
        finally:
            request.hold_frame(frame)
            del frame
            self._channel.release_memory(request)
        if rest is not None:
            yield from rest
        if request.is_complete:
            yield from request.freed()

    def _dispatch(self, request: Request, message: Message) -> Steps | None:
        """Call the handler.

        Return the remaining steps if the handler or the encoding of its response works in slices.
        """
        api = request.api
        try:
            if api.metric_name is not None:
                request.split_name = api.metric_name(message)
            tracer = self._tracer
            is_marked = tracer.waiting or request.trace is not None
            result = tracer.dispatch(request, message) if is_marked else api.dispatch(request, message)
            if result is None or isinstance(result, Message):
                request.local_done_at = request.remote_done_at = self._monotonic()
                steps = request.connection.complete(request, result)
                return None if steps is None else self._guard(request, steps)
            if isinstance(result, GeneratorType):
                return self._settle_sliced(request, result)
            return self._settle(request, result)
        except (Exception, asyncio.CancelledError):
            request.local_done_at = request.remote_done_at = self._monotonic()
            self._on_bug(request)
            return None

    def _settle(self, request: Request, result: Any) -> Steps | None:
        request.local_done_at = request.remote_done_at = self._monotonic()
        if request.trace is not None and isinstance(result, Message):
            request.trace.note_errors(request.api.read_error_codes(result))
        if isinstance(result, asyncio.Future):
            is_control = request.api.is_control
            self._control_under_way += is_control
            follow(result, partial(self._on_delayed_control if is_control else self._on_delayed, request))
            return None
        steps = request.connection.complete(request, result)
        return None if steps is None else self._guard(request, steps)

    def _settle_sliced(self, request: Request, handling: Generator[None, None, Any]) -> Steps:
        if self._tracer.is_on:
            handling = self._tracer.within(request, handling)
        try:
            result = yield from handling
            steps = self._settle(request, result)
        except (Exception, asyncio.CancelledError):  # A handler may wait for a cancelled future.
            request.local_done_at = request.remote_done_at = self._monotonic()
            self._on_bug(request)
            return
        result = None  # Not kept while it is freed.
        if steps is not None:
            yield from steps
        elif request.is_complete:
            yield from request.freed()

    def _guard(self, request: Request, steps: Steps) -> Steps:
        """Take the steps of encoding, then those of freeing."""
        try:
            yield from steps
        except Exception:
            self._on_bug(request)
        yield from request.freed()

    # Work in slices.

    def _begin(self, request: Request, steps: Steps, *, decodes: bool) -> None:
        """Do the first slice at once: most large requests are a few record batches and need only one."""
        try:
            next(steps)
        except StopIteration:
            return
        except (Exception, asyncio.CancelledError):
            self._on_step_failed(request)
            return
        request.note_first_slice(self._monotonic() - request.dequeued_at)
        self._add_sliced(request, steps, decodes=decodes)

    def _free_later(self, request: Request) -> None:
        """Free a request that has waited for its result, in separate steps."""
        if request.held is not None:
            self._add_sliced(request, request.freed())

    def _add_sliced(self, request: Request, steps: Steps, *, decodes: bool = False) -> None:
        request.connection.begin_slices(request)
        work = self._sliced_control if request.api.is_control else self._sliced
        work.add(request, steps, decodes=decodes)
        self._schedule()

    def _on_sliced_done(self, request: Request) -> None:
        request.connection.end_slices(request)

    def _on_step_failed(self, request: Request) -> None:
        self._on_bug(request)
        self._release_memory(request)

    def _on_delayed(self, request: Request, future: asyncio.Future[Message | None]) -> None:
        request.remote_done_at = self._monotonic()
        try:
            result: Any = future.result()
            if request.trace is not None and isinstance(result, Message):
                request.trace.note_errors(request.api.read_error_codes(result))
            if isinstance(result, GeneratorType):
                request.note_first_slice(request.local_done_at - request.dequeued_at)
                self._add_sliced(request, self._settle_sliced(request, result))
                return
            steps = request.connection.complete(request, result)
            if steps is not None:
                self._add_sliced(request, self._guard(request, steps))
            else:
                self._free_later(request)
        except (Exception, asyncio.CancelledError):
            self._on_bug(request)
            self._free_later(request)

    def _on_delayed_control(self, request: Request, future: asyncio.Future[Message | None]) -> None:
        """Send the response at once: the controller has its next request ready and waits for this response."""
        self._control_under_way -= 1
        self._on_delayed(request, future)
        if not self._channel.flushes_itself:
            self._channel.flush()

    def _on_bug(self, request: Request) -> None:
        """Close the connection. A handler raised, a response cannot be encoded, or a request cannot be decoded."""
        failure = repr(sys.exception())
        _log.exception(
            "%s v%d from %s (client %s) failed; its connection is closed",
            request.api.name,
            request.api_version,
            request.connection_id,
            request.client_id,
        )
        if request.trace is not None:
            request.trace.note_errors((ErrorCode.UNKNOWN_SERVER_ERROR,))
        request.api.metrics.count_errors((ErrorCode.UNKNOWN_SERVER_ERROR,))
        request.connection.complete_with_close(request)
        try:
            self.on_failed(request, failure)
        except Exception:
            _log.exception("the failure of a request cannot be recorded")
