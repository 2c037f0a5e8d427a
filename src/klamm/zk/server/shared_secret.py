"""Gate: the shared secret that clients of the embedded server must know, if it has one. Pure."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from klamm.zk.model.jute import OpCode
from klamm.zk.model.limits import MAX_CREDENTIAL_BYTES, MAX_CREDENTIALS
from klamm.zk.model.ops import AuthFailed, Id

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
    def identity(self) -> Id | None:
        """The one identity that is admitted; None if everybody is."""
        return self._identity

    @property
    def is_open(self) -> bool:
        return self._identity is None

    def admits(self, auth: Sequence[Id]) -> bool:
        """Whether a connection with these identities may use the server."""
        return self._identity is None or self._identity in auth

    def identify(self, known: Sequence[Id], scheme: str, credential: bytes) -> Sequence[Id]:
        """Return the identities of a connection after it has presented one more. Raises AuthFailed."""
        if scheme != "digest":
            raise AuthFailed(message=f"authentication scheme {scheme!r} is not supported")
        who = digest_identity(credential)
        if self._identity is not None and not hmac.compare_digest(who.id.encode(), self._identity.id.encode()):
            raise AuthFailed(message="the shared secret is another one")
        if who in known:
            return known
        size = sum(len(each.id.encode()) for each in (*known, who))
        if len(known) > MAX_CREDENTIALS or size > MAX_CREDENTIAL_BYTES:
            raise AuthFailed(message=f"more than {MAX_CREDENTIALS} identities, or {MAX_CREDENTIAL_BYTES} bytes")
        return (*known, who)


OPEN_GATE: Final = Gate()
