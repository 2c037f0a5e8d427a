"""Damaged flights of a TLS handshake: everything that one side sends before it waits for the other."""

from __future__ import annotations

import contextlib
import ssl
import struct
from random import Random
from typing import Final

_RECORD_HEADER: Final = 5


class Side:
    """One side of a handshake in memory. It never raises: `error` has the reason of its failure."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if is_server else "localhost"
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=name)
        self.is_finished = False
        self.error: ssl.SSLError | None = None

    def receive(self, flight: bytes) -> bytes:
        """Take the peer's flight and return the own one, which may be empty."""
        self._incoming.write(flight)
        if not self.is_finished and self.error is None:
            with contextlib.suppress(ssl.SSLWantReadError):
                try:
                    self.tls.do_handshake()
                    self.is_finished = True
                except ssl.SSLWantReadError:
                    raise
                except ssl.SSLError as error:
                    self.error = error
        return self._outgoing.read()

    def read(self) -> bytes:
        """The data that the peer has sent after the handshake."""
        try:
            return self.tls.read(65536)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            self.error = error
            return b""

    def write(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._outgoing.read()

    @property
    def peer_certificate(self) -> bytes | None:
        return self.tls.getpeercert(binary_form=True)


def damage(rng: Random, flight: bytes) -> bytes:
    """Return another flight: bits, lengths, types, order or number of its records differ."""
    return rng.choice((_flipped, _cut, _stretched, _repeated, _shuffled, _interrupted, _relabelled, _replaced))(
        rng, flight
    )


def _records(flight: bytes) -> list[bytes]:
    records = []
    while flight:
        (size,) = struct.unpack_from(">H", flight, 3)
        records.append(flight[: _RECORD_HEADER + size])
        flight = flight[_RECORD_HEADER + size :]
    return records


def _flipped(rng: Random, flight: bytes) -> bytes:
    data = bytearray(flight)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut(rng: Random, flight: bytes) -> bytes:
    start = rng.randrange(len(flight))
    return flight[:start] + flight[start + rng.choice((1, 2, 50, len(flight))) :]


def _stretched(rng: Random, flight: bytes) -> bytes:
    at = rng.randrange(len(flight) + 1)
    return flight[:at] + rng.randbytes(rng.choice((1, 4, 300))) + flight[at:]


def _repeated(rng: Random, flight: bytes) -> bytes:
    records = _records(flight)
    records.insert(rng.randrange(len(records) + 1), rng.choice(records))
    return b"".join(records)


def _shuffled(rng: Random, flight: bytes) -> bytes:
    records = _records(flight)
    rng.shuffle(records)
    return b"".join(records[rng.randrange(2) :])


def _interrupted(rng: Random, flight: bytes) -> bytes:
    """Insert a record of any type: an alert, data, an empty one, or one that claims to be long."""
    size = rng.choice((0, 1, 2, 64, 16_384, 20_000))
    header = struct.pack(">BHH", rng.choice((20, 21, 22, 23, 24, rng.randrange(256))), 0x0303, size)
    records = _records(flight)
    records.insert(rng.randrange(len(records) + 1), header + rng.randbytes(size))
    return b"".join(records)


def _relabelled(rng: Random, flight: bytes) -> bytes:
    """Change a field of a record's header: the type, the version or the length."""
    records = _records(flight)
    at = rng.randrange(len(records))
    data = bytearray(records[at])
    data[rng.randrange(_RECORD_HEADER)] = rng.randrange(256)
    records[at] = bytes(data)
    return b"".join(records)


def _replaced(rng: Random, flight: bytes) -> bytes:
    return rng.randbytes(rng.choice((1, _RECORD_HEADER, len(flight))))
