"""The servers that `zookeeper.connect` names, as addresses to connect to."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Iterator, Sequence
from typing import Final

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 2181


def address_of(host: str) -> tuple[str, int]:
    """`host`, `host:port` or `[host]:port`. Raises ValueError for a port that is none."""
    name, colon, port = host.strip().rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host.strip(), ""
    port = port or str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"zookeeper.connect: {host.strip()!r} is not host:port")
    return name.strip("[]"), int(port)


def addresses_of(hosts: str) -> list[tuple[str, int]]:
    """Of a list with commas, in which nothing may stand between two of them."""
    return [address_of(host) for host in hosts.split(",") if host.strip()]


def candidates(addresses: Sequence[tuple[str, int]], lost: tuple[str, int] | None) -> Iterator[tuple[str, int]]:
    """Every address of every host, in an order of chance: sessions spread over the ensemble.

    The server that was lost comes last: when it is silent, a session may not have the time to try it first. Names are
    looked up one by one, because a name service that does not answer takes time as well.
    """
    has_lost = False
    for host, port in random.sample(addresses, len(addresses)):
        for address in _resolve(host, port):
            if address == lost:
                has_lost = True
            else:
                yield address
    if has_lost and lost is not None:
        yield lost


def _resolve(host: str, port: int) -> list[tuple[str, int]]:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter: it can be no name at all
        log.debug("%s has no address: %s", host, error)
        return []
    found = [(str(info[4][0]), port) for info in infos]
    random.shuffle(found)
    return found
