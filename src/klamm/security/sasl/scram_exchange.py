"""ScramExchange: the broker's side of one SCRAM login (RFC 5802), text in and text out.

The messages are read here: the library scramp looks at every character of a nonce in Python, which costs more than all
hashes of a login. The keys are computed by scramp's functions. A test compares both on damaged messages. Names are used
as they are, without SASLprep: a user has the name under which it was added.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from functools import cache
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Any, Final

from scramp import ScramMechanism
from scramp.utils import h, hmac

from klamm.security.sasl.scram_credential import MIN_ITERATIONS, MIN_SALT_BYTES, ScramCredential

MAX_ITERATIONS: Final = 10_000_000
"""Bounds the work that a client must do. Kafka's tools accept far fewer."""
NONCE_BYTES: Final = 18
"""Random bytes of the broker's part of the nonce: 24 characters. Kafka has 130 bits."""
MAX_FIRST_CHARS: Final = 4096
"""Maximum length of a client's first message, which is kept until the client has proved something."""
MAX_NAME_CHARS: Final = 512
"""Maximum length of a name in it."""
_NONCE: Final = r"r=([\x21-\x2b\x2d-\x7e]+)"
_EXTENSIONS: Final = r"((?:,[A-Za-z]=[^,\0]+)*)"
_CLIENT_FIRST: Final = re.compile(rf"n=([^,\0]+),{_NONCE}{_EXTENSIONS}")
_CLIENT_FINAL: Final = re.compile(rf"(c=([^,\0]+),{_NONCE}{_EXTENSIONS}),p=([^,\0]+)")
_ESCAPED_NAME: Final = re.compile(r"(?:[^=]|=2C|=3D)+")
_RESERVED: Final = frozenset("anmrcspive")
"""Attributes with a meaning. An extension has another letter."""


class ScramMistake(ValueError):
    """The client sent something that RFC 5802 does not allow, or a wrong proof."""


@cache
def _hash_of(mechanism: str) -> Any:
    return ScramMechanism(mechanism).hf


class ScramExchange:
    """`find` returns the credential of a user, None if there is none. Mistakes of the client raise ScramMistake."""

    __slots__ = (
        "_client_first",
        "_client_nonce",
        "_credential",
        "_find",
        "_hash",
        "_header",
        "_nonce",
        "_server_first",
    )

    def __init__(self, mechanism: str, find: Callable[[str], ScramCredential | None]) -> None:
        self._hash = _hash_of(mechanism)
        self._find = find
        self._credential: ScramCredential | None = None

    def begin(self, text: str) -> tuple[str, str]:
        """Return the authorization id of the client's first message, as it was sent, and the answer."""
        if self._credential is not None:
            raise ScramMistake("the exchange has begun already")
        if len(text) > MAX_FIRST_CHARS:
            raise ScramMistake("the first message is too long")
        flag, authorization_id, bare = (*text.split(",", 2), "", "")[:3]
        if flag not in ("n", "y"):
            raise ScramMistake("channel binding is not supported")
        if authorization_id and (authorization_id[:2] != "a=" or len(authorization_id) == 2):
            raise ScramMistake("the authorization id is malformed")
        found = _CLIENT_FIRST.fullmatch(bare)
        if found is None:
            raise ScramMistake("the first message is malformed")
        name, client_nonce, extensions = found.groups()
        _check_extensions(extensions)
        if len(name) > MAX_NAME_CHARS:
            raise ScramMistake("the name is too long")
        credential = self._find(unescaped_name(name))
        if credential is None or not MIN_ITERATIONS <= credential.iterations <= MAX_ITERATIONS:
            raise ScramMistake("the user has no credential")
        if len(credential.salt) < MIN_SALT_BYTES:
            raise ScramMistake("the salt of the credential is too short")
        self._credential = credential
        self._header = f"{flag},{authorization_id},"
        self._client_first, self._client_nonce = bare, client_nonce
        self._nonce = client_nonce + token_urlsafe(NONCE_BYTES)
        salt = _base64(credential.salt)
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return authorization_id[2:], self._server_first

    def finish(self, text: str) -> str:
        """Check the client's proof and return the broker's own."""
        credential = self._credential
        if credential is None:
            raise ScramMistake("the exchange has not begun")
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise ScramMistake("the final message is malformed")
        without_proof, binding, nonce, extensions, proof = found.groups()
        _check_extensions(extensions)
        if a2b_base64(binding, strict_mode=True) != self._header.encode():
            raise ScramMistake("the channel binding differs")
        # librdkafka before 2.6.1 repeats its own part, which Kafka 3.9 accepts and 4.0 does not. The nonce of this
        # exchange must still be whole, so that nobody can use a proof again.
        if nonce not in (self._nonce, self._client_nonce + self._nonce):
            raise ScramMistake("the nonce differs")
        signed = f"{self._client_first},{self._server_first},{without_proof}".encode()
        client_key = _xor(hmac(self._hash, credential.stored_key, signed), a2b_base64(proof, strict_mode=True))
        if not compare_digest(h(self._hash, client_key), credential.stored_key):
            raise ScramMistake("the proof is wrong")
        self._credential = None
        return f"v={_base64(hmac(self._hash, credential.server_key, signed))}"


def unescaped_name(text: str) -> str:
    """Return the name of a user whose commas and equals signs are escaped. Raises ScramMistake."""
    if "=" not in text:
        return text
    if _ESCAPED_NAME.fullmatch(text) is None:
        raise ScramMistake("an equals sign in the name is not escaped")
    return text.replace("=2C", ",").replace("=3D", "=")


def _base64(value: bytes) -> str:
    return b2a_base64(value, newline=False).decode()


def _xor(signature: bytes, proof: bytes) -> bytes:
    if len(proof) != len(signature):
        raise ScramMistake("the proof has another length than the hash")
    return (int.from_bytes(signature, "big") ^ int.from_bytes(proof, "big")).to_bytes(len(proof), "big")


def _check_extensions(text: str) -> None:
    """Extensions are ignored, but an attribute that has a meaning must not appear among them, and none twice."""
    if text:
        letters = [part[0] for part in text[1:].split(",")]
        if not _RESERVED.isdisjoint(letters) or len(set(letters)) < len(letters):
            raise ScramMistake("an extension is not allowed")
