"""BrokerConnection: an outgoing asyncio connection to a broker, for controller senders, replica fetchers and tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final, cast

from klamm.client.connection_totals import ConnectionTotals
from klamm.client.exchange import MAX_RESPONSE_BYTES, Exchange, Pending
from klamm.client.patience import SINGLE_REQUEST
from klamm.client.versions import BrokerVersions, Negotiation
from klamm.errors import ErrorCode, ProtocolError
from klamm.protocol.frames import GROWTH_BYTES, Frame, FrameReader
from klamm.protocol.wire import BytesLike, Message, decode, decode_in_slices, encode
from klamm.security.client_security import PLAINTEXT, ClientSecurity
from klamm.security.sasl.client_authentication import ClientAuthentication
from klamm.security.sasl.client_mechanisms import SaslCredentials, SaslFailure
from klamm.security.sasl.mechanisms import KLAMM_PEER
from klamm.security.tls.contexts import client_context
from klamm.security.tls.handshake_errors import hide_handshake_errors

_log = logging.getLogger(__name__)
JOIN_BYTES: Final = 64 * 1024
WHOLE_BYTES: Final = 32 * 1024
"""Larger responses are decoded in slices."""
_SOFTWARE_NAME: Final = "klamm"
_SIZE_BYTES: Final = 4
"""The length before each frame."""
_REAUTHENTICATE_AT: Final = 0.85
"""The share of a session's lifetime after which the client authenticates again, as in Kafka."""


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
        first_correlation_id: int,
        totals: ConnectionTotals | None,
    ) -> None:
        self._totals = totals if totals is not None else ConnectionTotals()
        self._loop = loop
        self._request_timeout_ms = request_timeout_ms
        self._reader = FrameReader(max_response_bytes)
        self._is_resting = False
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange[_Waiting] = Exchange(client_id, first_correlation_id)
        self._error: ConnectionError | None = None
        self._versions: BrokerVersions | None = None
        self._held: list[tuple[_Waiting, list[BytesLike]]] | None = None
        """Requests that wait while the connection authenticates again; None otherwise."""
        self._session: asyncio.TimerHandle | asyncio.Task[None] | None = None
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
        first_correlation_id: int = 0,
        totals: ConnectionTotals | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> BrokerConnection:
        """Connect to a broker and authenticate.

        Raises ConnectionError if it is unreachable or refuses the credentials, TimeoutError after `timeout_ms`.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection = cls(
            loop,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            max_response_bytes=max_response_bytes,
            first_correlation_id=first_correlation_id,
            totals=totals,
        )
        try:
            # not wait_for: in Python 3.11 it loses a cancellation that arrives at the moment of success
            async with asyncio.timeout(timeout_ms / 1000):
                await connection._open(host, port, security)
        except asyncio.CancelledError:
            connection.close()
            raise
        except (OSError, SaslFailure) as error:
            connection._totals.failed_connections += 1
            connection.close()
            if isinstance(error, ConnectionError):
                raise
            raise _connection_error(error, host, port, timeout_ms) from None
        except _ProofUnknown:
            connection.close()
            return await cls.connect(
                host,
                port,
                timeout_ms=max(1, timeout_ms - int((loop.time() - began) * 1000)),
                client_id=client_id,
                request_timeout_ms=request_timeout_ms,
                max_response_bytes=max_response_bytes,
                first_correlation_id=first_correlation_id,
                totals=totals,
                security=replace(security, peer=None),
            )
        return connection

    async def _open(self, host: str, port: int, security: ClientSecurity) -> None:
        if security.tls is None:
            await self._loop.create_connection(lambda: self, host, port)
        else:
            from aiofastnet import create_connection  # slow to import, and only TLS needs it

            hide_handshake_errors(self._loop)
            context = client_context(security.tls)
            await create_connection(self._loop, lambda: self, host, port, ssl=context, server_hostname=host)
        if security.sasl is not None:
            await self._authenticate(security.sasl)
        if security.peer is not None:
            await self._authenticate(security.peer)

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    @property
    def in_flight(self) -> int:
        return len(self._exchange.pending)

    @property
    def next_correlation_id(self) -> int:
        """The correlation id of the next request, unless the connection authenticates again (see `ready`)."""
        return self._exchange.next_correlation_id

    async def ready(self) -> None:
        """Wait while the connection authenticates again: until then, `send` would hold requests back.

        Raises ConnectionError if the connection has ended.
        """
        while self._held is not None and isinstance(self._session, asyncio.Task):
            await asyncio.wait([self._session])
        if self._error is not None:
            raise ConnectionError(*self._error.args)

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
        if self._held is None:
            self._begin(waiting, body)
        else:
            self._held.append((waiting, body))
        seconds = (self._request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        waiting.timer = self._loop.call_later(seconds, self._on_timeout, waiting)
        return future

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

    # --- callbacks of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._totals.created += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._totals.closed += 1
        self._fail(ConnectionError(f"the broker closed the connection{f': {exc}' if exc else ''}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._totals.incoming_bytes += nbytes
        try:
            for frame in self._reader.buffer_updated(nbytes):
                self._on_frame(frame)
        except ProtocolError as error:
            self._fail(_not_kafka(error))
        if self._reader.large_bytes > GROWTH_BYTES and not self._is_resting and self._transport is not None:
            self._is_resting = True
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Continue to read a large response: uvloop reads a socket up to 32 times in one turn of the loop."""
        self._is_resting = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- authentication ---

    async def _authenticate(self, credentials: SaslCredentials) -> None:
        """Raises SaslFailure and the errors of `send`."""
        is_peer = credentials.mechanism == KLAMM_PEER
        authentication = ClientAuthentication(credentials)
        while (request := authentication.request) is not None:
            response = await self._send_now(request, authentication.version)
            if is_peer and not authentication.has_begun and response.error_code:
                if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
                    return
                raise _ProofUnknown
            if authentication.is_slow:
                await self._loop.run_in_executor(None, authentication.receive, response)
            else:
                authentication.receive(response)
        if authentication.session_lifetime_ms > 0 and not is_peer:
            delay_s = authentication.session_lifetime_ms * _REAUTHENTICATE_AT / 1000
            self._session = self._loop.call_later(delay_s, self._begin_again, credentials)

    def _send_now(self, request: Message, version: int) -> asyncio.Future[Any]:
        held, self._held = self._held, None
        try:
            return self.send(request, version)
        finally:
            self._held = held

    def _begin_again(self, credentials: SaslCredentials) -> None:
        """Authenticate again (KIP-368): requests in flight are answered first, later ones wait."""
        if self._error is None:
            self._held = []
            authenticating = self._authenticate_again(credentials)
            self._session = self._loop.create_task(authenticating, name="reauthentication")

    async def _authenticate_again(self, credentials: SaslCredentials) -> None:
        try:
            await self._authenticate(credentials)
        except (SaslFailure, OSError) as error:
            self._fail(ConnectionError(f"the broker refused to authenticate this client again: {error}"))
            return
        except Exception as error:
            # A bug, here or in a token provider. Callers of `ready` must not wait forever.
            _log.exception("authenticating a connection again failed")
            self._fail(ConnectionError(f"this client cannot authenticate again: {type(error).__name__}"))
            return
        held, self._held = self._held or [], None
        for waiting, body in held:
            self._begin(waiting, body)

    # --- inside ---

    def _begin(self, waiting: _Waiting, body: list[BytesLike]) -> None:
        head, size = self._exchange.begin(waiting, body)
        waiting.sent_s = self._totals.monotonic()
        self._write(head, body, size)

    def _write(self, head: bytes, body: list[BytesLike], size: int) -> None:
        assert self._transport is not None
        self._totals.requests += 1
        self._totals.outgoing_bytes += _SIZE_BYTES + size
        if size <= JOIN_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport.writelines([head, *body])

    def _on_frame(self, frame: Frame) -> None:
        waiting, response_class, version, position = self._exchange.match(frame)
        totals = self._totals
        totals.responses += 1
        totals.latencies_ms.append((totals.monotonic() - waiting.sent_s) * 1000)
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
        if self._session is not None:
            self._session.cancel()
        pending = self._exchange.pending
        self._totals.failed_requests += len(pending)
        while pending:
            pending.popleft().fail(error)
        held, self._held = self._held, None
        for waiting, _ in held or ():
            waiting.fail(error)


def _connection_error(error: OSError | SaslFailure, host: str, port: int, timeout_ms: int) -> OSError:
    if isinstance(error, TimeoutError):
        return TimeoutError(f"{host}:{port} did not answer within {timeout_ms} ms")
    if isinstance(error, SaslFailure):
        return ConnectionError(f"{host}:{port}: {error}")
    return ConnectionError(f"{host}:{port} cannot be reached: {error.strerror or error}")


class _ProofUnknown(Exception):
    """The broker does not know the proof of brokers and ends the connection: a Kafka broker whose sessions end."""


def _not_kafka(error: ProtocolError) -> ConnectionError:
    return ConnectionError(f"the broker does not speak Kafka's protocol: {error}")


class _Waiting(Pending):
    """A request whose future waits for its response."""

    __slots__ = ("future", "sent_s", "timer")

    def __init__(self, api_key: int, version: int, future: asyncio.Future[Any]) -> None:
        super().__init__(api_key, version)
        self.future = future
        self.timer: asyncio.TimerHandle | None = None
        self.sent_s = 0.0

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
