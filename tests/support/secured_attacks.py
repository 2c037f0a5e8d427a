"""The attacks over SASL_SSL, and attacks on the handshakes of TLS and SASL themselves."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.wire import decode
from tests.support import attacks, znode_attacks
from tests.support.attack_target import LOOPBACK, MIB, TIMEOUT_S, Target, frame, read_answers

_CORRELATION_BYTES: Final = 4
_SHORT_S: Final = 2.0
"""How long an attacker waits for an answer that may never come."""


@dataclass(frozen=True, slots=True)
class SecuredTarget(Target):
    """A cluster whose brokers speak SASL_SSL. A connection has logged in with PLAIN."""

    ca: Path = field(kw_only=True)
    user: tuple[str, str] = field(kw_only=True)

    def connect_to(self, port: int) -> socket.socket:
        connection = self.encrypted(port)
        try:
            log_in(connection, *self.user)
        except BaseException:
            connection.close()
            raise
        return connection

    def encrypted(self, port: int) -> ssl.SSLSocket:
        """A connection after its TLS handshake, before any login."""
        context = ssl.create_default_context(cafile=self.ca)
        plain = socket.create_connection((LOOPBACK, port), TIMEOUT_S)
        return context.wrap_socket(plain, server_hostname="localhost")

    def bare(self) -> socket.socket:
        """A connection without a TLS handshake."""
        return socket.create_connection((LOOPBACK, self.rng.choice(self.ports)), TIMEOUT_S)


def log_in(connection: socket.socket, user: str, password: str) -> None:
    """Raises ConnectionError if the broker refuses."""
    connection.sendall(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1))
    read_answers(connection)
    connection.sendall(frame(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password}".encode()), 0))
    answer = read_answer(connection)
    response, _ = decode(SaslAuthenticateResponse, 0, answer, _CORRELATION_BYTES)
    if response.error_code:
        raise ConnectionError(f"the login of {user} was refused: {response.error_message}")


def read_answer(connection: socket.socket) -> bytes:
    """One whole response. Raises ConnectionError at the end of the connection."""
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the broker closed the connection")
        received += part
    return received


# --- the handshake of TLS ---


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def half_handshakes(target: SecuredTarget) -> None:
    """Handshakes that stop after every possible part, and connections that wait in them."""
    hello = client_hello()
    with contextlib.ExitStack() as stack:
        for _ in range(target.count(40)):
            connection = stack.enter_context(target.bare())
            connection.sendall(hello[: target.rng.randrange(len(hello) + 1)])


def damaged_handshakes(target: SecuredTarget) -> None:
    """ClientHellos with flipped bytes, repeated ones, and records of all types and lengths."""
    hello = client_hello()
    for number in range(target.count(60)):
        data = bytearray(hello)
        for _ in range(target.rng.randrange(1, 6)):
            data[target.rng.randrange(len(data))] ^= 1 << target.rng.randrange(8)
        record = struct.pack(">BHH", target.rng.randrange(256), 0x0303, target.rng.randrange(1 << 16))
        sent = (bytes(data), hello + hello, hello + record + bytes(100), record + target.rng.randbytes(200))
        _send_and_receive(target.bare(), sent[number % len(sent)])


def plain_requests(target: SecuredTarget) -> None:
    """Kafka's protocol, HTTP and zeros without encryption."""
    for data in (frame(MetadataRequest(topics=None), 7), b"GET / HTTP/1.1\r\n\r\n", bytes(5000)):
        _send_and_receive(target.bare(), data)


def torn_records(target: SecuredTarget) -> None:
    """Connections that log in and then send bytes below TLS, or end without a farewell."""
    for _ in range(target.count(20)):
        connection = target.connect()
        raw = socket.socket(fileno=connection.detach())
        with raw:
            raw.settimeout(_SHORT_S)
            _send_and_receive(raw, target.rng.randbytes(target.rng.randrange(1, 4000)))


# --- the states of SASL ---


def sasl_states(target: SecuredTarget) -> None:
    """Frames of a login in any order, with any content: at most a few connections, because failures delay logins."""
    user, password = target.user
    good = f"\0{user}\0{password}".encode()
    moves = (
        frame(ApiVersionsRequest(), 0),
        frame(SaslHandshakeRequest(mechanism="PLAIN"), 0),
        frame(SaslHandshakeRequest(mechanism="PLAIN"), 1),
        frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1),
        frame(SaslHandshakeRequest(mechanism="GSSAPI"), 1),
        frame(SaslAuthenticateRequest(auth_bytes=good), 1),
        frame(SaslAuthenticateRequest(auth_bytes=b""), 2),
        frame(SaslAuthenticateRequest(auth_bytes=good + b"\0" * 7), 1),
        frame(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=" + b"r" * 300_000), 2),
        frame(MetadataRequest(topics=None), 7),
        struct.pack(">i", len(good)) + good,
        struct.pack(">i", 90 * MIB) + bytes(1000),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
    )
    for _ in range(target.count(30)):
        connection = target.encrypted(target.rng.choice(target.ports))
        _send_and_receive(connection, b"".join(target.rng.choices(moves, k=target.rng.randrange(1, 6))))


def silent_logins(target: SecuredTarget) -> None:
    """Encrypted connections that never log in."""
    with contextlib.ExitStack() as stack:
        for _ in range(target.count(30)):
            stack.enter_context(target.encrypted(target.rng.choice(target.ports)))


def _send_and_receive(connection: socket.socket, data: bytes) -> None:
    """Send bytes and read one answer, which may be anything or nothing."""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_SHORT_S)
        connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        connection.recv(4096)


HANDSHAKES: Final[tuple[Callable[[SecuredTarget], None], ...]] = (
    half_handshakes,
    damaged_handshakes,
    plain_requests,
    torn_records,
    sasl_states,
    silent_logins,
)
_ON_ZOOKEEPER: Final[tuple[Callable[[Target], None], ...]] = (
    attacks.zookeeper_auth,
    attacks.zookeeper_silence,
    attacks.zookeeper_paths,
    znode_attacks.multi_reads,
    znode_attacks.deleted_registration,
    znode_attacks.damaged_controller_epoch,
)
"""They take the same path here as in a plain cluster."""
OVER_TLS: Final = tuple(attack for attack in attacks.ATTACKS if attack not in _ON_ZOOKEEPER)
"""All attacks of the siege on brokers."""


def attacker(ports: list[int], topic: str, ca: Path, user: tuple[str, str], seed: int, size: float) -> SecuredTarget:
    return SecuredTarget(ports, 0, topic, 1, Random(seed), size, ca=ca, user=user)
