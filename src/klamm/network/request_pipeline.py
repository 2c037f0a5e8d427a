"""RequestPipeline: the protocol of one connection without I/O. Bytes in, requests out; responses in, bytes out.

A client may pipeline. Requests are handled in their order (per plane), and a later one may be complete while an earlier
one still waits for its future: its response then waits here for its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Final

from klamm.errors import ErrorCode, ProtocolError
from klamm.network.api_table import ApiTable, ApiTableEntry
from klamm.network.request import Request, Responder
from klamm.protocol.chunked import Held
from klamm.protocol.frames import API_VERSIONS, REQUEST_HEADER, Frame, FrameReader, prepend_response_header
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.wire import BytesLike, Message, encode, encode_in_slices

FLUSH_BYTES: Final = 64 * 1024
"""Responses up to this size share one write. A larger response is written alone and not copied."""


class RequestPipeline:
    """Requests of one connection that were received and not yet answered.

    Frames are decoded when a handler takes them, not on arrival: a flood of large frames costs other connections only
    its share of the handlers.
    """

    __slots__ = ("_apis", "_by_code", "_connection", "_is_control_plane", "_reader", "_turn_at", "frames", "in_flight")

    def __init__(self, connection: Responder, apis: ApiTable, reader: FrameReader, *, is_control_plane: bool) -> None:
        self._connection = connection
        self._apis = apis
        self._by_code = apis.by_code
        self._reader = reader
        self._is_control_plane = is_control_plane
        self.frames: deque[Frame] = deque()
        """Complete frames that are not requests yet."""
        self.in_flight: deque[Request] = deque()
        self._turn_at = 0.0

    # Requests.

    def receive(self, nbytes: int) -> bool:
        """Take `nbytes` from the reader's buffer; return whether a frame is complete. Raises ProtocolError."""
        frames = self._reader.buffer_updated(nbytes)
        if not frames:
            return False
        self.frames.extend(frames)
        return True

    def next_request(self, received_at: float) -> Request:
        """Turn the next frame into a request in flight. Raises ProtocolError.

        The request carries `response_parts` if it needs no handler.
        """
        frame = self.frames.popleft()
        if len(frame) < REQUEST_HEADER.size:
            raise ProtocolError(f"a request of {len(frame)} bytes has no header")
        key, version, correlation_id, _ = REQUEST_HEADER.unpack_from(frame)
        api = self._by_code.get(key << 16 | version)
        if api is None:
            request = self._unsupported(key, version, correlation_id, received_at)
        elif self._is_control_plane and not api.is_control and key != API_VERSIONS:
            raise ProtocolError(f"{api.name} is not served on the control plane")
        else:
            request = Request(self._connection, api, correlation_id, frame, received_at)
        self.in_flight.append(request)
        return request

    def api(self, key: int, version: int) -> ApiTableEntry:
        return self._by_code[key << 16 | version]

    def answered(self, api: ApiTableEntry, correlation_id: int, received_at: float) -> Request:
        """Return a request in flight that was answered without a handler, in the course of an authentication."""
        request = Request(self._connection, api, correlation_id, b"", received_at)
        self.in_flight.append(request)
        return request

    def _unsupported(self, key: int, version: int, correlation_id: int, received_at: float) -> Request:
        """Return an answered ApiVersions request: clients of any version can read a response of version 0."""
        versions = self._apis.versions(key)
        if key != API_VERSIONS or versions is None:
            what = f"API key {key}" if versions is None else f"version {version} of API key {key}"
            raise ProtocolError(f"{what} is not served")
        low, high = versions
        request = Request(self._connection, self._by_code[key << 16 | low], correlation_id, b"", received_at)
        served = [ApiVersion(api_key=key, min_version=low, max_version=high)]
        response = ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=served)
        request.response_parts = encode(response, 0)
        return request

    def is_next_control(self) -> bool:
        return self._is_control(self.frames[0])

    def is_unfinished_control(self) -> bool:
        """Return whether the large frame that is being received is a control request."""
        return self._is_control(self._reader.large_head)

    def _is_control(self, frame: Frame) -> bool:
        api = self._by_code.get(int.from_bytes(frame[:4], "big"))
        return api is not None and api.is_control

    def drop_later_than(self, request: Request) -> None:
        """Mark the requests behind this one: they are not handled."""
        is_later = False
        for other in self.in_flight:
            other.is_dropped = other.is_dropped or is_later
            is_later = is_later or other is request

    # Responses.

    def finish(self, request: Request, body: list[BytesLike] | None) -> bool:
        """Complete a request with an encoded response or without one; return whether its turn to leave has come."""
        request.response_parts = body
        if body is not None:
            api = request.api
            if len(body) == 1:
                first = body[0]
                size = api.response_header_bytes + len(first)
                body[0] = api.pack_response_header(size, request.correlation_id) + first
                request.response_size_bytes = size + 4
            else:
                request.response_size_bytes = prepend_response_header(
                    api.response_header_version, request.correlation_id, body
                )
        request.is_complete = True
        return self.in_flight[0] is request

    @property
    def is_ready(self) -> bool:
        """Whether a response may leave."""
        return bool(self.in_flight) and self.in_flight[0].is_complete

    def next_write(self) -> tuple[list[Request], list[BytesLike], int]:
        """Take the responses of one write, small ones together or one large one: requests, parts and size in bytes.

        A response that throttles or closes the connection is the last of its write.
        """
        in_flight = self.in_flight
        sent: list[Request] = []
        parts: list[BytesLike] = []
        size = 0
        turn_at = self._turn_at
        while in_flight and size <= FLUSH_BYTES:
            request = in_flight[0]
            if not request.is_complete:
                break
            sent.append(in_flight.popleft())
            done_at = request.remote_done_at
            if done_at > turn_at:
                turn_at = done_at
            request.turn_at = turn_at
            body = request.response_parts
            if body is not None:
                parts += body
                size += request.response_size_bytes
                request.response_parts = None
            if request.throttle_time_ms or request.closes_connection:
                break
        self._turn_at = turn_at
        return sent, parts, size


def encoded_in_slices(
    request: Request, response: Message, codes: Iterable[int] | None, held: Held
) -> Generator[None, None, list[BytesLike]]:
    """Count the errors of a response and encode it."""
    api = request.api
    if codes is None:
        yield from api.count_errors_in_slices(response)
    else:
        api.metrics.count_errors(codes)
    return (yield from encode_in_slices(response, api.version, held))
