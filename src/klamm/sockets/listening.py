"""The sockets of a listener: one per address of its host, all on the same port."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

_ATTEMPTS: Final = 16
"""How often another free port is tried if the one of the first address is taken on the second."""


@runtime_checkable
class OwnNetwork(Protocol):
    """A loop that has its own network, as in a simulator: its sockets are not the system's."""

    def bind_listener(self, host: str, port: int) -> socket.socket: ...


async def bind_sockets(
    loop: asyncio.AbstractEventLoop, host: str, port: int, buffers: Mapping[int, int]
) -> list[socket.socket]:
    """Bind every address of `host` (all addresses if it is empty). Port 0 picks one port that is free on all of them.

    `buffers` has sizes by socket option. Accepted connections inherit all options. Raises OSError.
    """
    if isinstance(loop, OwnNetwork):
        return [loop.bind_listener(host, port)]
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for attempt in range(_ATTEMPTS):
        try:
            return _bind_all(addresses, buffers)
        except OSError as error:
            if port != 0 or error.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _bind_all(addresses: list[tuple[Any, Any]], buffers: Mapping[int, int]) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for family, address in addresses:
            port = bound[0].getsockname()[1] if bound else address[1]
            sock = _bind(family, (address[0], port, *address[2:]), buffers)
            if sock is not None:
                bound.append(sock)
        if not bound:
            raise OSError(errno.EADDRNOTAVAIL, "no address of the host can be bound")
    except OSError:
        for sock in bound:
            sock.close()
        raise
    return bound


def _bind(family: int, address: tuple[Any, ...], buffers: Mapping[int, int]) -> socket.socket | None:
    """Return a bound socket, or None if the system does not have this address family."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in buffers.items():
            sock.setsockopt(socket.SOL_SOCKET, option, size)
        sock.bind(address)
    except OSError as error:
        sock.close()
        if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return sock
