"""Gate: the shared secret that clients of the embedded server must know, if it has one. Pure."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import Id

ALWAYS_ADMITTED: Final = frozenset({OpCode.AUTH, OpCode.SASL, OpCode.CLOSE_SESSION})
"""Requests that a client may send before it has proved itself; pings are answered too."""


def digest_identity(credential: bytes) -> Id:
    """Return the identity of `user:password` in ZooKeeper's scheme digest."""
    user = credential.decode(errors="replace").split(":", 1)[0]
    return Id("digest", f"{user}:{b64encode(hashlib.sha1(credential).digest()).decode()}")


class Gate:
    """Admits connections that have presented `user:password`; without a secret, all of them."""

    def __init__(self, secret: str | None = None) -> None:
        self._identity = None if secret is None else digest_identity(secret.encode())

    @property
    def is_open(self) -> bool:
        return self._identity is None

    def admits(self, auth: Sequence[Id]) -> bool:
        """Whether a connection with these identities may use the server."""
        return self._identity is None or self._identity in auth

    def accepts(self, who: Id) -> bool:
        """Whether the presented identity is the right one."""
        return self._identity is None or hmac.compare_digest(who.id.encode(), self._identity.id.encode())


OPEN_GATE: Final = Gate()
