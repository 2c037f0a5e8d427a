"""ScramClient: the client's side of one SCRAM login (RFC 5802), bytes in and bytes out.

Names and passwords are used as they are, in UTF-8, as by Kafka's clients and tools and by librdkafka. SASLprep, which
the RFC requires and the library scramp does, would change some passwords and refuse others, such as those with an
emoji: the same password would be right for other clients and wrong for this one.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from hashlib import new as new_hash
from hmac import compare_digest, digest
from secrets import token_urlsafe
from typing import Final

from klamm.security.sasl.scram_credential import HASHES, MIN_ITERATIONS, salted_password
from klamm.security.secret import Secret

MAX_ITERATIONS: Final = 10_000_000
"""Rounds of the hash that a broker may demand. Kafka's tools store far fewer."""
_NONCE_BYTES: Final = 18
_HEADER: Final = "n,,"
_SERVER_FIRST: Final = re.compile(
    r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,8})(?:,[A-Za-z]=[^,\0]+)*"
)
_SERVER_FINAL: Final = re.compile(r"(?:e=([^,\0]+)|v=([A-Za-z0-9+/=]+))(?:,[A-Za-z]=[^,\0]+)*")


class ScramClient:
    """One exchange. Methods raise ValueError for messages that no honest broker sends, without any secret."""

    def __init__(self, mechanism: str, username: str, password: Secret[str]) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = token_urlsafe(_NONCE_BYTES)
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return (_HEADER + self._bare).encode()

    def prove(self, server_first: bytes) -> bytes:
        """Return the proof of the password. This takes milliseconds: it is hashed thousands of times."""
        text = server_first.decode()
        found = _SERVER_FIRST.fullmatch(text)
        if found is None:
            raise ValueError("its first message is malformed")
        nonce, salt, iterations = found[1], a2b_base64(found[2], strict_mode=True), int(found[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ValueError("it does not continue the nonce")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"it demands {iterations} rounds of the hash")
        salted = salted_password(self._mechanism, self._password.reveal(), salt, iterations)
        client_key = digest(salted, b"Client Key", self._hash)
        unproved = f"c={_base64(_HEADER.encode())},r={nonce}"
        signed = f"{self._bare},{text},{unproved}".encode()
        signature = digest(new_hash(self._hash, client_key).digest(), signed, self._hash)
        self._server_signature = digest(digest(salted, b"Server Key", self._hash), signed, self._hash)
        return f"{unproved},p={_base64(_xor(client_key, signature))}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the broker knows the password too."""
        found = _SERVER_FINAL.fullmatch(server_final.decode())
        if found is None:
            raise ValueError("its final message is malformed")
        if found[1] is not None:
            raise ValueError(f"it reports {found[1][:64]}")
        expected = self._server_signature
        if expected is None or not compare_digest(a2b_base64(found[2], strict_mode=True), expected):
            raise ValueError("it does not know the password")


def _base64(value: bytes) -> str:
    return b2a_base64(value, newline=False).decode()


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
