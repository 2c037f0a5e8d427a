"""A TLS connection that looks like a plain socket, so that one thread may read it while others write.

OpenSSL does not allow that for one connection. So a thread owns the TLS connection, and moves bytes between it and one
end of a socket pair; the other end is what callers see. A request takes one more change of threads than without TLS.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
from typing import Final

log = logging.getLogger(__name__)

_CHUNK: Final = 64 << 10


def open_tunnel(connection: socket.socket, context: ssl.SSLContext, host: str) -> socket.socket:
    """Shake hands within the socket's timeout; return the plain end. Raises OSError, ssl.SSLError among them."""
    try:
        secured = context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise
    timeout_s = secured.gettimeout()
    inner, outer = socket.socketpair()
    secured.setblocking(False)
    inner.setblocking(False)
    outer.settimeout(timeout_s)
    threading.Thread(target=_Tunnel(secured, inner).run, name="zookeeper-tls", daemon=True).start()
    return outer


class _Tunnel:
    """Moves bytes until one side ends. At most one chunk per direction is held: a slow reader slows the other side."""

    def __init__(self, secured: ssl.SSLSocket, inner: socket.socket) -> None:
        self._secured = secured
        self._inner = inner
        self._outgoing = b""
        self._incoming = b""

    def run(self) -> None:
        try:
            while self._move():
                pass
        except OSError as error:  # ssl.SSLError is one
            log.debug("the TLS connection with ZooKeeper is lost: %s", error)
        finally:
            self._inner.close()
            self._secured.close()

    def _move(self) -> bool:
        """Wait until a direction can make progress, and move its bytes. Returns False at the end of a side."""
        poll = select.poll()
        secured = select.POLLOUT if self._outgoing else 0
        secured |= 0 if self._incoming else select.POLLIN
        inner = (0 if self._outgoing else select.POLLIN) | (select.POLLOUT if self._incoming else 0)
        poll.register(self._secured, secured)
        poll.register(self._inner, inner)
        has_decrypted = not self._incoming and self._secured.pending() > 0
        poll.poll(0 if has_decrypted else None)
        return self._receive() and self._send()

    def _receive(self) -> bool:
        if not self._incoming:
            try:
                self._incoming = self._secured.recv(_CHUNK)
                if not self._incoming:
                    return False
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
        if self._incoming:
            with contextlib.suppress(BlockingIOError):
                self._incoming = self._incoming[self._inner.send(self._incoming) :]
        return True

    def _send(self) -> bool:
        if not self._outgoing:
            try:
                self._outgoing = self._inner.recv(_CHUNK)
                if not self._outgoing:
                    return False
            except BlockingIOError:
                return True
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._outgoing = self._outgoing[self._secured.send(self._outgoing) :]
        return True
