"""TlsHandshakes: accept the connections of a TLS listener and encrypt them after their admission.

A connection counts in the quotas before its handshake begins, and waits unread for its admission like any other. So the
sockets are accepted here, not by the loop, which would read them or shake hands at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from klamm.network.connection import Connection
from klamm.network.connection_environment import ConnectionEnvironment
from klamm.network.muting import AUTHENTICATION
from klamm.security.tls.handshake_errors import explained, hide_handshake_errors, is_failed_authentication
from klamm.sockets.accept_loop import AcceptLoop

SHUTDOWN_S: Final = 5.0
"""How long a closing connection waits until its peer closes TLS too."""
_log = logging.getLogger(__name__)


class AcceptedSocket(asyncio.Transport):
    """The transport of an accepted connection until its TLS handshake is done: it can only be closed."""

    def __init__(self, sock: socket.socket, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.sock = sock
        self.handshake: asyncio.Task[None] | None = None
        self._connection = connection
        self._loop = loop
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        with contextlib.suppress(OSError):
            match name:
                case "socket":
                    return self.sock
                case "sockname":
                    return self.sock.getsockname()
                case "peername":
                    return self.sock.getpeername()
        return default

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        """Nothing reads it yet."""

    def resume_reading(self) -> None:
        """Nothing reads it yet."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is written yet."""

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self.handshake is not None:
            self.handshake.cancel()  # The socket closes at its end: the transport of the handshake still watches it.
        else:
            self.sock.close()
        self._loop.call_soon(self._connection.connection_lost, None)

    abort = close

    def on_handshake_end(self, handshake: asyncio.Task[None]) -> None:
        """Close the socket after a cancellation, also if the handshake had not begun, and after an unexpected error.

        Without a handshake nobody would close the connection: it has a deadline only once it can authenticate.
        """
        error = None if handshake.cancelled() else handshake.exception()
        connection = self._connection
        if handshake.cancelled():
            self.sock.close()
        elif error is not None:
            connection.gate.count_failure()
            connection.log_refusal(logging.ERROR, "Closing", "its TLS handshake failed unexpectedly", error)
            self.handshake = None
            connection.abort()
            if self._is_closing:  # It was to close before the error, and nobody else holds the socket.
                self.sock.close()


class TlsHandshakes:
    """One task per connection that is in its handshake. The listener's context of that moment is used."""

    def __init__(
        self,
        environment: ConnectionEnvironment,
        new_connection: Callable[[], Connection],
        has_room: Callable[[str], bool],
        *,
        listener: str,
        is_changing: Callable[[], bool],
    ) -> None:
        self._environment = environment
        self._loop = environment.loop
        self._new_connection = new_connection
        self._accept_loop = AcceptLoop(
            environment.loop, self._open, has_room, listener=listener, is_changing=is_changing
        )

    def listen(self, sock: socket.socket, backlog: int) -> None:
        hide_handshake_errors(self._loop)
        self._accept_loop.listen(sock, backlog)

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        return self._accept_loop.sockets

    def close(self) -> None:
        """Stop listening; connections stay open."""
        self._accept_loop.close()

    def _open(self, sock: socket.socket) -> None:
        connection = self._new_connection()
        connection.connection_made(AcceptedSocket(sock, connection, self._loop))

    def begin(self, connection: Connection) -> None:
        """Encrypt a connection that was admitted."""
        accepted = connection.transport
        assert isinstance(accepted, AcceptedSocket)
        accepted.handshake = self._loop.create_task(self._shake_hands(connection, accepted), name="tls-handshake")
        accepted.handshake.add_done_callback(accepted.on_handshake_end)

    async def _shake_hands(self, connection: Connection, accepted: AcceptedSocket) -> None:
        """End with a connection that reads requests, or with a closed one."""
        security = self._environment.security
        from aiofastnet import connect_accepted_socket  # slow to import, and only TLS listeners need it

        try:
            await self._wait_for_budget(connection)
            assert security.context is not None, "a TLS listener has a context"
            transport, _ = await connect_accepted_socket(
                self._loop,
                lambda: connection,
                accepted.sock,
                ssl=security.context,
                ssl_handshake_timeout=security.timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:
            connection.gate.count_failure()
            if is_failed_authentication(error):
                self._take_from_budget(connection)
            connection.log_refusal(logging.INFO, "Closing", f"its TLS handshake failed: {explained(error)}")
            accepted.handshake = None
            accepted.close()
            return
        ssl_object = transport.get_extra_info("ssl_object")
        certificate = None if ssl_object is None else ssl_object.getpeercert(binary_form=True)
        if connection.gate.pass_certificate(certificate):
            connection.admit()
            return
        connection.gate.count_failure()
        self._take_from_budget(connection)
        reason = "no rule of ssl.principal.mapping.rules matches its certificate"
        connection.log_refusal(logging.INFO, "Closing", reason)
        connection.abort()

    def _take_from_budget(self, connection: Connection) -> None:
        environment = self._environment
        environment.security.budget.note_failure(connection.context.client_host, environment.clock.monotonic())

    async def _wait_for_budget(self, connection: Connection) -> None:
        """Wait while too many authentications of the address have failed: a handshake costs more than a refusal.

        Raises TimeoutError if that takes longer than an authentication may.
        """
        security, monotonic = self._environment.security, self._environment.clock.monotonic
        late_at = monotonic() + security.timeout_s
        while (wait_s := connection.turn_wait_s(now := monotonic())) > 0:
            if now >= late_at:
                raise TimeoutError("too many authentications of its address have failed")
            connection.pause(AUTHENTICATION)
            await asyncio.sleep(min(wait_s, late_at - now))
        connection.resume(AUTHENTICATION)
