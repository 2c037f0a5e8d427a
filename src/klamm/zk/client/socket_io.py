"""Reading, writing and ending a blocking socket of a connection with ZooKeeper."""

from __future__ import annotations

import logging
import socket

log = logging.getLogger(__name__)


class ConnectionBroken(Exception):
    """The connection is no longer usable."""


def send_some(connection: socket.socket, data: bytes) -> int:
    """How much of it the kernel takes at once. All of it when the connection is broken: the reader finds that out."""
    try:
        return connection.send(data, socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionBroken("the server closed it")
        data += part
    return data


def shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("the connection was gone already")
