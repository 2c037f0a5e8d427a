"""The servers that `zookeeper.connect` names, as addresses to connect to."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from klamm.model import parse_host_port

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 2181


def address_of(host: str) -> tuple[str, int]:
    """Parse `host`, `host:port` or `[host]:port`. Raises ValueError if the port is invalid."""
    try:
        return parse_host_port(host, DEFAULT_PORT)
    except ValueError as error:
        raise ValueError(f"zookeeper.connect: {error}") from None


def addresses_of(hosts: str) -> list[tuple[str, int]]:
    """Parse a list with commas; empty items are ignored."""
    return [address_of(host) for host in hosts.split(",") if host.strip()]


class Candidate(NamedTuple):
    """An address to connect to, and the name in the configuration, which a certificate must have."""

    address: tuple[str, int]
    name: str


def candidates(addresses: Sequence[tuple[str, int]], lost: tuple[str, int] | None) -> Iterator[Candidate]:
    """Yield every address of every host in random order, so that sessions spread over the ensemble.

    The server that was lost comes last, because waiting for it first might take longer than the session lives. Names
    are resolved one at a time, because a name service may be slow too.
    """
    last: Candidate | None = None
    for host, port in random.sample(addresses, len(addresses)):
        for address in _resolve(host, port):
            if address == lost:
                last = Candidate(address, host)
            else:
                yield Candidate(address, host)
    if last is not None:
        yield last


def _resolve(host: str, port: int) -> list[tuple[str, int]]:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: the text is not a valid host name
        log.debug("%s has no address: %s", host, error)
        return []
    found = [(str(info[4][0]), port) for info in infos]
    random.shuffle(found)
    return found
