"""Reading: a blocking read over sockets that another thread can end."""

from __future__ import annotations

import contextlib
import socket
from typing import Self


class Reading:
    """The sockets of one read.

    The reading thread and the one that cancels share only a list: the thread that takes a socket out of it closes it.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._is_cancelled = False

    def cancel(self) -> None:
        """Make the reading thread fail soon, whatever it waits for. Only the look-up of a name is not interrupted."""
        self._is_cancelled = True
        self._end()

    def _end(self) -> None:
        while self._sockets:
            with contextlib.suppress(IndexError, OSError), self._sockets.pop() as sock:
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def connect(self, address: tuple[str, int], timeout_s: float, *_more: object) -> socket.socket:
        """Like `socket.create_connection`, but `cancel` reaches the connection attempt."""
        problem = OSError("the name has no address")
        for family, kind, protocol, _, found in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                self._sockets.append(sock.dup())  # TLS takes the descriptor out of the original
                sock.settimeout(timeout_s)
                if not self._is_cancelled:
                    sock.connect(found)
                if not self._is_cancelled:
                    return sock
                raise OSError("the read was cancelled")
            except OSError as error:
                sock.close()
                problem = error
        raise problem
