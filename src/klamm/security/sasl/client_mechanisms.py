"""The client's side of each SASL mechanism: bytes out, challenge in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from klamm.errors import KlammError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.sasl.mechanisms import KLAMM_PEER, OAUTHBEARER, PLAIN, SCRAM, SCRAM_SHA_256
from klamm.security.secret import Secret

TokenProvider = Callable[[], str]
"""Returns an OAuth token that is valid now. It may block, so it runs in a thread where that matters."""


class SaslFailure(KlammError):
    """The peer refused the credentials, or its answer does not prove that it knows them."""


@lazy_dataclass(frozen=True, slots=True)
class SaslCredentials:
    """The identity that a client proves, and the mechanism."""

    mechanism: str
    username: str = ""
    password: Secret[str] | None = None
    token: TokenProvider | None = None
    extensions: tuple[tuple[str, str], ...] = ()


class SaslClient(Protocol):
    def first(self) -> bytes:
        """Return the first message."""

    def step(self, challenge: bytes) -> bytes | None:
        """Return the answer to a challenge, None if the exchange is over. Raises SaslFailure."""


def sasl_client(credentials: SaslCredentials) -> SaslClient:
    mechanism = credentials.mechanism
    if mechanism == OAUTHBEARER:
        assert credentials.token is not None, "OAUTHBEARER needs a token provider"
        return _OAuthClient(credentials.token(), credentials.extensions)
    assert credentials.password is not None, f"{mechanism} needs a password"
    if mechanism == PLAIN:
        return _PlainClient(credentials.username, credentials.password)
    if mechanism in SCRAM or mechanism == KLAMM_PEER:
        return _ScramClient(
            SCRAM_SHA_256 if mechanism == KLAMM_PEER else mechanism, credentials.username, credentials.password
        )
    raise SaslFailure(f"{mechanism} is not a mechanism that klamm has.")


class _PlainClient:
    def __init__(self, username: str, password: Secret[str]) -> None:
        self._username = username
        self._password = password

    def first(self) -> bytes:
        return b"\0".join((b"", self._username.encode(), self._password.reveal().encode()))

    def step(self, challenge: bytes) -> bytes | None:
        return None


class _ScramClient:
    def __init__(self, mechanism: str, username: str, password: Secret[str]) -> None:
        from klamm.security.sasl.scram_client import ScramClient  # most connections do not need it

        self._client = ScramClient(mechanism, username, password)
        self._has_proved = False

    def first(self) -> bytes:
        return self._client.first()

    def step(self, challenge: bytes) -> bytes | None:
        try:
            if not self._has_proved:
                self._has_proved = True
                return self._client.prove(challenge)
            self._client.verify(challenge)
        except ValueError as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise SaslFailure(f"The broker's SCRAM message is not acceptable: {reason}.") from None
        return None


class _OAuthClient:
    """RFC 7628. A broker that refuses a token first sends a JSON error, which the client acknowledges."""

    def __init__(self, token: str, extensions: tuple[tuple[str, str], ...]) -> None:
        self._token = Secret(token)
        self._extensions = extensions

    def first(self) -> bytes:
        fields = [f"auth=Bearer {self._token.reveal()}", *(f"{name}={value}" for name, value in self._extensions)]
        return ("n,,\x01" + "".join(f"{field}\x01" for field in fields) + "\x01").encode()

    def step(self, challenge: bytes) -> bytes | None:
        return b"\x01" if challenge else None
