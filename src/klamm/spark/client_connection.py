"""One blocking connection to one broker: requests of our protocol package over a plain socket."""

from __future__ import annotations

import contextlib
import socket
import sys
from functools import cache
from struct import Struct
from typing import Any, Final, TypeVar, cast

from klamm.errors import ErrorCode, ProtocolError
from klamm.protocol.frames import RequestHeader, decode_response_header, encode_request_frame
from klamm.protocol.messages import request_class
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.wire import Message, decode

M = TypeVar("M", bound=Message)

_SIZE = Struct(">i")
_MAX_CORRELATION_ID: Final = 2**31 - 1
_MAX_RESPONSE_BYTES: Final = 2**31 - 1
_FIRST_BYTES: Final = 16 * 1024 * 1024
"""The most that is reserved on the word of the peer; more only when the bytes have come."""


class Room:
    """Memory for one answer after the other, as large as the largest was: fresh memory costs more than to read into it.

    What was read lasts until the room is used again.
    """

    def __init__(self) -> None:
        self._memory = bytearray()

    def take(self, size: int) -> bytearray:
        """At least that much."""
        if size > len(self._memory):
            self._memory = bytearray(size + size // 8)
        return self._memory


class BrokerSocket:
    """Sends requests and reads the answers in their order. Every failure is an OSError and ends the connection."""

    def __init__(
        self, host: str, port: int, *, client_id: str, timeout_ms: int, receive_buffer_bytes: int | None = None
    ) -> None:
        self.address = (host, port)
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._correlation_id = 0
        self._sent: list[tuple[int, int, int]] = []
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = socket.create_connection((host, port), self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            self._negotiate()
        except BaseException:
            self.close()
            raise

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def version(self, request: type[Message], highest: int | None = None) -> int:
        """The highest version that both sides have. ConnectionError when there is none."""
        low, high = self._versions.get(request.KEY, (0, -1))
        version = min(high, request.VERSIONS[-1], request.VERSIONS[-1] if highest is None else highest)
        if version < max(low, request.VERSIONS[0]):
            host, port = self.address
            raise ConnectionError(
                f"the broker at {host}:{port} serves {request.__name__} in versions {low}-{high} only"
            )
        return version

    def ask(self, request: Message, answer: type[M], *, highest: int | None = None, extra_ms: int = 0) -> M:
        """Sends a request and waits for its answer; `extra_ms` is time that the broker may take by its own right."""
        self.send(request, self.version(type(request), highest))
        return cast(M, self.receive(extra_ms=extra_ms))

    def send(self, request: Message, version: int) -> None:
        correlation_id = self._correlation_id
        self._correlation_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        header = RequestHeader(request.KEY, version, correlation_id, self._client_id)
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(b"".join(encode_request_frame(header, request)))
        except BaseException:
            self.close()
            raise
        self._sent.append((request.KEY, version, correlation_id))

    def receive(self, *, extra_ms: int = 0, room: Room | None = None) -> Message:
        """The answer to the oldest request without one."""
        key, version, expected = self._sent[0]
        try:
            self._socket.settimeout(self._timeout_s + extra_ms / 1000)
            frame, size = self._read_frame(room)
            correlation_id, position = decode_response_header(key, version, frame)
            if correlation_id != expected:
                raise ConnectionError(f"answer {correlation_id} came where {expected} was expected")
            if key == ApiVersionsRequest.KEY and frame[position : position + 2] == b"\x00\x23":
                version = 0  # an ApiVersions of a version that the broker does not know is answered in v0
            response, end = decode(_response_class(key), version, frame, position)
            if end > size:
                raise ProtocolError(f"an answer of {size} bytes ends after {end}")
        except ProtocolError as e:
            self.close()
            raise ConnectionError(f"the broker does not speak the protocol: {e}") from e
        except BaseException:
            self.close()
            raise
        self._sent.pop(0)
        return cast(Message, response)

    def _negotiate(self) -> None:
        self.send(ApiVersionsRequest(client_software_name="klamm-spark", client_software_version="0"), 3)
        answer = cast(ApiVersionsResponse, self.receive())
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and not answer.api_keys:
            self.send(ApiVersionsRequest(), 0)
            answer = cast(ApiVersionsResponse, self.receive())
        self._versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}

    def _read_frame(self, room: Room | None) -> tuple[bytearray, int]:
        """(what holds the frame from its beginning, the frame's size)."""
        head = bytearray(4)
        self._read_into(memoryview(head))
        (size,) = _SIZE.unpack(head)
        if not 0 <= size <= _MAX_RESPONSE_BYTES:
            raise ConnectionError(f"a response announces {size} bytes")
        if room is not None and size <= _FIRST_BYTES:
            memory = room.take(size)
            with memoryview(memory) as view:
                self._read_into(view[:size])
            return memory, size
        frame = bytearray(min(size, _FIRST_BYTES))
        filled = 0
        while True:
            with memoryview(frame) as view:
                self._read_into(view[filled:])
            filled = len(frame)
            if filled == size:
                return frame, size
            frame.extend(bytes(min(size - filled, 3 * filled)))

    def _read_into(self, room: memoryview) -> None:
        while room:
            count = self._socket.recv_into(room)
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            room = room[count:]


@cache
def _response_class(api_key: int) -> type[Any]:
    """The response class of one API: it stands beside its request."""
    request = request_class(api_key)
    name = request.__name__.removesuffix("Request") + "Response"
    found: type[Any] = getattr(sys.modules[request.__module__], name)
    return found
