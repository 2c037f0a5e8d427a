"""BlockingConnection: a connection to one broker over a socket, for Spark, the CLI and LocalCluster."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeVar, cast

from klamm.client.client_errors import AuthenticationError
from klamm.client.exchange import MAX_RESPONSE_BYTES, Exchange, Pending
from klamm.client.patience import SINGLE_REQUEST, Deadline, single_request
from klamm.client.versions import BrokerVersions, Negotiation
from klamm.clock import SystemClock
from klamm.errors import KlammError, ProtocolError
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.wire import Message, decode, encode
from klamm.security.client_security import PLAINTEXT, ClientSecurity
from klamm.security.sasl.client_authentication import ClientAuthentication
from klamm.security.sasl.client_mechanisms import SaslFailure
from klamm.security.tls.contexts import client_context

M = TypeVar("M", bound=Message)
Address = tuple[str, int]

_SIZE = Struct(">i")
_FIRST_BYTES: Final = 16 * 1024 * 1024
"""Maximum memory reserved because the peer announced a size; more is reserved only after these bytes arrived."""
BROKER_CLOSED: Final = "the broker closed the connection"
LINE_ENDS: Final = int.from_bytes(b"\r\n\r\n")
"""The first correlation id for an address that may belong to another program: servers that read lines, as HTTP servers
do, wait for the end of a line, and answer at once if a request has one."""
_REAUTHENTICATE_AT: Final = 0.85
"""The share of a session's lifetime after which the client authenticates again, as in Kafka."""


class NotKafkaError(ConnectionError):
    """The peer does not speak Kafka's protocol."""


class ForeignAnswerError(ProtocolError):
    """The first bytes of an answer are those of another protocol."""

    def __init__(self, begin: bytes) -> None:
        super().__init__(f"its answer begins with {begin.decode('latin-1')!r}")
        self.begin = begin


class ReceiveBuffer:
    """Memory for one response after another, as large as the largest of them: fresh memory costs more than reading.

    A response that was read into the buffer is valid until the buffer is used again.
    """

    def __init__(self) -> None:
        self._memory = bytearray()

    def of_size(self, size: int) -> bytearray:
        """Return at least `size` bytes."""
        if size > len(self._memory):
            self._memory = bytearray(size + size // 8)
        return self._memory


class BlockingConnection:
    """Sends requests and reads the responses in their order. Every failure is an OSError and closes the connection."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        timeout_ms: float = SINGLE_REQUEST.request_ms,
        receive_buffer_bytes: int | None = None,
        security: ClientSecurity = PLAINTEXT,
        first_correlation_id: int = 0,
    ) -> None:
        """Connect and authenticate. `timeout_ms` bounds the connection attempt and each response; it can be set later.

        Raises AuthenticationError if the broker refuses the credentials or its certificate is not trusted.
        """
        self.address = address
        self.timeout_ms = timeout_ms
        self._exchange: Exchange[Pending] = Exchange(client_id, first_correlation_id)
        self._versions: BrokerVersions | None = None
        self._socket = socket.create_connection(address, timeout_ms / 1000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._security = security
        self._authenticate_at: float | None = None
        if security.tls is not None:
            self._start_tls(client_context(security.tls))
        self._authenticate()

    def _start_tls(self, context: ssl.SSLContext) -> None:
        host, port = self.address
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise AuthenticationError(
                f"The certificate of {host}:{port} is not trusted: {error.verify_message}"
            ) from None
        except BaseException:
            self.close()
            raise

    def _authenticate(self) -> None:
        credentials = self._security.sasl
        if credentials is None:
            return
        self._authenticate_at = None
        authentication = ClientAuthentication(credentials)
        try:
            while (request := authentication.request) is not None:
                self.send(request, authentication.version)
                authentication.receive(self.receive())
        except SaslFailure as error:
            self.close()
            raise AuthenticationError(f"{self.address[0]}:{self.address[1]}: {error}") from None
        if authentication.session_lifetime_ms > 0:
            seconds = authentication.session_lifetime_ms * _REAUTHENTICATE_AT / 1000
            self._authenticate_at = time.monotonic() + seconds

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def in_flight(self) -> int:
        return len(self._exchange.pending)

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def negotiate(self, software_name: str) -> None:
        """Ask the broker for its versions. `version` needs them."""
        negotiation = Negotiation(software_name)
        try:
            while negotiation.result is None:
                response = self.ask(negotiation.request, ApiVersionsResponse, negotiation.version)
                negotiation.receive(response)
        except BaseException:
            self.close()
            raise
        self._versions = negotiation.result

    def version(self, request: type[Message], limit: int | None = None) -> int:
        """Return the highest version, up to `limit`, that both sides have. Raises ConnectionError if there is none."""
        assert self._versions is not None, "negotiate() has not been called"
        return self._versions.highest(request, limit)

    def ask(self, request: Message, response: type[M], version: int | None = None) -> M:
        """Send a request and return its response, by default in the highest version that both sides have."""
        self.send(request, self.version(type(request)) if version is None else version)
        return cast(M, self.receive())

    def send(self, request: Message, version: int) -> None:
        if self._authenticate_at is not None and not self.in_flight and time.monotonic() >= self._authenticate_at:
            self._authenticate()
        body = encode(request, version)
        head, _ = self._exchange.begin(Pending(request.KEY, version), body)
        try:
            self._socket.settimeout(self.timeout_ms / 1000)
            self._socket.sendall(b"".join((head, *body)))
        except BaseException:
            self.close()
            raise

    def receive(self, *, extra_ms: int = 0, buffer: ReceiveBuffer | None = None) -> Message:
        """Return the response to the oldest pending request.

        `extra_ms` is time that the request allows the broker to wait. With `buffer` the response is read into it.
        """
        try:
            self._socket.settimeout((self.timeout_ms + extra_ms) / 1000)
            frame, size = self._read_frame(buffer)
            _, response_class, version, position = self._exchange.match(frame)
            response, end = decode(response_class, version, frame, position)
            if end > size:
                raise ProtocolError(f"a response of {size} bytes ends after {end}")
        except ProtocolError as error:
            self.close()
            host, port = self.address
            raise NotKafkaError(f"{host}:{port} does not speak Kafka's protocol: {error}") from error
        except BaseException:
            self.close()
            raise
        return response

    def _read_frame(self, buffer: ReceiveBuffer | None) -> tuple[bytearray, int]:
        """Return memory that begins with the frame, and the frame's size."""
        head = bytearray(4)
        self._read_into(memoryview(head))
        (size,) = _SIZE.unpack(head)
        if not 0 <= size <= MAX_RESPONSE_BYTES:
            raise ProtocolError(f"a response announces {size} bytes")
        if buffer is not None and size <= _FIRST_BYTES:
            memory = buffer.of_size(size)
            with memoryview(memory) as view:
                self._read_into(view[:size])
            return memory, size
        if size > _FIRST_BYTES:
            return self._read_large_frame(head, size), size
        frame = bytearray(size)
        with memoryview(frame) as view:
            self._read_into(view)
        return frame, size

    def _read_large_frame(self, head: bytearray, size: int) -> bytearray:
        """Text in the place of a size announces hundreds of megabytes, so the correlation id is checked first."""
        frame = bytearray(_FIRST_BYTES)
        with memoryview(frame) as view:
            self._read_into(view[:4])
        if _SIZE.unpack_from(frame)[0] != self._exchange.pending[0].correlation_id:
            raise ForeignAnswerError(bytes(head + frame[:4]))
        filled = 4
        while True:
            with memoryview(frame) as view:
                self._read_into(view[filled:])
            filled = len(frame)
            if filled == size:
                return frame
            frame.extend(bytes(min(size - filled, 3 * filled)))

    def _read_into(self, room: memoryview) -> None:
        while room:
            count = self._socket.recv_into(room)
            if count == 0:
                raise ConnectionResetError(BROKER_CLOSED)
            room = room[count:]


@contextlib.contextmanager
def connected(
    address: Address,
    timeout_s: float,
    *,
    client_id: str = "klamm",
    security: ClientSecurity = PLAINTEXT,
    first_correlation_id: int = 0,
) -> Iterator[BlockingConnection]:
    """Connect for several requests.

    Raises OSError if the broker is unreachable or does not answer in time, and KlammError if the peer does not speak
    Kafka's protocol or refuses the credentials.
    """
    with BlockingConnection(
        address,
        client_id=client_id,
        timeout_ms=timeout_s * 1000,
        security=security,
        first_correlation_id=first_correlation_id,
    ) as connection:
        try:
            yield connection
        except NotKafkaError as error:
            raise KlammError(f"{error}.") from error


def ask_once(
    address: Address,
    request: Message,
    version: int,
    response: type[M],
    timeout_s: float,
    *,
    client_id: str = "klamm",
    security: ClientSecurity = PLAINTEXT,
    first_correlation_id: int = 0,
) -> M:
    """Send one request over a new connection and return the response. Raises the errors of `connected`.

    The response gets the part of `timeout_s` that the connection leaves.
    """
    deadline = Deadline(single_request(timeout_s), SystemClock())
    with connected(
        address, timeout_s, client_id=client_id, security=security, first_correlation_id=first_correlation_id
    ) as connection:
        if deadline.has_passed:  # A request that is sent now could take effect although its sender reports a failure.
            raise TimeoutError(f"{address[0]}:{address[1]} accepted the connection too late for a request")
        connection.timeout_ms = deadline.request_ms
        return connection.ask(request, response, version)
