"""A connection whose peer may have credentials, and a model of when its gate is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from klamm.model import SecurityProtocol
from klamm.network.gate import Answer
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.security.listener_security import ANONYMOUS
from klamm.security.sasl.client_mechanisms import SaslClient
from klamm.security.sasl.mechanisms import FOR_CLIENTS, KLAMM_PEER, PLAIN, SCRAM
from tests.unit.security import sasl_peer

Step = tuple[str, str | bytes, int]
"""A kind of step, its argument, and the version of its request."""
BROKER_ID = 12


@dataclass
class Exchange:
    """An exchange that the broker has begun. One that is spoiled got something else than the right tokens."""

    mechanism: str
    version: int
    client: SaslClient | None = None
    user: str = ""
    token: bytes = b""
    is_spoiled: bool = False


class ModelledPeer:
    """Takes steps on a connection. The model knows which tokens are right, and nothing of the gate's inside.

    The gate is open if the peer has logged in, its session has not ended since, nothing has failed, and no exchange is
    under way. A proof of a broker does not renew a session. Without SASL and TLS it is open from the beginning.
    """

    def __init__(self, protocol: SecurityProtocol, max_reauth_ms: int) -> None:
        self.peer = sasl_peer.Peer(protocol, sasl_peer.settings(dict.fromkeys(FOR_CLIENTS, max_reauth_ms)))
        self._is_known = protocol is SecurityProtocol.PLAINTEXT
        self._has_ended = self._has_failed = False
        self._exchange: Exchange | None = None
        self._login: tuple[str, str] | None = None
        self._broker_id: int | None = None

    @property
    def is_open(self) -> bool:
        return self._is_known and not self._has_ended and not self._has_failed and self._exchange is None

    def check(self) -> None:
        gate, context = self.peer.gate, self.peer.context
        assert gate.is_closed != self.is_open
        assert context.principal == (ANONYMOUS if self._login is None else f"User:{self._login[1]}")
        assert context.peer_broker_id == self._broker_id

    def take(self, step: Step) -> None:
        """Raises ProtocolError if the broker closes the connection."""
        kind, argument, version = step
        match kind:
            case "handshake":
                self._begin(str(argument), version)
            case "token":
                self._send_token(str(argument), version)
            case "authenticate":
                assert isinstance(argument, bytes)
                self._note(self.peer.send(SaslAuthenticateRequest(auth_bytes=argument), version))
            case "frame":
                assert isinstance(argument, bytes)
                self._pass(self.peer.send_bytes(argument), always=argument[:2] == b"\0\x12")
            case "metadata":
                self._pass(self.peer.metadata())
            case "versions":
                self._pass(self.peer.api_versions(), always=True)
            case "expire":
                self._expire()
            case _:
                self.peer.now_ms += 2_000

    def _pass(self, answer: Answer | None, *, always: bool = False) -> None:
        assert answer is not None or self.is_open or always, "a request has passed a closed gate"
        self._note(answer)

    def _note(self, answer: Answer | None) -> None:
        """Account for something that is not a right token."""
        if answer is None:
            return
        if answer.problem is not None:
            self._has_failed = True
        elif self._exchange is None:
            self._exchange = Exchange("", 0, is_spoiled=True)
        else:
            self._exchange.is_spoiled = True

    def _begin(self, mechanism: str, version: int) -> None:
        was_open = self.is_open
        answer = self.peer.send(SaslHandshakeRequest(mechanism=mechanism), version)
        if answer is None or answer.problem is not None or self._exchange is not None:
            self._pass(answer)
            return
        assert was_open or mechanism != KLAMM_PEER, "a proof is not an authentication"
        self._exchange = Exchange(mechanism, version)

    def _send_token(self, user: str, version: int) -> None:
        """Send the right token of the exchange, or a right password out of place."""
        exchange = self._exchange
        if exchange is None or exchange.is_spoiled:
            password = sasl_peer.client_of(PLAIN, user).first()
            self._note(self.peer.send(SaslAuthenticateRequest(auth_bytes=password), version))
            return
        if exchange.client is None:
            exchange.user = str(BROKER_ID) if exchange.mechanism == KLAMM_PEER else user
            exchange.client = sasl_peer.client_of(exchange.mechanism, exchange.user)
            exchange.token = exchange.client.first()
        if exchange.version == 0:
            answer = self.peer.send_bytes(exchange.token)
        else:
            answer = self.peer.send(SaslAuthenticateRequest(auth_bytes=exchange.token), version)
        assert answer is not None, "a token has passed as a request"
        if answer.problem is not None:
            self._has_failed = True
            return
        message: Any = answer.message
        challenge = answer.token if exchange.version == 0 else message.auth_bytes
        assert challenge is not None
        token = exchange.client.step(bytes(challenge))
        if token is None:
            self._complete(exchange)
        else:
            exchange.token = token

    def _complete(self, exchange: Exchange) -> None:
        self._exchange = None
        if exchange.mechanism == KLAMM_PEER:
            self._broker_id = BROKER_ID
            return
        login = exchange.mechanism, exchange.user
        assert self._login in (None, login), "the identity of a connection has changed"
        self._login, self._is_known, self._has_ended = login, True, False

    def _expire(self) -> None:
        """Let the timer of the session end it, if there is one."""
        session = self.peer.gate.session
        if session is not None and session.lifetime_ms is not None:
            self.peer.now_ms += session.lifetime_ms
            self.peer.gate.expire()
            self._has_ended = True


def login(mechanism: str, user: str = "alice", version: int = 1) -> list[Step]:
    """The steps of a whole exchange with right tokens."""
    tokens = 2 if mechanism in SCRAM or mechanism == KLAMM_PEER else 1
    return [("handshake", mechanism, version), *[("token", user, 1)] * tokens]
