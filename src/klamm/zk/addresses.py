"""The servers that `zookeeper.connect` names, as addresses to connect to."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Sequence
from typing import Final

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 2181


def address_of(host: str) -> tuple[str, int]:
    """`host`, `host:port` or `[host]:port`."""
    name, colon, port = host.strip().rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host.strip(), ""
    return name.strip("[]"), int(port or DEFAULT_PORT)


def resolve(addresses: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Every address of every host, in an order of chance: sessions spread over the ensemble."""
    found: list[tuple[str, int]] = []
    for host, port in addresses:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            log.debug("%s has no address: %s", host, error)
            continue
        found += [(str(info[4][0]), port) for info in infos]
    random.shuffle(found)
    return found
