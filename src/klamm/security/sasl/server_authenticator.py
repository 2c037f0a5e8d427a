"""SaslServerAuthenticator: one SASL exchange of a connection, as the broker sees it. No I/O, time as an argument.

The messages are Kafka's: SaslHandshake chooses the mechanism. After version 1 the exchange continues in
SaslAuthenticate requests, after version 0 in frames that hold nothing but a token. An error ends the exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeResponse
from klamm.security.sasl.server_mechanisms import SaslMisuse, SaslRefusal, SaslServer, TokenRefusal

DEFAULT_MAX_RECEIVE_BYTES: Final = 512 * 1024


class SaslState(Enum):
    HANDSHAKE = "handshake"
    """The client must choose a mechanism."""
    AUTHENTICATE = "authenticate"
    """Tokens come in SaslAuthenticate requests."""
    TOKENS = "tokens"
    """Tokens come in frames of their own."""
    BAD_MECHANISM = "bad mechanism"
    """The client changed the mechanism; its next token is refused, as in Kafka."""
    COMPLETE = "complete"
    FAILED = "failed"


@lazy_dataclass(frozen=True, slots=True)
class SaslSettings:
    """The mechanisms of a listener. `max_reauth_ms` bounds a session by mechanism; 0 means no bound."""

    mechanisms: Mapping[str, Callable[[], SaslServer]]
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    max_receive_bytes: int = DEFAULT_MAX_RECEIVE_BYTES


@lazy_dataclass(frozen=True, slots=True)
class SaslSession:
    """The result of an exchange. `lifetime_ms` is None if the session does not end."""

    mechanism: str
    user: str
    lifetime_ms: int | None


class SaslServerAuthenticator:
    """`previous` is the session of a connection that authenticates again: user and mechanism must stay the same."""

    __slots__ = ("_mechanism", "_previous", "_server", "_settings", "problem", "refusal", "session", "state")

    def __init__(self, settings: SaslSettings, previous: SaslSession | None = None) -> None:
        self._settings = settings
        self._previous = previous
        self._mechanism = ""
        self._server: SaslServer | None = None
        self.state = SaslState.HANDSHAKE
        self.session: SaslSession | None = None
        self.problem = ""
        """Why the exchange failed, for the log. It never has a secret."""
        self.refusal = ""
        """Why a token was refused, for the log. The exchange fails when the client acknowledges it."""

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        assert self.state is SaslState.HANDSHAKE
        offered = list(self._settings.mechanisms)
        make = self._settings.mechanisms.get(mechanism)
        if make is None:
            self._fail(f"Unsupported SASL mechanism {mechanism[:64]!r}")
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
        if self._previous is not None and self._previous.mechanism != mechanism:
            self.state = SaslState.BAD_MECHANISM
        else:
            self._server = make()
            self.state = SaslState.AUTHENTICATE if version >= 1 else SaslState.TOKENS
        self._mechanism = mechanism
        return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=offered)

    def authenticate(self, token: bytes, now_ms: int) -> SaslAuthenticateResponse:
        """Answer a SaslAuthenticate request. After an error `state` is FAILED."""
        try:
            challenge = self._step(token, now_ms)
        except (SaslRefusal, SaslMisuse) as refusal:
            self._fail(str(refusal))
            message = str(refusal) if isinstance(refusal, SaslRefusal) else self._general_refusal
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message, auth_bytes=b""
            )
        session = self.session
        lifetime_ms = 0 if session is None or session.lifetime_ms is None else session.lifetime_ms
        return SaslAuthenticateResponse(
            error_code=0, error_message=None, auth_bytes=challenge, session_lifetime_ms=lifetime_ms
        )

    def token(self, token: bytes, now_ms: int) -> bytes | None:
        """Answer a frame that holds a token; None after an error, which is not answered."""
        try:
            return self._step(token, now_ms)
        except (SaslRefusal, SaslMisuse) as refusal:
            self._fail(str(refusal))
            return None

    def fail(self, problem: str) -> None:
        """End the exchange, because the client sent something else."""
        self._fail(problem)

    def _step(self, token: bytes, now_ms: int) -> bytes:
        server = self._server
        if server is None:
            assert self.state is SaslState.BAD_MECHANISM and self._previous is not None
            raise SaslRefusal(
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._previous.mechanism}'"
            )
        try:
            challenge = server.step(token, now_ms)
        except TokenRefusal as refused:
            self.refusal = str(refused)
            return refused.challenge
        if server.is_complete:
            self._complete(server, now_ms)
        return challenge

    def _complete(self, server: SaslServer, now_ms: int) -> None:
        previous = self._previous
        if previous is not None and previous.user != server.user:
            raise SaslRefusal(
                f"Cannot change principals during re-authentication from User.{previous.user}: User.{server.user}"
            )
        self.session = SaslSession(self._mechanism, server.user, self._lifetime_ms(server, now_ms))
        self.state = SaslState.COMPLETE
        self._server = None

    def _lifetime_ms(self, server: SaslServer, now_ms: int) -> int | None:
        limit = self._settings.max_reauth_ms.get(self._mechanism, 0)
        if server.expires_at_ms is None:
            return limit if limit > 0 else None
        rest = max(0, server.expires_at_ms - now_ms)
        return min(limit, rest) if limit > 0 else rest

    @property
    def _general_refusal(self) -> str:
        what = "authentication" if self._previous is None else "re-authentication"
        return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self._mechanism}"

    def _fail(self, problem: str) -> None:
        self.state, self.problem, self._server = SaslState.FAILED, self.refusal or problem, None
