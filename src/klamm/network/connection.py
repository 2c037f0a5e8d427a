"""Connection: one accepted connection on the loop. The protocol itself is in `request_pipeline`.

It hands requests to the channel and writes responses in the order of their requests. Up to `MAX_IN_FLIGHT` requests of
a connection are in the broker at once. Reading stops for a reason (see `muting`) and resumes when the last reason is
gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Final, cast

from klamm.errors import ErrorCode, ProtocolError
from klamm.network.charging import charge
from klamm.network.connection_environment import ConnectionEnvironment
from klamm.network.gate import SASL_KEYS, Answer
from klamm.network.guarded import GuardedProtocol
from klamm.network.muting import CLOSING, IN_FLIGHT, MEMORY, NOT_ADMITTED, QUEUE_FULL, TURN, WRITE
from klamm.network.request import Request, Steps
from klamm.network.request_decoder import RequestDecoder
from klamm.network.request_metrics import MAX_CODES
from klamm.network.request_pipeline import FLUSH_BYTES, RequestPipeline, encoded_in_slices
from klamm.network.request_queue import Lane
from klamm.protocol.chunked import Held
from klamm.protocol.frames import GROWTH_BYTES
from klamm.protocol.wire import BytesLike, Message, encode

MAX_IN_FLIGHT: Final = 10
"""Requests of one connection that are in the broker at once. Clients send up to 5, or 1 if they insist on order."""


class Connection(GuardedProtocol):
    """The `Responder` of its requests. Owner: the broker loop."""

    __slots__ = (
        "__weakref__",
        "_channel",
        "_control_lane",
        "_data_lane",
        "_is_ready",
        "_on_lost",
        "_on_made",
        "_pipeline",
        "_pool",
        "_quotas",
        "_unfinished_bytes",
        "_unsent",
        "_unsent_bytes",
        "decoder",
        "get_buffer",
        "index",
        "is_admitted",
        "is_closed",
        "is_replaced",
        "is_silent",
    )

    def __init__(
        self,
        environment: ConnectionEnvironment,
        on_made: Callable[[Connection, asyncio.Transport], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        super().__init__(environment)
        channel = environment.channel
        self.decoder = RequestDecoder()
        self.index = -1
        self.is_admitted = False
        self.is_closed = False
        self.is_silent = True
        """Whether the peer has not sent a whole request yet."""
        self.is_replaced = False
        """Whether it closes in favour of a new one. Then it no longer counts as silent."""
        self._on_made = on_made
        self._on_lost = on_lost
        self._channel = channel
        self._quotas = channel.quotas
        self._pool = channel.memory_pool if channel.memory_pool.limit_bytes > 0 else None
        self.get_buffer = self._reader.get_buffer  # type: ignore[method-assign]
        is_control_plane = environment.is_control_plane
        self._pipeline = RequestPipeline(self, environment.apis, self._reader, is_control_plane=is_control_plane)
        self._control_lane = Lane(channel.control, self._on_queue_room)
        self._data_lane = self._control_lane if is_control_plane else Lane(channel.data, self._on_queue_room)
        self._unsent: list[tuple[Request, float]] = []
        self._unsent_bytes = 0
        self._unfinished_bytes = 0
        self._is_ready = False

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        is_secured = self._transport is not None  # The TLS handshake is done.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=is_secured)  # To TLS, an empty buffer exceeds a limit of 0.
        if is_secured:
            return
        self.last_active_at = self._monotonic()
        self.pause(NOT_ADMITTED)
        self._on_made(self, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop received requests that change nothing. The others are still handled, as in Kafka."""
        if self.is_closed:
            return
        self._release()
        if not self.paused & CLOSING and self.is_admitted:
            self.paused &= QUEUE_FULL | MEMORY | IN_FLIGHT
            self._process(self._monotonic())

    def buffer_updated(self, nbytes: int) -> None:
        traffic = self._traffic
        traffic.incoming_bytes += nbytes
        if self.paused & CLOSING:
            return
        now = self.last_active_at = self._monotonic()
        try:
            has_frames = self._pipeline.receive(nbytes)
        except ProtocolError as error:
            self._refuse_peer(str(error))
            return
        if has_frames:
            self.is_silent = False
            self._process(now)
        if self._reader.large_bytes != self._unfinished_bytes:
            self._note_unfinished(self._reader.large_bytes)
        traffic.idle.busy_seconds += self._monotonic() - now

    def _note_unfinished(self, size_bytes: int) -> None:
        """Account for the buffer of the frame that is being received. It grows only while there is memory."""
        has_grown = size_bytes > self._unfinished_bytes
        self._unfinished_bytes = size_bytes
        self._channel.unfinished.note(self, size_bytes)
        pool = self._pool
        if pool is not None and has_grown and pool.is_depleted and not self._pipeline.is_unfinished_control():
            pool.waiting[self._on_memory] = None
            self.pause(MEMORY)
        elif has_grown and size_bytes > GROWTH_BYTES:
            self.rest_a_turn()

    def pause_writing(self) -> None:
        self._set_write_paused(True)
        self.pause(WRITE)

    def resume_writing(self) -> None:
        self._set_write_paused(False)
        if self._unsent:
            self._record_unsent(self._monotonic())
        self._list_again()
        self._mark_ready()
        self.resume(WRITE)

    def _set_write_paused(self, is_paused: bool) -> None:
        self.is_write_paused = self._data_lane.is_blocked = self._control_lane.is_blocked = is_paused

    def _list_again(self) -> None:
        if self._data_lane is not self._control_lane:
            self._channel.list_again(self._data_lane)
        self._channel.list_again(self._control_lane)

    def _record_unsent(self, now: float) -> None:
        """Record the responses that were written: they have left, or have nowhere to go."""
        for request, flushed_at in self._unsent:
            self._channel.add_unsent(-request.response_size_bytes)
            self._recorder.record((request,), flushed_at, now)
        self._unsent.clear()
        if self._unsent_bytes:
            self._unsent_bytes = 0
            self._channel.unread.note(self, 0)

    # Requests.

    @property
    def in_flight(self) -> int:
        """How many requests of this connection are in the broker."""
        return len(self._pipeline.in_flight)

    @property
    def responses_waiting(self) -> int:
        """How many complete responses have not been written."""
        return sum(request.is_complete for request in self._pipeline.in_flight)

    def _process_received(self) -> None:
        if self._pipeline.frames:
            self._process(self._monotonic())

    def _process(self, now: float) -> None:
        pipeline, pool = self._pipeline, self._pool
        frames = pipeline.frames
        while frames and not self.paused:
            try:
                if (self.gate.is_closed or frames[0][:2] in SASL_KEYS) and not self._at_gate(frames, now):
                    continue
                # Control requests do not wait for memory: the requests that hold it may be waiting for them.
                if pool is not None and pool.used_bytes >= pool.limit_bytes and not pipeline.is_next_control():
                    pool.waiting[self._on_memory] = None
                    self.pause(MEMORY)
                    return
                request = pipeline.next_request(now)
            except ProtocolError as error:
                self._refuse_peer(str(error))
                return
            if request.response_parts is not None:
                self._answer_without_handler(request)
                continue
            if len(pipeline.in_flight) >= MAX_IN_FLIGHT:
                self.pause(IN_FLIGHT)
            lane = self._control_lane if request.api.is_control else self._data_lane
            if not self._channel.send_request(lane, request):
                self.pause(QUEUE_FULL)

    def _answer_without_handler(self, request: Request) -> None:
        self._channel.note_received()
        request.api.metrics.count_errors((ErrorCode.UNSUPPORTED_VERSION,))
        self._finish(request, request.response_parts)

    def _give(self, answer: Answer, now: float) -> None:
        if answer.message is None:
            self._give_token(answer.token)
            return
        api = self._pipeline.api(answer.key, answer.version)
        body = encode(answer.message, answer.version)
        api.metrics.count_errors((answer.error_code,))
        # The client waits for this answer, so no other one will share its write.
        if answer.problem is None and not self._pipeline.in_flight and self._is_written(api, answer, body, now):
            return
        self._channel.note_received()
        request = self._pipeline.answered(api, answer.correlation_id, now)
        if answer.problem is not None:
            request.close_connection()
        self._finish(request, body, at_once=True)

    def _give_token(self, token: bytes | None) -> None:
        """Write a bare token. The peer must not have sent a request that is still unanswered."""
        if token is None or self._pipeline.in_flight:
            self.close()
        else:
            self._write([len(token).to_bytes(4, "big") + token], 4 + len(token))

    def _on_queue_room(self) -> None:
        self.resume(QUEUE_FULL)

    def _on_memory(self) -> None:
        self.resume(MEMORY)

    def begin_slices(self, request: Request) -> None:
        self._lane(request).begin_slices()

    def end_slices(self, request: Request) -> None:
        lane = self._lane(request)
        if lane.end_slices():
            self._channel.list_again(lane)

    def _lane(self, request: Request) -> Lane:
        return self._control_lane if request.api.is_control else self._data_lane

    # Refusals.

    def _refuse_peer(self, reason: str) -> None:
        """Close the connection of a peer that does not speak the protocol, after earlier requests are answered."""
        self.log_refusal(logging.WARNING, "Closing", reason)
        self.stop_reading()
        if not self._pipeline.in_flight:
            self.close()

    def refuse(self, request: Request, reason: str) -> None:
        self.log_refusal(logging.WARNING, "Closing", reason)
        self._channel.free(request)
        self.stop_reading()
        self._pipeline.drop_later_than(request)
        self.complete_with_close(request)

    def drop(self, request: Request) -> None:
        self._channel.free(request)
        self._channel.release_memory(request)
        request.local_done_at = request.remote_done_at = self._monotonic()
        self._finish(request, None)

    # Responses.

    def response_room(self) -> int:
        return self._channel.response_room()

    def reserve_response(self, size_bytes: int) -> None:
        self._channel.add_unsent(size_bytes)

    def complete(self, request: Request, response: Message | None) -> Steps | None:
        if self._quotas.is_enabled:
            response = charge(self._quotas, request, response)
        if response is None:
            self._finish(request, None)
            return None
        api = request.api
        codes = api.read_small_error_codes(response)
        if codes is None or len(codes) > MAX_CODES:
            return self._begin_encoding(request, response)
        if self.is_closed:
            self._finish(request, None)
            return None
        self._finish(request, encode(response, api.version))
        api.metrics.count_errors(codes)
        return None

    def _begin_encoding(self, request: Request, response: Message) -> Steps | None:
        codes = request.api.read_error_codes(response)
        held: Held = [] if request.held is None else request.held
        steps = self._finish_in_slices(request, encoded_in_slices(request, response, codes, held))
        try:
            next(steps)
        except StopIteration:
            return None
        request.held = held
        return steps

    def _finish_in_slices(self, request: Request, encoding: Generator[None, None, list[BytesLike]]) -> Steps:
        """Encode a large response. If the client has gone, this finds the lists that must be freed in steps."""
        body = yield from encoding
        self._finish(request, None if self.is_closed else body)

    def complete_with_close(self, request: Request) -> None:
        request.close_connection()
        if not request.is_complete:
            self._finish(request, None)
        elif request not in self._pipeline.in_flight:  # Its response has left.
            self.close()

    def _finish(self, request: Request, body: list[BytesLike] | None, *, at_once: bool = False) -> None:
        is_next = self._pipeline.finish(request, body)
        self._channel.add_unsent(request.response_size_bytes - request.reserved_bytes)
        if is_next:
            if at_once or request.sends_at_once or request.response_size_bytes > FLUSH_BYTES:
                self.flush()
            elif not self._is_ready:
                self._is_ready = True
                self._channel.response_ready(self.flush)

    def _mark_ready(self) -> None:
        if not self._is_ready and self._pipeline.is_ready:
            self._is_ready = True
            self._channel.response_ready(self.flush)

    def flush(self) -> None:
        """Send the responses whose turn has come; stop while the client does not read."""
        self._is_ready = False
        pipeline = self._pipeline
        in_flight = pipeline.in_flight
        while in_flight and in_flight[0].is_complete and not self.is_write_paused:
            now = self._monotonic()
            sent, parts, size = pipeline.next_write()
            if parts:
                self._write(parts, size)
            self._after_write(sent, size, now)
        if self.paused:
            self._after_flush()

    def _write(self, parts: list[BytesLike], size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._traffic.outgoing_bytes += size
        if size <= FLUSH_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)

    def _after_write(self, sent: list[Request], size: int, flushed_at: float) -> None:
        channel = self._channel
        now = self.last_active_at = self._monotonic()
        self._traffic.idle.busy_seconds += now - flushed_at
        if self.is_write_paused:
            self._unsent.extend((request, flushed_at) for request in sent)
            self._unsent_bytes += size
            channel.note_sent(len(sent), 0)
            channel.unread.note(self, self._unsent_bytes)
        else:
            channel.note_sent(len(sent), size)
            self._recorder.record(sent, flushed_at, now)
        last = sent[-1]
        if last.throttle_time_ms and not self.is_closed:
            self._throttle(now, last.throttle_time_ms)
        if last.closes_connection:
            self.close()

    def _after_flush(self) -> None:
        in_flight = self._pipeline.in_flight
        if self.paused & CLOSING:
            if not in_flight:
                self.close()
        elif self.paused & IN_FLIGHT and len(in_flight) < MAX_IN_FLIGHT:
            self.resume(IN_FLIGHT)

    # Reading.

    def admit(self) -> None:
        self._limit_authentication()
        self.resume(NOT_ADMITTED)

    def stop_reading(self) -> None:
        """Accept no further requests; those in flight are answered.

        Bytes that still arrive are read and dropped: unread bytes would make the system reset the connection when it
        closes, and with that destroy responses on their way.
        """
        self._channel.freed_frames.take(self._pipeline.frames)
        self.paused |= CLOSING

    # The end.

    def is_idle_since(self, moment: float) -> bool:
        """Return whether no byte was received or sent since then, and nothing but unread responses is in flight."""
        return self.last_active_at <= moment and (not self._pipeline.in_flight or self.is_write_paused)

    def has_ended(self) -> bool:
        if not self.is_closed and self.paused & ~TURN and self.has_peer_closed():
            assert self._transport is not None
            self._transport.abort()
            return True
        return self.is_closed

    def close(self) -> None:
        """Close after written bytes have left. Requests in flight continue without this connection."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self.paused |= CLOSING
            transport.close()

    def abort(self, *, is_replaced: bool = False) -> None:
        """Close at once."""
        if is_replaced:
            self.is_silent, self.is_replaced = False, True
        if self._transport is not None:
            self.paused |= CLOSING
            self._transport.abort()

    def _release(self) -> None:
        self.is_closed = True
        self._set_write_paused(False)
        self._cancel_throttle()
        self._cancel_authentication()
        self._record_unsent(self._monotonic())
        if self._unfinished_bytes:
            self._note_unfinished(0)
        self._channel.freed_frames.add(self._reader.discard())  # A closed connection waits for the garbage collector.
        if self.paused & CLOSING:
            self._channel.freed_frames.take(self._pipeline.frames)
        self._list_again()
        self._mark_ready()
        self._transport = None
        self._on_lost(self)
