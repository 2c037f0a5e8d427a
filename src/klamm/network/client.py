"""BrokerConnection: an outgoing connection to a broker, for controller senders, replica fetchers and tests."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Generator
from functools import cache
from struct import Struct
from typing import Any, Final, cast

from klamm.errors import ProtocolError
from klamm.protocol.frames import (
    Frame,
    FrameReader,
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from klamm.protocol.messages import request_class
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.wire import BytesLike, Message, decode, decode_in_slices, encode

MAX_RESPONSE_BYTES: Final = 2**31 - 1
JOIN_BYTES: Final = 64 * 1024
WHOLE_BYTES: Final = 32 * 1024
"""Larger responses are decoded in slices."""
_SIZE = Struct(">i")
_MAX_CORRELATION_ID: Final = 2**31 - 1


class BrokerConnection:
    """Sends requests, any number at a time, and matches the responses, which come in the order of the requests.

    Runs on the loop it was connected on. When the connection ends, for whatever reason, everything that waits fails
    with ConnectionError. A request that is not answered in its time fails with TimeoutError and ends the connection,
    since nothing that comes after it could be read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        client_id: str | None,
        request_timeout_ms: int,
        max_response_bytes: int,
    ) -> None:
        self._loop = loop
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._wire = _Wire(self, max_response_bytes)
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._error: ConnectionError | None = None
        self._api_versions: dict[int, tuple[int, int]] | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the connection has ended."""

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        timeout_ms: int = 30_000,
        client_id: str | None = "klamm",
        request_timeout_ms: int = 30_000,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> BrokerConnection:
        """Raises ConnectionError when the broker cannot be reached, TimeoutError when it takes too long."""
        loop = asyncio.get_running_loop()
        connection = cls(
            loop, client_id=client_id, request_timeout_ms=request_timeout_ms, max_response_bytes=max_response_bytes
        )
        try:
            # not wait_for: in Python 3.11 it forgets a cancellation that comes in the moment of success
            async with asyncio.timeout(timeout_ms / 1000):
                await loop.create_connection(lambda: connection._wire, host, port)
        except asyncio.CancelledError:
            connection.close()
            raise
        except TimeoutError:
            raise TimeoutError(f"{host}:{port} did not answer within {timeout_ms} ms") from None
        except ConnectionError:
            raise
        except OSError as error:
            raise ConnectionError(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
        return connection

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def send(self, request: Message, version: int, *, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        """Sends a request; the future gives its response. Await it at once, or send more before."""
        return self.send_encoded(request.KEY, version, encode(request, version), timeout_ms=timeout_ms)

    def send_encoded(
        self, api_key: int, version: int, body: list[BytesLike], *, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Like `send`, with a body that was encoded before, for instance once for many brokers."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._error is not None:
            future.set_exception(ConnectionError(*self._error.args))
            return future
        correlation_id = self._write(api_key, version, body)
        seconds = (self._request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        waiting = _Waiting(future, api_key, version, correlation_id)
        waiting.timer = self._loop.call_later(seconds, self._on_timeout, waiting)
        self._waiting.append(waiting)
        return future

    def send_without_response(self, request: Message, version: int) -> None:
        """For a request that is never answered: Produce with acks=0."""
        if self._error is not None:
            raise ConnectionError(*self._error.args)
        self._write(request.KEY, version, encode(request, version))

    async def api_versions(self) -> dict[int, tuple[int, int]]:
        """What the broker serves: (lowest, highest) version by API key. Asked once a connection."""
        if self._api_versions is None:
            request = ApiVersionsRequest(client_software_name="klamm", client_software_version="0")
            response: ApiVersionsResponse = await self.send(request, 3)
            self._api_versions = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
        return self._api_versions

    async def highest_version(self, request: type[Message]) -> int:
        """The highest version of an API that both sides have. Raises ConnectionError when there is none."""
        low, high = (await self.api_versions()).get(request.KEY, (0, -1))
        version = min(high, request.VERSIONS[-1])
        if version < max(low, request.VERSIONS[0]):
            raise ConnectionError(f"the broker serves {request.__name__} in versions {low} to {high} only")
        return version

    def close(self) -> None:
        """Ends the connection now; what waits fails."""
        self._fail(ConnectionError("the connection was closed"))

    async def wait_closed(self) -> None:
        self.close()
        await self.closed

    def _write(self, api_key: int, version: int, body: list[BytesLike]) -> int:
        correlation_id = self._correlation_id
        self._correlation_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        header = encode_request_header(RequestHeader(api_key, version, correlation_id, self._client_id))
        size = len(header) + sum(map(len, body))
        self._wire.write([_SIZE.pack(size) + header, *body], size)
        return correlation_id

    def _on_frame(self, frame: Frame) -> None:
        if not self._waiting:
            raise ProtocolError("a response came that nobody asked for")
        waiting = self._waiting[0]
        correlation_id, pos = decode_response_header(waiting.api_key, waiting.version, frame)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(f"response {correlation_id} came where {waiting.correlation_id} was expected")
        version = waiting.version
        if waiting.api_key == ApiVersionsRequest.KEY and frame[pos : pos + 2] == b"\x00\x23":
            version = 0  # an ApiVersions of a version the broker does not know is answered in v0
        cls = _response_class(waiting.api_key)
        if len(frame) <= WHOLE_BYTES:
            response, _ = decode(cls, version, frame, pos)
            self._waiting.popleft()
            waiting.settle(response)
        else:
            self._waiting.popleft()
            waiting.stop_timer()
            self._decode_on(waiting, decode_in_slices(cls, version, frame, pos))

    def _decode_on(self, waiting: _Waiting, steps: Generator[None, None, tuple[Message, int]]) -> None:
        """Decodes a part of a large response; the loop serves others before the next part."""
        try:
            next(steps)
        except StopIteration as done:
            waiting.settle(done.value[0])
        except ProtocolError as error:
            failure = ConnectionError(f"the broker does not speak the protocol: {error}")
            waiting.fail(failure)
            self._fail(failure)
        else:
            self._loop.call_soon(self._decode_on, waiting, steps)

    def _on_timeout(self, waiting: _Waiting) -> None:
        if not waiting.future.done():
            waiting.future.set_exception(TimeoutError("the broker did not answer in time"))
        self._fail(ConnectionError("the connection was closed: an earlier request was not answered in time"))

    def _fail(self, error: ConnectionError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._wire.abort()
        while self._waiting:
            self._waiting.popleft().fail(error)

    def _on_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionError(f"the broker closed the connection{f': {error}' if error else ''}"))
        if not self.closed.done():
            self.closed.set_result(None)


@cache
def _response_class(api_key: int) -> type[Message]:
    """The response class of one API: it stands beside its request."""
    request = request_class(api_key)
    name = request.__name__.removesuffix("Request") + "Response"
    response: type[Message] = getattr(sys.modules[request.__module__], name)
    return response


class _Waiting:
    """A request without its response yet."""

    __slots__ = ("api_key", "correlation_id", "future", "timer", "version")

    def __init__(self, future: asyncio.Future[Any], api_key: int, version: int, correlation_id: int) -> None:
        self.future = future
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def settle(self, response: Message) -> None:
        self.stop_timer()
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: ConnectionError) -> None:
        self.stop_timer()
        if not self.future.done():
            self.future.set_exception(ConnectionError(*error.args))


class _Wire(asyncio.BufferedProtocol):
    """The bytes of a BrokerConnection."""

    def __init__(self, owner: BrokerConnection, max_response_bytes: int) -> None:
        self._owner = owner
        self._reader = FrameReader(max_response_bytes)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner._on_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.buffer_updated(nbytes):
                self._owner._on_frame(frame)
        except ProtocolError as error:
            self._owner._fail(ConnectionError(f"the broker does not speak the protocol: {error}"))

    def write(self, parts: list[BytesLike], size: int) -> None:
        assert self._transport is not None
        if size <= JOIN_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
