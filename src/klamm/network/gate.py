"""Gate: decide which frames of a connection pass as requests, and run the SASL exchange with the others. No I/O.

The gate of a connection is closed until its peer has proved who it is, during each exchange, and after a session has
ended. A closed gate lets ApiVersions pass before the exchange, and SaslHandshake begin one. A gate without SASL is
open; a broker may still prove its id there, with the mechanism KLAMM-PEER.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from klamm.errors import ProtocolError
from klamm.network.request_context import ChannelContext
from klamm.protocol.frames import API_VERSIONS, REQUEST_HEADER, Frame, decode_request_header
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.wire import Message, decode
from klamm.security.listener_security import ListenerSecurity
from klamm.security.sasl.mechanisms import KLAMM_PEER
from klamm.security.sasl.server_authenticator import SaslServerAuthenticator, SaslSession, SaslState

HANDSHAKE: Final = SaslHandshakeRequest.KEY
AUTHENTICATE: Final = SaslAuthenticateRequest.KEY
SASL_KEYS: Final = (bytes([0, HANDSHAKE]), bytes([0, AUTHENTICATE]))
"""The first bytes of a frame that the gate must see even when it is open."""
_SHORT_FRAME: Final = 128
MIN_REAUTHENTICATION_S: Final = 1.0
"""A connection may authenticate again once per second, as in Kafka."""

# A lookup in an Enum costs more than a comparison, and a login has a dozen of them.
_IN_HANDSHAKE: Final = SaslState.HANDSHAKE
_IN_TOKENS: Final = SaslState.TOKENS
_COMPLETE: Final = SaslState.COMPLETE
_FAILED: Final = SaslState.FAILED

M = TypeVar("M", bound=Message)


class Answer(NamedTuple):
    """The answer to a frame that did not pass: `message` with a header, or `token` without one, or nothing."""

    key: int = -1
    version: int = 0
    correlation_id: int = 0
    message: Message | None = None
    token: bytes | None = None
    error_code: int = 0
    """The error in `message`."""
    problem: str | None = None
    """Why the authentication failed: the connection ends after a delay."""


class Gate:
    """One per connection. It writes the principal and the proven broker id into the connection's context."""

    __slots__ = (
        "_began_at_s",
        "_context",
        "_exchange",
        "_has_expired",
        "_is_peer",
        "is_closed",
        "security",
        "session",
    )

    def __init__(self, security: ListenerSecurity, context: ChannelContext) -> None:
        self.security = security
        self._context = context
        self._exchange: SaslServerAuthenticator | None = None
        self._is_peer = False
        self._began_at_s = -MIN_REAUTHENTICATION_S
        self.session: SaslSession | None = None
        """The session of the last successful exchange, except for a broker's proof."""
        self._has_expired = False
        self.is_closed = security.has_tls or security.has_sasl
        if security.has_sasl:
            assert security.sasl is not None, "a SASL listener has mechanisms"
            self._exchange = SaslServerAuthenticator(security.sasl)

    @property
    def expects_token(self) -> bool:
        """Whether the next frame carries a password or a proof."""
        exchange = self._exchange
        return exchange is not None and exchange.state is not _IN_HANDSHAKE

    @property
    def max_receive_bytes(self) -> int | None:
        """The limit of a frame before the connection has proved anything."""
        sasl = self.security.sasl
        return sasl.max_receive_bytes if sasl is not None and self.session is None else None

    @property
    def refusal(self) -> str:
        """Why a token was refused and counted as a failure, although the exchange has not ended; empty if none was."""
        exchange = self._exchange
        return "" if exchange is None else exchange.refusal

    def pass_certificate(self, certificate_der: bytes | None) -> bool:
        """Accept the peer of a finished TLS handshake. Returns False if no mapping rule accepts its name."""
        if self.security.has_sasl:
            return True
        principal = self.security.principal_of(certificate_der)
        if principal is None:
            return False
        self._context.principal = principal
        self.is_closed = False
        self.security.counts.succeeded += 1
        return True

    def expire(self) -> None:
        """End the session: the next request closes the connection, unless it begins an exchange."""
        self.is_closed = self._has_expired = True

    def receive(self, frame: Frame, now_ms: int, now_s: float) -> Answer | None:
        """Return None if the frame passes as a request. Raises ProtocolError if the connection must be closed.

        Tokens expire by the wall clock (`now_ms`); the time between two exchanges is one of the monotonic clock.
        """
        exchange = self._exchange
        state = None if exchange is None else exchange.state
        if exchange is not None and state is _IN_TOKENS:
            return self._token(exchange, bytes(frame), now_ms)
        if state is _FAILED:
            raise ProtocolError("its authentication has failed")
        if len(frame) < REQUEST_HEADER.size:
            raise ProtocolError(f"a request of {len(frame)} bytes has no header")
        key, version, correlation_id, _ = REQUEST_HEADER.unpack_from(frame)
        if exchange is None:
            return self._begin(frame, key, version, correlation_id, now_s)
        if state is _IN_HANDSHAKE:
            if key == API_VERSIONS:
                return None
            if key == HANDSHAKE:
                return self._handshake(exchange, frame, version, correlation_id)
            return self._fail(exchange, f"Unexpected Kafka request of type {key} during SASL handshake.")
        if key == AUTHENTICATE:
            return self._authenticate(exchange, frame, version, correlation_id, now_ms)
        return self._fail(exchange, f"Unexpected Kafka request of type {key} during SASL authentication.")

    def _begin(self, frame: Frame, key: int, version: int, correlation_id: int, now_s: float) -> Answer | None:
        """Begin a further exchange on a connection that is open, or whose session has ended."""
        security = self.security
        exchange: SaslServerAuthenticator | None = None
        if key == HANDSHAKE:
            is_peer = mechanism_of(frame, version) == KLAMM_PEER
            if is_peer and security.peer is not None and not self.is_closed:
                exchange = SaslServerAuthenticator(security.peer)
            elif not is_peer and self._may_authenticate_again(now_s):
                assert security.sasl is not None
                exchange = SaslServerAuthenticator(security.sasl, self.session)
                self._began_at_s = now_s
            self._is_peer = is_peer
        if exchange is not None:
            self._exchange, self.is_closed = exchange, True
            return self._handshake(exchange, frame, version, correlation_id)
        if self.is_closed:
            security.counts.expired += self.session is not None
            raise ProtocolError("its session has ended" if self.session is not None else "it has not authenticated")
        return None

    def _may_authenticate_again(self, now_s: float) -> bool:
        session = self.session
        has_end = session is not None and session.lifetime_ms is not None
        return has_end and now_s - self._began_at_s >= MIN_REAUTHENTICATION_S

    def _handshake(self, exchange: SaslServerAuthenticator, frame: Frame, version: int, correlation_id: int) -> Answer:
        response = exchange.handshake(mechanism_of(frame, version), version)
        if exchange.state is _IN_TOKENS and self._is_peer:
            exchange.fail("a broker must prove its id with SaslAuthenticate")
        problem = self._end_if_failed(exchange) if exchange.state is _FAILED else None
        return Answer(HANDSHAKE, version, correlation_id, response, None, response.error_code, problem)

    def _authenticate(
        self, exchange: SaslServerAuthenticator, frame: Frame, version: int, correlation_id: int, now_ms: int
    ) -> Answer:
        was_refused = bool(exchange.refusal)
        response = exchange.authenticate(auth_bytes_of(frame, version), now_ms)
        problem = None
        if exchange.state is _COMPLETE:
            self._complete(exchange, knows_sessions=version > 0)
        elif exchange.state is _FAILED:
            problem = self._end_if_failed(exchange, is_counted=was_refused)
        elif exchange.refusal:
            self._count_failed_exchange()
        return Answer(AUTHENTICATE, version, correlation_id, response, None, response.error_code, problem)

    def _token(self, exchange: SaslServerAuthenticator, token: bytes, now_ms: int) -> Answer:
        was_refused = bool(exchange.refusal)
        challenge = exchange.token(token, now_ms)
        if exchange.state is _COMPLETE:
            self._complete(exchange, knows_sessions=False)
        elif exchange.refusal and not was_refused:
            self._count_failed_exchange()
        return Answer(token=challenge, problem=self._end_if_failed(exchange, is_counted=was_refused))

    def _complete(self, exchange: SaslServerAuthenticator, *, knows_sessions: bool) -> None:
        session, context, counts = exchange.session, self._context, self.security.counts
        assert session is not None
        self._exchange = None
        if self._is_peer:
            self.is_closed = self._has_expired  # The session may have ended during the proof, which does not renew it.
            context.peer_broker_id = int(session.user)
            self._is_peer = False
            return
        self.is_closed = self._has_expired = False
        if self.session is None:
            counts.succeeded += 1
            counts.without_reauthentication += not knows_sessions
        else:
            counts.succeeded_again += 1
        self.session = session
        context.principal = f"User:{session.user}"

    def count_failure(self) -> None:
        """Count an authentication that failed: also a TLS handshake, or one that took too long."""
        self.security.counts.failed += 1

    def _fail(self, exchange: SaslServerAuthenticator, problem: str) -> Answer:
        exchange.fail(problem)
        return Answer(problem=self._end_if_failed(exchange, is_counted=bool(exchange.refusal)))

    def _end_if_failed(self, exchange: SaslServerAuthenticator, *, is_counted: bool = False) -> str | None:
        if exchange.state is not _FAILED:
            return None
        self.is_closed = True
        if not is_counted:
            self._count_failed_exchange()
        return exchange.problem

    def _count_failed_exchange(self) -> None:
        if self.session is None or self._is_peer:
            self.count_failure()
        else:
            self.security.counts.failed_again += 1


def mechanism_of(frame: Frame, version: int) -> str:
    if len(frame) <= _SHORT_FRAME and type(frame) is bytes:
        return _mechanism_of_short(frame[:4] + frame[8:], version)
    return _decoded(SaslHandshakeRequest, frame, version).mechanism


@lru_cache(maxsize=64)
def _mechanism_of_short(frame: bytes, version: int) -> str:
    """Decode a frame that lacks its correlation id: without it, equal clients send equal bytes, which are cached."""
    return _decoded(SaslHandshakeRequest, frame[:4] + bytes(4) + frame[4:], version).mechanism


def auth_bytes_of(frame: Frame, version: int) -> bytes:
    """Return the token of SaslAuthenticate. Versions 0 and 1 hold nothing else."""
    if 0 <= version <= 1 and type(frame) is bytes:
        at = _body_position(frame, is_flexible=False) + 4
        if int.from_bytes(frame[at - 4 : at], "big") == len(frame) - at:
            return frame[at:]
    return bytes(_decoded(SaslAuthenticateRequest, frame, version).auth_bytes)


def _decoded(request: type[M], frame: Frame, version: int) -> M:
    if version not in request.VERSIONS:
        raise ProtocolError(f"version {version} of API key {request.KEY} is not served")
    return decode(request, version, frame, _body_position(frame, is_flexible=version >= request.FLEXIBLE))[0]


def _body_position(frame: Frame, *, is_flexible: bool) -> int:
    """Skip the header. One with a client id in ASCII and without tagged fields needs no closer look."""
    end = 10 + (frame[8] << 8 | frame[9])
    if frame[8] < 0x80 and end < len(frame) and frame[10:end].isascii():
        if not is_flexible:
            return end
        if frame[end] == 0:
            return end + 1
    return decode_request_header(frame)[1]
