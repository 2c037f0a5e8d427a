"""Accepting: the listening sockets of the embedded server, and the connections that are being opened.

A connection counts from the moment it is accepted, before its TLS handshake: it has a file descriptor from then on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.sockets.accept_loop import AcceptLoop
from klamm.sockets.listening import bind_sockets
from klamm.zk.server.admission import IDLE_TIMEOUT_MS
from klamm.zk.server.server_connection import Connection

if TYPE_CHECKING:
    from ssl import SSLContext

BACKLOG: Final = 512
OPENED_AT_ONCE: Final = 4
"""Connections that are opened before others are read: although there may be few places, later connections must not
replace a broker's before its handshake is read. The replaced ones close a turn later."""
_log = logging.getLogger(__name__)
Opened = tuple[asyncio.Transport, asyncio.BaseProtocol]


class Accepting:
    """`accept` makes the connection of a host, a closed one if there is no place for it."""

    def __init__(self, accept: Callable[[str], Connection], tls: SSLContext | None) -> None:
        self._accept = accept
        self._tls = tls
        self._accept_loop: AcceptLoop | None = None
        self._opening: dict[asyncio.Task[Opened], None] = {}

    async def listen(self, host: str, port: int) -> int:
        """Listen on all addresses of `host`; return the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        accept_loop = self._accept_loop = AcceptLoop(
            loop, self._open, listener="of the embedded ZooKeeper", opened_at_once=OPENED_AT_ONCE
        )
        bound: list[socket.socket] = []
        try:
            bound = await bind_sockets(loop, host, port, {})
            for sock in bound:
                accept_loop.listen(sock, BACKLOG)
        except OSError as error:
            accept_loop.close()
            for sock in bound:
                sock.close()
            raise OSError(error.errno, f"{host}:{port} cannot be bound: {error.strerror}") from error
        return int(bound[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening; connections stay open."""
        if self._accept_loop is not None:
            self._accept_loop.close()

    async def settle(self) -> None:
        """Wait for connections that were being opened and have been closed meanwhile."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _open(self, sock: socket.socket) -> None:
        try:
            host = str(sock.getpeername()[0])
        except OSError:  # The client has left.
            sock.close()
            return
        connection = self._accept(host)
        if connection.is_closed:
            sock.close()
            return
        loop = asyncio.get_running_loop()
        limit_s = None if self._tls is None else IDLE_TIMEOUT_MS / 1_000
        connecting = loop.connect_accepted_socket(
            lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=limit_s
        )
        opening = connection.opening = loop.create_task(connecting, name="zk-accept")
        self._opening[opening] = None
        opening.add_done_callback(partial(self._on_opened, connection, sock))

    def _on_opened(self, connection: Connection, sock: socket.socket, opening: asyncio.Task[Opened]) -> None:
        """End a connection without a transport: its TLS handshake failed, or it was closed before."""
        del self._opening[opening]
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            connection.connection_lost(None)
            sock.close()
        if error is not None and not isinstance(error, OSError):
            _log.error("The embedded ZooKeeper cannot open a connection", exc_info=error)
