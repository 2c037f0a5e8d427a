"""`GET /metrics` over a minimal HTTP/1.1: one answer per connection, bounded input, no other resource."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final, cast

from klamm.errors import ConfigError
from klamm.metrics.exposition import CONTENT_TYPE
from klamm.metrics.registry import MetricsRegistry

MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 10.0

_log = logging.getLogger(__name__)


class MetricsServer:
    """Serves a registry on the loop it was started on. The scrape gives way to other work after every metric name."""

    def __init__(self, registry: MetricsRegistry, host: str, port: int) -> None:
        self._registry = registry
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[_HttpConnection] = set()

    @property
    def port(self) -> int:
        """The bound port, known after `start` even when port 0 was asked for."""
        return self._port

    async def start(self) -> None:
        """Raises ConfigError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _HttpConnection(loop, self._registry, self._connections), self._host, self._port
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
        self, loop: asyncio.AbstractEventLoop, registry: MetricsRegistry, connections: set[_HttpConnection]
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._connections = connections
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._timer = self._loop.call_later(REQUEST_TIMEOUT_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self._answer.cancel()

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
        self._answer = self._loop.create_task(self._serve(bytes(self._received[:end])))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self, head: bytes) -> None:
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if path != b"/metrics":
            self._respond("404 Not Found", "Metrics are under /metrics.\n")
        elif method not in (b"GET", b"HEAD"):
            self._respond("405 Method Not Allowed", "GET /metrics\n")
        else:
            await self._scrape(with_body=method == b"GET")

    async def _scrape(self, *, with_body: bool) -> None:
        pieces = []
        try:
            for text in self._registry.families():
                pieces.append(text.encode())
                await asyncio.sleep(0)
        except Exception:
            _log.exception("A metric could not be read")
            self._respond("500 Internal Server Error", "A metric could not be read; the broker's log has the cause.\n")
            return
        self._write_head("200 OK", sum(map(len, pieces)))
        for piece in pieces if with_body else ():
            await self._writable.wait()
            self._write(piece)
            await asyncio.sleep(0)
        self._close()

    def _respond(self, status: str, text: str) -> None:
        body = text.encode()
        self._write_head(status, len(body))
        self._write(body)
        self._close()

    def _write_head(self, status: str, size_bytes: int) -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {size_bytes}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._write(head.encode())

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
