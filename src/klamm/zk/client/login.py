"""Authenticates a new connection, right after the handshake of its session and before any other request."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from klamm.zk.client.digest_md5 import DigestError, DigestMd5
from klamm.zk.client.socket_io import ConnectionBroken, read_exactly
from klamm.zk.client.zk_security import Login, ZkSecurity
from klamm.zk.model import jute
from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import MarshallingError

_HEADER: Final = struct.Struct(">iii")
_REPLY: Final = struct.Struct(">iqi")
_INT: Final = struct.Struct(">i")
_AUTH_XID: Final = -4
_SASL_XID: Final = 0
_LARGEST_REPLY: Final = 64 << 10


class LoginRefused(ConnectionBroken):
    """ZooKeeper does not accept the credentials, or is not the server that it claims to be."""


def log_in(connection: socket.socket, security: ZkSecurity) -> None:
    """Raises LoginRefused, which names the setting, or OSError if the connection breaks."""
    if security.sasl is not None:
        with _setting("klamm.zookeeper.sasl.jaas.config"):
            _sasl(connection, security.sasl)
    if security.digest is not None:
        credential = f"{security.digest.username}:{security.digest.password}".encode()
        body = _INT.pack(0) + jute.string_bytes("digest") + jute.buffer_bytes(credential)
        with _setting("klamm.zookeeper.digest"):
            _ask(connection, _AUTH_XID, OpCode.AUTH, body, "the scheme digest")


@contextmanager
def _setting(name: str) -> Iterator[None]:
    try:
        yield
    except LoginRefused as error:
        raise LoginRefused(f"{error}. Compare {name} with the setting of ZooKeeper and of the other brokers") from None


def _sasl(connection: socket.socket, login: Login) -> None:
    exchange = DigestMd5(login.username, login.password, secrets.token_hex(16))
    try:
        challenge = _sasl_step(connection, b"")
        exchange.verify(_sasl_step(connection, exchange.respond(challenge)))
    except DigestError as error:
        raise LoginRefused(f"SASL DIGEST-MD5 as {login.username}: {error}") from None


def _sasl_step(connection: socket.socket, token: bytes) -> bytes:
    answer = _ask(connection, _SASL_XID, OpCode.SASL, jute.buffer_bytes(token), "SASL DIGEST-MD5")
    try:
        return jute.read_buffer(answer, 0)[0] or b""
    except (struct.error, MarshallingError):
        raise LoginRefused("the answer to SASL is not ZooKeeper's") from None


def _ask(connection: socket.socket, xid: int, kind: OpCode, body: bytes, what: str) -> bytes:
    connection.sendall(_HEADER.pack(8 + len(body), xid, kind) + body)
    try:
        (size,) = _INT.unpack(read_exactly(connection, 4))
        if not _REPLY.size <= size <= _LARGEST_REPLY:
            raise LoginRefused(f"an answer of {size} bytes is not ZooKeeper's")
        frame = read_exactly(connection, size)
    except ConnectionBroken as error:  # a server closes the connection after it refused credentials
        raise LoginRefused(f"{what}: {error}") from None
    answered, _, code = _REPLY.unpack_from(frame)
    if answered != xid or code:
        raise LoginRefused(f"{what}: the server answered with error {code}")
    return frame[_REPLY.size :]
