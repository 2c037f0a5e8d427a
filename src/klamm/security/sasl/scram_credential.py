"""SCRAM credentials as Kafka stores them: `salt=...,stored_key=...,server_key=...,iterations=...`, all in base64."""

from __future__ import annotations

import base64
import binascii
import hmac
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from os import urandom
from typing import Final

from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.sasl.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
"""Kafka's limits, which protect the clients from a broker's mistake."""
MIN_SALT_BYTES: Final = 12
"""The library that checks logins refuses shorter ones."""
SALT_BYTES: Final = 24
"""The size of a new salt."""
HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}


@lazy_dataclass(frozen=True, slots=True)
class ScramCredential:
    """The part of a password that a broker keeps: enough to check a login, not enough to log in."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def to_text(self) -> str:
        def b64(value: bytes) -> str:
            return base64.b64encode(value).decode()

        return (
            f"salt={b64(self.salt)},stored_key={b64(self.stored_key)},"
            f"server_key={b64(self.server_key)},iterations={self.iterations}"
        )


def decoy_credential(key: str, mechanism: str, username: str) -> ScramCredential:
    """Return a credential for a name that no user has. Its salt depends on name and key only, as that of a user."""
    name = HASHES[mechanism]
    salt = hmac.digest(key.encode(), f"decoy {mechanism} {username}".encode(), "sha256")[:SALT_BYTES]
    size = new_hash(name).digest_size
    return ScramCredential(salt, urandom(size), urandom(size), MIN_ITERATIONS)


def parse_credential(text: str) -> ScramCredential:
    """Raises ValueError, which does not show the text."""
    fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if fields.keys() != {"salt", "stored_key", "server_key", "iterations"}:
        raise ValueError("the credential does not have the four fields that Kafka writes")
    try:
        salt, stored, server = (
            base64.b64decode(fields[k], validate=True) for k in ("salt", "stored_key", "server_key")
        )
        return ScramCredential(salt, stored, server, int(fields["iterations"]))
    except (binascii.Error, ValueError):
        raise ValueError("a field of the credential is malformed") from None


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hash a password. This takes milliseconds."""
    return pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password that a client has salted and hashed already."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    server_key = hmac.digest(salted, b"Server Key", name)
    return ScramCredential(salt, new_hash(name, client_key).digest(), server_key, iterations)
