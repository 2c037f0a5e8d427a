"""`/metrics`, `/traces`, `/healthz` and `/readyz` over a minimal HTTP/1.1: one answer per connection, bounded input."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qs

from klamm.errors import ConfigError
from klamm.metrics.exposition import CONTENT_TYPE
from klamm.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 10.0
"""Limit for the arrival of the request, and for the client to read the answer."""

_CHALLENGE: Final = 'WWW-Authenticate: Basic realm="klamm"\r\n'

_log = logging.getLogger(__name__)
Traces = Callable[[], Iterable[bytes]]
"""Returns JSON objects, one per line, in pieces that take at most a few milliseconds each."""


class MetricsServer:
    """Serves a registry on the loop it was started on. A scrape yields to other work after every metric name.

    `login` is the `user:password` that a request must have (RFC 7617).
    """

    def __init__(
        self,
        registry: MetricsRegistry,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        login: str | None = None,
    ) -> None:
        self.not_ready: str | None = "The broker is starting."
        """Why the broker does not serve clients; None if it does. `/readyz` reports it."""
        self.traces: Traces | None = None
        """The last traced requests; None if they are not served here."""
        self._registry = registry
        self._tls = tls
        self._credential = None if login is None else base64.b64encode(login.encode())
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[_HttpConnection] = set()

    @property
    def port(self) -> int:
        """The bound port, known after `start` even if port 0 was requested."""
        return self._port

    async def start(self) -> None:
        """Start to listen. Raises ConfigError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _HttpConnection(
                    loop,
                    self._registry,
                    self._connections,
                    self._credential,
                    lambda: self.not_ready,
                    lambda: self.traces,
                ),
                self._host,
                self._port,
                ssl=self._tls,
            )
        except OSError as error:
            where = f"{self._host}:{self._port}"
            reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
            raise ConfigError(
                f"the metrics endpoint cannot be bound to {where}: {reason}; see klamm.metrics.port"
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None


class _HttpConnection(asyncio.Protocol):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: MetricsRegistry,
        connections: set[_HttpConnection],
        credential: bytes | None = None,
        not_ready: Callable[[], str | None] = lambda: None,
        traces: Callable[[], Traces | None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._credential = credential
        self._registry = registry
        self._connections = connections
        self._not_ready = not_ready
        self._traces = traces
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._stop_timer()
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
        self._answer = self._loop.create_task(self._serve(bytes(self._received[:end])), name="metrics-http")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self, head: bytes) -> None:
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path, _, query = rest.split(b" ", 1)[0].partition(b"?")
        if path in (b"/healthz", b"/readyz") and method in (b"GET", b"HEAD"):
            self._answer_probe(path)
        elif not self._is_allowed(head):
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
        reason = self._not_ready() if path == b"/readyz" else None
        self._respond("503 Service Unavailable" if reason else "200 OK", f"{reason or 'ok'}\n")

    def _is_allowed(self, head: bytes) -> bool:
        if self._credential is None:
            return True
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            scheme, _, credential = value.strip().partition(b" ")
            if name.strip().lower() == b"authorization" and scheme.lower() == b"basic":
                return hmac.compare_digest(credential.strip(), self._credential)
        return False

    async def _scrape(self, names: frozenset[str] | None, *, with_body: bool) -> None:
        self._stop_timer()  # a busy broker with very many partitions takes long
        pieces = []
        try:
            for text in self._registry.families(names):
                pieces.append(text.encode())
                await asyncio.sleep(0)
        except Exception:
            _log.exception("A metric could not be read")
            self._respond("500 Internal Server Error", "A metric could not be read; the broker's log has the cause.\n")
            return
        await self._send(pieces, with_body=with_body)

    async def _list_traces(self, *, with_body: bool) -> None:
        traces = self._traces()
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


def _chosen(query: bytes) -> frozenset[str] | None:
    """Return the names of `name[]=...`, as in Prometheus's own clients; None for all metrics."""
    return frozenset(parse_qs(query.decode("latin-1")).get("name[]", ())) or None
