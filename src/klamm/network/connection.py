"""One accepted connection: bytes in, requests to the channel, responses out in the order of their requests.

A client may pipeline. Up to `MAX_IN_FLIGHT` requests of a connection are in the broker at once; they are handled in
the order in which they came (per plane), and a later one may be handled while an earlier one still waits for its
future. Its response then waits here for its turn. Reading stops for a reason (see `muting`) and goes on when the last
reason is gone.

Frames are decoded when their turn comes, not when they arrive: a flood of large frames costs other connections nothing
but its share of the handlers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final, cast

from klamm.errors import ErrorCode, ProtocolError
from klamm.network.api_table import API_VERSIONS_KEY
from klamm.network.muting import CLOSING, IN_FLIGHT, MEMORY, NOT_ADMITTED, QUEUE_FULL, WRITE, MutableProtocol
from klamm.network.request import ChannelContext, Request
from klamm.network.request_decoder import RequestDecoder
from klamm.network.request_metrics import MAX_CODES
from klamm.network.request_queue import Lane
from klamm.network.sliced_work import Steps
from klamm.protocol.frames import Frame, FrameReader
from klamm.protocol.wire import BytesLike, Message, encode, encode_in_slices

if TYPE_CHECKING:
    from klamm.network.processor import Processor

MAX_IN_FLIGHT: Final = 10
"""Requests of one connection that are in the broker at once. Clients keep 5, or 1 when they insist on order."""
FLUSH_BYTES: Final = 64 * 1024
"""Responses up to this size are sent together at the end of a turn and as one piece; larger ones at once, uncopied."""

_log = logging.getLogger(__name__)
_HEADER = Struct(">hhih")
_RESPONSE = Struct(">ii")
_UNSUPPORTED_API_VERSIONS = Struct(">iihihhh")


class Connection(MutableProtocol):
    """Owner: the broker loop."""

    def __init__(self, processor: Processor) -> None:
        super().__init__(processor.loop)
        self.processor = processor
        self.channel = processor.channel
        self.is_control_plane = processor.is_control_plane
        self.context = ChannelContext()
        self.index = -1
        self.is_admitted = False
        self.is_closed = False
        self.is_write_paused = False
        self.last_active_at = 0.0
        self._pool = processor.channel.memory_pool if processor.channel.memory_pool.limit_bytes > 0 else None
        self.in_flight: deque[Request] = deque()
        self._monotonic = processor.clock.monotonic
        self._by_code = processor.apis.by_code
        self._reader = FrameReader(processor.max_request_bytes, processor.scratch)
        self.get_buffer = self._reader.get_buffer  # type: ignore[method-assign]
        self._frames: deque[Frame] = deque()
        self.data_lane = Lane(self)
        self.control_lane = self.data_lane if self.is_control_plane else Lane(self)
        self._unsent: list[tuple[Request, float]] = []
        self._unsent_bytes = 0
        self._unfinished_bytes = 0
        self._is_ready = False
        self.decoder = RequestDecoder()

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self.last_active_at = self._monotonic()
        self.pause(NOT_ADMITTED)
        self.processor.acceptor.on_connection(self, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Requests that were received and change something are still handled, as in Kafka; the others are dropped."""
        if self.is_closed:
            return
        self._release()
        if not self.paused & CLOSING and self.is_admitted:
            self.paused &= QUEUE_FULL | MEMORY | IN_FLIGHT
            self._process(self._monotonic())

    def buffer_updated(self, nbytes: int) -> None:
        processor = self.processor
        processor.incoming_bytes += nbytes
        if self.paused & CLOSING:
            return
        now = self.last_active_at = self._monotonic()
        try:
            frames = self._reader.buffer_updated(nbytes)
        except ProtocolError as error:
            self._refuse(str(error))
            return
        if frames:
            self._frames.extend(frames)
            self._process(now)
        if self._reader.large_bytes != self._unfinished_bytes:
            self._note_unfinished(self._reader.large_bytes)
        processor.idle.busy_seconds += self._monotonic() - now

    def _note_unfinished(self, size_bytes: int) -> None:
        """The frame that is being received takes another amount of memory. It grows only while there is some."""
        has_grown = size_bytes > self._unfinished_bytes
        self._unfinished_bytes = size_bytes
        self.channel.unfinished.note(self, size_bytes)
        is_short = self._pool is not None and self._pool.is_depleted
        if self._pool is not None and has_grown and is_short and not self._is_control(self._reader.large_head):
            self._pool.waiting[self] = None
            self.pause(MEMORY)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self.pause(WRITE)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._unsent:
            now = self._monotonic()
            self._record_unsent(now)
        self.channel.list_again(self)
        self._mark_ready()
        self.resume(WRITE)

    def _record_unsent(self, now: float) -> None:
        """What was written has left, or has nowhere to go."""
        for request, flushed_at in self._unsent:
            self.channel.unsent_bytes -= request.response_size_bytes
            self.processor.record(request, flushed_at, now)
        self._unsent.clear()
        if self._unsent_bytes:
            self._unsent_bytes = 0
            self.channel.unread.note(self, 0)

    # Requests.

    def _process_received(self) -> None:
        if self._frames:
            self._process(self._monotonic())

    def _process(self, now: float) -> None:
        frames, pool = self._frames, self._pool
        while frames and not self.paused:
            if pool is not None and pool.used_bytes >= pool.limit_bytes and not self._is_control(frames[0]):
                pool.waiting[self] = None
                self.pause(MEMORY)
                return
            frame = frames.popleft()
            try:
                self._receive(frame, now)
            except ProtocolError as error:
                self._refuse(str(error))

    def _is_control(self, frame: Frame) -> bool:
        """Control requests need not wait for memory: what frees it may be waiting for them."""
        api = self._by_code.get(int.from_bytes(frame[:4], "big"))
        return api is not None and api.is_control

    def _receive(self, frame: Frame, now: float) -> None:
        if len(frame) < 10:
            raise ProtocolError(f"a request of {len(frame)} bytes has no header")
        key, version, correlation_id, _ = _HEADER.unpack_from(frame)
        api = self._by_code.get(key << 16 | version)
        if api is None:
            self._refuse_api(key, version, correlation_id, now)
            return
        if self.is_control_plane and not api.is_control and api.key != API_VERSIONS_KEY:
            raise ProtocolError(f"{api.name} is not served on the control plane")
        self._submit(Request(self, api, correlation_id, frame, now))

    def _submit(self, request: Request) -> None:
        self.in_flight.append(request)
        channel = self.channel
        channel.in_flight += 1
        if len(self.in_flight) >= MAX_IN_FLIGHT:
            self.pause(IN_FLIGHT)
        if self._pool is not None:
            request.pooled_bytes = request.size_bytes
            self._pool.used_bytes += request.size_bytes
        if not channel.send_request(request):
            self.pause(QUEUE_FULL)

    def on_queue_room(self) -> None:
        self.resume(QUEUE_FULL)

    def on_memory_available(self) -> None:
        self.resume(MEMORY)

    # Refusals.

    def _refuse_api(self, key: int, version: int, correlation_id: int, now: float) -> None:
        """Closes the connection, except that an ApiVersions of an unknown version gets an answer it can read (v0)."""
        versions = self.processor.apis.versions(key)
        if key != API_VERSIONS_KEY or versions is None:
            what = f"API key {key}" if versions is None else f"version {version} of API key {key}"
            raise ProtocolError(f"{what} is not served")
        low, high = versions
        request = Request(self, self._by_code[key << 16 | low], correlation_id, b"", now)
        code = int(ErrorCode.UNSUPPORTED_VERSION)
        body = _UNSUPPORTED_API_VERSIONS.pack(16, correlation_id, code, 1, API_VERSIONS_KEY, low, high)
        request.dequeued_at = request.local_done_at = request.remote_done_at = now
        self.in_flight.append(request)
        self.channel.in_flight += 1
        request.api.metrics.count_errors((code,))
        self._finish(request, [body], len(body))

    def _refuse(self, reason: str) -> None:
        """The peer does not speak the protocol: earlier requests are answered, then the connection closes."""
        _log.warning("Closing connection %s: %s", self.context.connection_id, reason)
        self.stop_reading()
        if not self.in_flight:
            self.close()

    def refuse(self, request: Request, reason: str) -> None:
        """A request is malformed: earlier ones are answered, later ones are dropped, and the connection closes."""
        _log.warning("Closing connection %s: %s", self.context.connection_id, reason)
        self.stop_reading()
        is_later = False
        for other in self.in_flight:
            other.is_dropped = other.is_dropped or is_later
            is_later = is_later or other is request
        self.complete_with_close(request)

    def drop(self, request: Request) -> None:
        """Ends a request that was not handled."""
        request.frame = b""
        self.channel.memory_pool.release(request)
        request.local_done_at = request.remote_done_at = self._monotonic()
        self._finish(request, None, 0)

    # Responses.

    def complete(self, request: Request, response: Message | None) -> Steps | None:
        """The response (or its absence) is known. Returns the steps that are left if encoding it takes long.

        Raises ValueError when the response cannot be encoded: a bug of the handler.
        """
        if response is None or self.is_closed:
            self._finish(request, None, 0)
            return None
        api = request.api
        codes = api.read_error_codes(response)
        if codes is None or api.is_response_sliced or len(codes) > MAX_CODES:  # type: ignore[arg-type]
            return self._begin_encoding(request, response, codes)
        self._finish_encoded(request, encode(response, api.version))
        api.metrics.count_errors(codes)
        return None

    def _begin_encoding(self, request: Request, response: Message, codes: Iterable[int] | None) -> Steps | None:
        steps = self._encode_in_slices(request, response, codes)
        try:
            next(steps)
        except StopIteration:
            return None
        return steps

    def _encode_in_slices(self, request: Request, response: Message, codes: Iterable[int] | None) -> Steps:
        api = request.api
        if codes is None:
            yield from api.count_errors_in_slices(response)
        else:
            api.metrics.count_errors(codes)
        encoding = encode_in_slices(response, api.version)
        while not self.is_closed:
            try:
                next(encoding)
            except StopIteration as done:
                self._finish_encoded(request, done.value)
                return
            yield
        self._finish(request, None, 0)

    def _finish_encoded(self, request: Request, body: list[BytesLike]) -> None:
        size = 4 + sum(map(len, body))
        if request.api.is_response_header_flexible:
            size += 1
            head = _RESPONSE.pack(size, request.correlation_id) + b"\0"
        else:
            head = _RESPONSE.pack(size, request.correlation_id)
        body.insert(0, head)
        self._finish(request, body, size + 4)

    def complete_with_close(self, request: Request) -> None:
        """The connection ends where this response would stand."""
        request.close_connection()
        if not request.is_complete:
            self._finish(request, None, 0)

    def _finish(self, request: Request, parts: list[BytesLike] | None, size: int) -> None:
        request.response_parts = parts
        request.response_size_bytes = size
        request.is_complete = True
        self.channel.unsent_bytes += size - request.reserved_bytes
        self.processor.response_queue_size += 1
        if self.in_flight[0] is request:
            if size > FLUSH_BYTES:
                self.flush()
            else:
                self._mark_ready()

    def _mark_ready(self) -> None:
        if not self._is_ready and self.in_flight and self.in_flight[0].is_complete:
            self._is_ready = True
            self.channel.response_ready(self)

    def flush(self) -> None:
        """Sends the responses whose turn it is; stops while the client does not read."""
        self._is_ready = False
        in_flight = self.in_flight
        while in_flight and in_flight[0].is_complete and not self.is_write_paused:
            self._send_some()
        if self.paused:
            self._after_send()

    def _send_some(self) -> None:
        """One write: small responses together, or one large one."""
        in_flight = self.in_flight
        now = self._monotonic()
        sent: list[Request] = []
        parts: list[BytesLike] = []
        size = 0
        while in_flight and in_flight[0].is_complete and size <= FLUSH_BYTES:
            request = in_flight.popleft()
            sent.append(request)
            if request.response_parts is not None:
                parts += request.response_parts
                size += request.response_size_bytes
                request.response_parts = None
            if request.throttle_time_ms or request.closes_connection:
                break
        if parts:
            self._write(parts, size)
        self._after_write(sent, size, now)

    def _write(self, parts: list[BytesLike], size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.processor.outgoing_bytes += size
        if size <= FLUSH_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)

    def _after_write(self, sent: list[Request], size: int, flushed_at: float) -> None:
        processor = self.processor
        processor.response_queue_size -= len(sent)
        self.channel.note_sent(len(sent))
        now = self.last_active_at = self._monotonic()
        processor.idle.busy_seconds += now - flushed_at
        if self.is_write_paused:
            self._unsent.extend((request, flushed_at) for request in sent)
            self._unsent_bytes += size
            self.channel.unread.note(self, self._unsent_bytes)
        else:
            self.channel.unsent_bytes -= size
            for request in sent:
                processor.record(request, flushed_at, now)
        last = sent[-1]
        if last.throttle_time_ms and not self.is_closed:
            self._throttle(now, last.throttle_time_ms)
        if last.closes_connection:
            self.close()

    def _after_send(self) -> None:
        if self.paused & CLOSING:
            if not self.in_flight:
                self.close()
        elif self.paused & IN_FLIGHT and len(self.in_flight) < MAX_IN_FLIGHT:
            self.resume(IN_FLIGHT)

    # Muting.

    def admit(self) -> None:
        self.resume(NOT_ADMITTED)

    def stop_reading(self) -> None:
        """Takes no further request; those in flight are answered.

        What still comes is read and dropped: unread bytes would make the system reset the connection at its close and
        with that destroy responses on their way.
        """
        self._frames.clear()
        self.paused |= CLOSING

    # The end.

    def is_idle_since(self, moment: float) -> bool:
        """Nothing came or left since then, and nothing is under way but what the client does not read."""
        return self.last_active_at <= moment and (not self.in_flight or self.is_write_paused)

    def has_ended(self) -> bool:
        """Whether the client has gone, noticed or not."""
        if not self.is_closed and self.paused and self._has_peer_closed():
            assert self._transport is not None
            self._transport.abort()
            return True
        return self.is_closed

    def close(self) -> None:
        """Closes after what was written has left; what is in flight goes on without this connection."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self.paused |= CLOSING
            transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self.paused |= CLOSING
            self._transport.abort()

    def _release(self) -> None:
        self.is_closed = True
        self.is_write_paused = False
        self._cancel_throttle()
        self._record_unsent(self._monotonic())
        if self._unfinished_bytes:
            self._note_unfinished(0)
        self._reader.discard()  # A closed connection waits for the garbage collector.
        if self.paused & CLOSING:
            self._frames.clear()
        self.channel.list_again(self)
        self._mark_ready()
        self._transport = None
        self.processor.acceptor.on_connection_lost(self)
