"""AcceptLoop: accept the connections of listening sockets, few per turn of the event loop.

The event loop's own servers accept all waiting connections in one turn. A client that connects and leaves thousands of
times fills the backlog, and others wait until all these connections were opened and closed again. So connections whose
peer has left are closed here before anything is made for them, and so are those for which there is no room.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

ACCEPTED_AT_ONCE: Final = 128
"""Connections that are accepted before the loop serves others; most of them have been left."""
OPENED_AT_ONCE: Final = 16
"""Connections with a peer that are passed on before the loop serves others. Each takes 40 to 100 us."""
PAUSE_S: Final = 1.0
"""How long a listener rests if the process has no more file descriptors, as in asyncio."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)


class AcceptLoop:
    """Passes each accepted socket, which does not block, to `open_socket`, unless its address has no room."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_socket: Callable[[socket.socket], None],
        has_room: Callable[[str], bool] = lambda _: True,
        *,
        listener: str,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._open_socket = open_socket
        self._has_room = has_room
        self.sockets: list[socket.socket] = []
        """The listening sockets."""

    def listen(self, sock: socket.socket, backlog: int) -> None:
        sock.listen(backlog)
        self.sockets.append(sock)
        self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Stop listening; connections stay open."""
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self.sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        opened = 0
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(listening, error)
                return
            sock.setblocking(False)
            if _has_left(sock) or not self._has_room(str(address[0])):
                sock.close()
                continue
            self._open_socket(sock)
            opened += 1
            if opened == OPENED_AT_ONCE:
                return

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        reason = error.strerror
        _log.warning("listener %s stops accepting connections for %g s: %s", self._listener, PAUSE_S, reason)
        self._loop.remove_reader(listening)
        self._loop.call_later(PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


def _has_left(sock: socket.socket) -> bool:
    """Whether the peer has closed the connection without a request."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
