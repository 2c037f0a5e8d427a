"""Opening, reading, writing and ending a blocking socket of a connection with ZooKeeper."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl import SSLContext

log = logging.getLogger(__name__)


class ConnectionBroken(Exception):
    """The connection is no longer usable."""


def open_socket(address: tuple[str, int], name: str, timeout_s: float, tls: SSLContext | None) -> socket.socket:
    """Connect. With `tls`, the server's certificate must have this name, unless the context does not check names."""
    connection = socket.create_connection(address, timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return connection
    from klamm.zk.client.tls_tunnel import open_tunnel

    return open_tunnel(connection, tls, name)


def send_some(connection: socket.socket, data: bytes) -> int:
    """Send as much as the kernel accepts at once; return the size.

    A broken connection accepts all: the reader notices it.
    """
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
