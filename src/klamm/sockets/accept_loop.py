"""AcceptLoop: accept the connections of listening sockets, few per turn of the event loop.

The event loop's own servers accept all waiting connections in one turn. A client that connects and leaves thousands of
times fills the backlog, and others wait until all these connections were opened and closed again. So connections whose
peer has left are closed here before anything is made for them, and so are those for which there is no room. While
places are about to become free, the next connection waits for one of them, and those behind it stay in the backlog.
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
        is_changing: Callable[[], bool] = lambda: False,
        opened_at_once: int = OPENED_AT_ONCE,
    ) -> None:
        """`is_changing`: whether a connection that has no room now may have some in the next turns of the loop."""
        self._loop = loop
        self._listener = listener
        self._open_socket = open_socket
        self._has_room = has_room
        self._is_changing = is_changing
        self._opened_at_once = opened_at_once
        self._held: dict[socket.socket, tuple[socket.socket, str]] = {}
        """The connection of a listening socket that waits for room, and its address."""
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
        for held, _ in self._held.values():
            held.close()
        self._held.clear()

    def _accept(self, listening: socket.socket) -> None:
        opened = 0
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, ip = self._held.pop(listening) if listening in self._held else _accept(listening)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(listening, error)
                return
            if _has_left(sock):
                sock.close()
            elif self._has_room(ip):
                self._open_socket(sock)
                opened += 1
                if opened == self._opened_at_once:
                    return
            elif self._is_changing():
                self._hold(listening, sock, ip)
                return
            else:
                sock.close()

    def _hold(self, listening: socket.socket, sock: socket.socket, ip: str) -> None:
        """Keep a connection until the next turn of the loop. Those behind it stay in the backlog."""
        self._held[listening] = sock, ip
        self._loop.remove_reader(listening)
        self._loop.call_soon(self._continue, listening)

    def _continue(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)
            self._accept(listening)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        reason = error.strerror
        _log.warning("listener %s stops accepting connections for %g s: %s", self._listener, PAUSE_S, reason)
        self._loop.remove_reader(listening)
        self._loop.call_later(PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


def _accept(listening: socket.socket) -> tuple[socket.socket, str]:
    """Accept a connection; return its socket, which does not block, and its address."""
    sock, address = listening.accept()
    sock.setblocking(False)
    return sock, str(address[0])


def _has_left(sock: socket.socket) -> bool:
    """Whether the peer has closed the connection without a request."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
