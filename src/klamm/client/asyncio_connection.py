"""BrokerConnection: an outgoing asyncio connection to a broker, for controller senders, replica fetchers and tests."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final, cast

from klamm.client.exchange import MAX_RESPONSE_BYTES, Exchange, Pending
from klamm.client.patience import SINGLE_REQUEST
from klamm.client.versions import BrokerVersions, Negotiation
from klamm.errors import ProtocolError
from klamm.protocol.frames import Frame, FrameReader
from klamm.protocol.wire import BytesLike, Message, decode, decode_in_slices, encode

JOIN_BYTES: Final = 64 * 1024
WHOLE_BYTES: Final = 32 * 1024
"""Larger responses are decoded in slices."""
_SOFTWARE_NAME: Final = "klamm"


class BrokerConnection(asyncio.BufferedProtocol):
    """Sends any number of requests at a time and matches the responses, which arrive in the order of the requests.

    Runs on the loop that it was connected on. When the connection ends, for whatever reason, all pending requests fail
    with ConnectionError. A request that times out fails with TimeoutError and closes the connection, because no later
    response could be read.
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
        self._request_timeout_ms = request_timeout_ms
        self._reader = FrameReader(max_response_bytes)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange[_Waiting] = Exchange(client_id)
        self._error: ConnectionError | None = None
        self._versions: BrokerVersions | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the connection has ended."""

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        timeout_ms: int = SINGLE_REQUEST.request_ms,
        client_id: str | None = "klamm",
        request_timeout_ms: int = SINGLE_REQUEST.request_ms,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> BrokerConnection:
        """Connect to a broker. Raises ConnectionError if it is unreachable, TimeoutError after `timeout_ms`."""
        loop = asyncio.get_running_loop()
        connection = cls(
            loop, client_id=client_id, request_timeout_ms=request_timeout_ms, max_response_bytes=max_response_bytes
        )
        try:
            # not wait_for: in Python 3.11 it loses a cancellation that arrives at the moment of success
            async with asyncio.timeout(timeout_ms / 1000):
                await loop.create_connection(lambda: connection, host, port)
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
        return len(self._exchange.pending)

    def send(self, request: Message, version: int, *, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        """Send a request and return a future of its response. More requests may be sent before it is awaited."""
        return self.send_encoded(request.KEY, version, encode(request, version), timeout_ms=timeout_ms)

    def send_encoded(
        self, api_key: int, version: int, body: list[BytesLike], *, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Send an encoded body, for instance one that was encoded once for many brokers. Otherwise like `send`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._error is not None:
            future.set_exception(ConnectionError(*self._error.args))
            return future
        waiting = _Waiting(api_key, version, future)
        head, size = self._exchange.begin(waiting, body)
        self._write(head, body, size)
        seconds = (self._request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        waiting.timer = self._loop.call_later(seconds, self._on_timeout, waiting)
        return future

    def send_without_response(self, request: Message, version: int) -> None:
        """Send a request that the broker never answers: Produce with acks=0."""
        if self._error is not None:
            raise ConnectionError(*self._error.args)
        body = encode(request, version)
        head, size = self._exchange.begin_unanswered(request.KEY, version, body)
        self._write(head, body, size)

    async def api_versions(self) -> BrokerVersions:
        """Return the versions that the broker serves. Requested once per connection."""
        if self._versions is None:
            negotiation = Negotiation(_SOFTWARE_NAME)
            while negotiation.result is None:
                negotiation.receive(await self.send(negotiation.request, negotiation.version))
            self._versions = negotiation.result
        return self._versions

    async def highest_version(self, request: type[Message], limit: int | None = None) -> int:
        """Return the highest version, up to `limit`, that both sides have. Raises ConnectionError if there is none."""
        return (await self.api_versions()).highest(request, limit)

    def close(self) -> None:
        """Close the connection now; pending requests fail."""
        self._fail(ConnectionError("the connection was closed"))

    async def wait_closed(self) -> None:
        self.close()
        await self.closed

    # --- callbacks of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(f"the broker closed the connection{f': {exc}' if exc else ''}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.buffer_updated(nbytes):
                self._on_frame(frame)
        except ProtocolError as error:
            self._fail(_not_kafka(error))

    # --- inside ---

    def _write(self, head: bytes, body: list[BytesLike], size: int) -> None:
        assert self._transport is not None
        if size <= JOIN_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport.writelines([head, *body])

    def _on_frame(self, frame: Frame) -> None:
        waiting, response_class, version, position = self._exchange.match(frame)
        if len(frame) > WHOLE_BYTES:
            waiting.stop_timer()
            self._decode_on(waiting, decode_in_slices(response_class, version, frame, position))
            return
        try:
            response, _ = decode(response_class, version, frame, position)
        except ProtocolError as error:
            waiting.fail(_not_kafka(error))
            raise
        waiting.settle(response)

    def _decode_on(self, waiting: _Waiting, steps: Generator[None, None, tuple[Message, int]]) -> None:
        """Decode one part of a large response; the loop serves others before the next part."""
        try:
            next(steps)
        except StopIteration as done:
            waiting.settle(done.value[0])
        except ProtocolError as error:
            waiting.fail(_not_kafka(error))
            self._fail(_not_kafka(error))
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
        if self._transport is not None:
            self._transport.abort()
        pending = self._exchange.pending
        while pending:
            pending.popleft().fail(error)


def _not_kafka(error: ProtocolError) -> ConnectionError:
    return ConnectionError(f"the broker does not speak Kafka's protocol: {error}")


class _Waiting(Pending):
    """A request whose future waits for its response."""

    __slots__ = ("future", "timer")

    def __init__(self, api_key: int, version: int, future: asyncio.Future[Any]) -> None:
        super().__init__(api_key, version)
        self.future = future
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
