"""`/metrics`, `/traces`, `/healthz` and `/readyz` over a minimal HTTP/1.1: one answer per connection, bounded input."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import parse_qs

from klamm.errors import ConfigError
from klamm.metrics.exposition import CONTENT_TYPE
from klamm.metrics.http_places import MAX_CONNECTIONS, Places
from klamm.metrics.registry import MetricsRegistry
from klamm.sockets.accept_loop import AcceptLoop
from klamm.sockets.listening import bind_sockets

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 10.0
"""Limit for the TLS handshake and the arrival of the request together, for the turn and the check of its login, and for
the client to read the answer."""
_BACKLOG: Final = 64

_CHALLENGE: Final = 'WWW-Authenticate: Basic realm="klamm"\r\n'

_log = logging.getLogger(__name__)
Traces = Callable[[], Iterable[bytes]]
"""Returns JSON objects, one per line, in pieces that take at most a few milliseconds each."""
Opened = tuple[asyncio.Transport, asyncio.BaseProtocol]


class Logins(Protocol):
    """How failed logins are delayed, counted and logged. Other layers have the rules."""

    @property
    def failure_delay_s(self) -> float: ...

    def turn_wait_s(self, address: str) -> float:
        """Return how long a login of this address waits before its password is checked."""

    def on_failure(self, address: str) -> None: ...

    def on_refused(self, address: str, reason: str) -> None: ...


class MetricsServer:
    """Serves a registry on the loop it was started on. A scrape yields to other work after every metric name.

    `login` is the `user:password` that a request must have (RFC 7617). `logins` decides what a wrong one costs.
    """

    def __init__(
        self,
        registry: MetricsRegistry,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        login: str | None = None,
        logins: Logins | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.not_ready: str | None = "The broker is starting."
        """Why the broker does not serve clients; None if it does. `/readyz` reports it."""
        self.traces: Traces | None = None
        """The last traced requests; None if they are not served here."""
        self.registry = registry
        self.credential = None if login is None else base64.b64encode(login.encode())
        self.logins = logins
        self.places = Places(max_connections)
        self._tls = tls
        self._host = host
        self._port = port
        self._accepting: AcceptLoop | None = None
        self._opening: dict[asyncio.Task[Opened], None] = {}

    @property
    def port(self) -> int:
        """The bound port, known after `start` even if port 0 was requested."""
        return self._port

    async def start(self) -> None:
        """Start to listen. Raises ConfigError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        accepting = self._accepting = AcceptLoop(loop, self._open, listener="of the metrics endpoint")
        try:
            for sock in await bind_sockets(loop, self._host, self._port, {}):
                self._port = sock.getsockname()[1]
                accepting.listen(sock, _BACKLOG)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
            raise ConfigError(
                f"the metrics endpoint cannot be bound to {where}: {reason}; see klamm.metrics.port"
            ) from error

    async def stop(self) -> None:
        if self._accepting is not None:
            self._accepting.close()
            self._accepting = None
        opening = list(self._opening)
        for connection in self.places.connections:
            connection.abort()
        await asyncio.gather(*opening, return_exceptions=True)

    def _open(self, sock: socket.socket) -> None:
        """Give an accepted socket a connection, if there is a place."""
        try:
            address = str(sock.getpeername()[0])
        except OSError:  # The client has left.
            sock.close()
            return
        loop = asyncio.get_running_loop()
        connection = HttpConnection(loop, self, address)
        if not self.places.take(connection):
            connection.end()
            sock.close()
            if self.logins is not None:
                self.logins.on_refused(address, "too many requests are being answered")
            return
        connecting = loop.connect_accepted_socket(lambda: connection, sock, ssl=self._tls)
        opening = connection.opening = loop.create_task(connecting, name="metrics-accept")
        self._opening[opening] = None
        opening.add_done_callback(partial(self._on_opened, connection, sock))

    def _on_opened(self, connection: HttpConnection, sock: socket.socket, opening: asyncio.Task[Opened]) -> None:
        """Close a connection without a transport: its TLS handshake failed, or took too long."""
        del self._opening[opening]
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            connection.end()
            sock.close()
        if error is not None and not isinstance(error, OSError):
            _log.error("The metrics endpoint cannot open a connection", exc_info=error)


class HttpConnection(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: MetricsServer, address: str = "") -> None:
        self.address = address
        self.is_admitted = False
        self.opening: asyncio.Task[Opened] | None = None
        self._loop = loop
        self._server = server
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._restart_timer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def end(self) -> None:
        self._server.places.leave(self)
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()
        if self._answer is not None:
            self._answer.cancel()

    def _restart_timer(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(REQUEST_TIMEOUT_S, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._answer is not None:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 and len(self._received) <= MAX_REQUEST_BYTES:
            return
        if end < 0 or end > MAX_REQUEST_BYTES:
            self._respond("431 Request Header Fields Too Large", "The request is too large.\n")
            return
        self._restart_timer()  # The turn of a login comes within this time, however late its request has arrived.
        self._answer = self._loop.create_task(self._serve(bytes(self._received[:end])), name="metrics-http")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    async def _serve(self, head: bytes) -> None:
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path, _, query = rest.split(b" ", 1)[0].partition(b"?")
        if path in (b"/healthz", b"/readyz") and method in (b"GET", b"HEAD"):
            self._answer_probe(path)
        elif not await self._is_allowed(head):
            self._respond("401 Unauthorized", "A user and a password are required.\n", _CHALLENGE)
        elif path not in (b"/metrics", b"/traces", b"/healthz", b"/readyz"):
            self._respond("404 Not Found", "See /metrics, /traces, /healthz and /readyz.\n")
        elif method not in (b"GET", b"HEAD"):
            self._respond("405 Method Not Allowed", f"GET {path.decode()}\n")
        elif path == b"/traces":
            await self._list_traces(with_body=method == b"GET")
        else:
            await self._scrape(_chosen(query), with_body=method == b"GET")

    def _answer_probe(self, path: bytes) -> None:
        """Supervisors send no password; the answer reveals only the state."""
        reason = self._server.not_ready if path == b"/readyz" else None
        self._respond("503 Service Unavailable" if reason else "200 OK", f"{reason or 'ok'}\n")

    async def _is_allowed(self, head: bytes) -> bool:
        """Check the password. A wrong one costs time, and other attempts of its address wait for their turn."""
        expected, logins = self._server.credential, self._server.logins
        given = None if expected is None else _credential_of(head)
        if expected is not None and given is None:
            return False
        if expected is not None and given is not None:
            if logins is not None and (wait_s := logins.turn_wait_s(self.address)) > 0:
                await asyncio.sleep(wait_s)
            if not hmac.compare_digest(given, expected):
                if logins is not None:
                    logins.on_failure(self.address)
                    await asyncio.sleep(logins.failure_delay_s)
                return False
        self.is_admitted = True
        return True

    async def _scrape(self, names: frozenset[str] | None, *, with_body: bool) -> None:
        self._stop_timer()  # a busy broker with very many partitions takes long
        pieces = []
        try:
            for text in self._server.registry.families(names):
                pieces.append(text.encode())
                await asyncio.sleep(0)
        except Exception:
            _log.exception("A metric could not be read")
            self._respond("500 Internal Server Error", "A metric could not be read; the broker's log has the cause.\n")
            return
        await self._send(pieces, with_body=with_body)

    async def _list_traces(self, *, with_body: bool) -> None:
        traces = self._server.traces
        if traces is None:
            self._respond("403 Forbidden", "This broker has an authorizer: read the topic __klamm_request_log.\n")
            return
        pieces = []
        for piece in traces():
            pieces.append(piece)
            await asyncio.sleep(0)
        await self._send(pieces, with_body=with_body)

    async def _send(self, pieces: list[bytes], *, with_body: bool) -> None:
        """Write the pieces and remove them from the list one by one: freeing them together would block the loop."""
        self._stop_timer()
        self._write_head("200 OK", sum(map(len, pieces)))
        left_s = REQUEST_TIMEOUT_S
        pieces.reverse()
        while pieces and with_body:
            if not self._writable.is_set():  # the limit applies only to the client's time
                began_s = self._loop.time()
                try:
                    async with asyncio.timeout(left_s):
                        await self._writable.wait()
                except TimeoutError:
                    self.abort()
                    return
                left_s -= self._loop.time() - began_s
            self._write(pieces.pop())
            await asyncio.sleep(0)
        self._restart_timer()
        self._close()

    def _respond(self, status: str, text: str, header: str = "") -> None:
        body = text.encode()
        self._write_head(status, len(body), header)
        self._write(body)
        self._close()

    def _write_head(self, status: str, size_bytes: int, header: str = "") -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {size_bytes}\r\n"
            f"{header}Connection: close\r\n\r\n"
        )
        self._write(head.encode())

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _credential_of(head: bytes) -> bytes | None:
    """Return the user and the password of a request, as base64; None if it has none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        scheme, _, credential = value.strip().partition(b" ")
        if name.strip().lower() == b"authorization" and scheme.lower() == b"basic":
            return credential.strip()
    return None


def _chosen(query: bytes) -> frozenset[str] | None:
    """Return the names of `name[]=...`, as in Prometheus's own clients; None for all metrics."""
    return frozenset(parse_qs(query.decode("latin-1")).get("name[]", ())) or None
