"""A cluster under attack: what the attacks share."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from klamm.protocol.frames import RequestHeader
from klamm.protocol.wire import Message
from tests.support.frames import encode_request_frame

LOOPBACK: Final = "127.0.0.1"
TIMEOUT_S: Final = 30.0
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster under attack. `size` scales every attack; 1 is the size that once froze a broker."""

    ports: Sequence[int]
    zookeeper: int
    topic: str
    partitions: int
    rng: Random
    size: float = 1.0
    damaged_topic: str = "damaged"
    """It takes the records of attackers, so that those of the load can be counted."""

    def count(self, full: int) -> int:
        return max(1, int(full * self.size))

    def connect(self) -> socket.socket:
        return self.connect_to(self.rng.choice(self.ports))

    def connect_to(self, port: int) -> socket.socket:
        return socket.create_connection((LOOPBACK, port), TIMEOUT_S)

    def connect_zookeeper(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self.zookeeper), TIMEOUT_S)


def frame(request: Message, version: int, correlation_id: int = 1) -> bytes:
    return b"".join(encode_request_frame(RequestHeader(request.KEY, version, correlation_id, "attacker"), request))


def send_each_version(target: Target, request: Message, versions: Sequence[int]) -> None:
    """Sends the request to every broker in every version and reads the answers."""
    for version in versions:
        for port in target.ports:
            with target.connect_to(port) as connection:
                connection.sendall(frame(request, version))
                read_answers(connection)


def read_answers(connection: socket.socket, count: int = 1) -> None:
    """Reads `count` responses without keeping them."""
    for _ in range(count):
        head = _read(connection, 4)
        if head is None or _read(connection, struct.unpack(">i", head)[0]) is None:
            return


def _read(connection: socket.socket, size: int) -> bytes | None:
    last = b""
    while size > 0:
        part = connection.recv(min(size, MIB))
        if not part:
            return None
        size -= len(part)
        last = part
    return last


@contextlib.contextmanager
def many(target: Target, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(target.connect()) for _ in range(count)]
