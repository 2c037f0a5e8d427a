"""The protocol side of one connection, without I/O: frames requests and matches responses to them, in order.

A shell sends the bytes that `begin` returns and passes each received frame to `match`. Both shells share it.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import cache
from struct import Struct
from typing import Final, Generic, TypeVar

from klamm.errors import ProtocolError
from klamm.protocol.frames import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages import request_class
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.wire import BytesLike, Message, Received

MAX_RESPONSE_BYTES: Final = 2**31 - 1
_MAX_CORRELATION_ID: Final = 2**31 - 1
_HEAD = Struct(">ihhi")
_HEADER_BYTES: Final = 8
"""Key, version and correlation id; the rest of a request header is the same for all requests of one version."""
_API_VERSIONS: Final = ApiVersionsRequest.KEY
_UNSUPPORTED_VERSION: Final = b"\x00\x23"


class Pending:
    """A request without a response."""

    __slots__ = ("api_key", "correlation_id", "version")

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = -1


P = TypeVar("P", bound=Pending)


class Exchange(Generic[P]):
    """The requests of one connection, oldest first. A broker answers them in their order."""

    def __init__(self, client_id: str | None, first_correlation_id: int = 0) -> None:
        self._client_id = client_id
        self.next_correlation_id = first_correlation_id & _MAX_CORRELATION_ID
        self._tails: dict[tuple[int, int], bytes] = {}
        self.pending: deque[P] = deque()

    def begin(self, pending: P, body: list[BytesLike]) -> tuple[bytes, int]:
        """Register a request and return what precedes its body, with the size of the frame."""
        pending.correlation_id = correlation_id = self.next_correlation_id
        self.pending.append(pending)
        return self._head(pending.api_key, pending.version, correlation_id, body)

    def match(self, frame: Received) -> tuple[P, type[Message], int, int]:
        """Remove the request that the frame answers; return it with the class, version and position of the response.

        Raises ProtocolError if the frame is not the next response.
        """
        if not self.pending:
            raise ProtocolError("a response arrived without a request")
        pending = self.pending[0]
        api_key, version = pending.api_key, pending.version
        correlation_id, position = decode_response_header(api_key, version, frame)
        if correlation_id != pending.correlation_id:
            raise ProtocolError(f"response {correlation_id} arrived, expected {pending.correlation_id}")
        if api_key == _API_VERSIONS and frame[position : position + 2] == _UNSUPPORTED_VERSION:
            version = 0  # a broker answers an ApiVersions of an unknown version in version 0
        self.pending.popleft()
        return pending, response_class(api_key), version, position

    def _head(self, api_key: int, version: int, correlation_id: int, body: list[BytesLike]) -> tuple[bytes, int]:
        self.next_correlation_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        tail = self._tails.get((api_key, version))
        if tail is None:
            header = encode_request_header(RequestHeader(api_key, version, 0, self._client_id))
            tail = self._tails[api_key, version] = header[_HEADER_BYTES:]
        size = _HEADER_BYTES + len(tail) + sum(map(len, body))
        return _HEAD.pack(size, api_key, version, correlation_id) + tail, size


@cache
def response_class(api_key: int) -> type[Message]:
    """Return the response class of an API: it is defined in the same module as its request."""
    request = request_class(api_key)
    name = request.__name__.removesuffix("Request") + "Response"
    response: type[Message] = getattr(sys.modules[request.__module__], name)
    return response
