"""The broker's side of each SASL mechanism: a client's message in, a challenge out. Passwords never leave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from klamm.errors import KlammError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.sasl.mechanisms import SCRAM_SHA_256
from klamm.security.sasl.scram_credential import MIN_ITERATIONS, ScramCredential
from klamm.security.secret import is_same


class SaslRefusal(KlammError):
    """The client is refused, with a reason that it may read."""


class SaslMisuse(KlammError):
    """The client is refused, with a reason for the broker's log only: the client reads a general sentence."""


@lazy_dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The claims of a token that its verifier accepted."""

    user: str
    expires_at_ms: int


Credentials = Callable[[str], ScramCredential | None]
TokenVerifier = Callable[[str, int], VerifiedToken]
"""Takes a token and the time; raises SaslMisuse."""


class SaslServer(Protocol):
    is_complete: bool
    user: str
    """The name of the client, when the exchange is complete."""
    expires_at_ms: int | None
    """When the credential ends, if it does."""

    def step(self, message: bytes, now_ms: int) -> bytes:
        """Return the next challenge, or the last one with `is_complete`. Raises SaslRefusal and SaslMisuse."""


class PlainServer:
    """RFC 4616. The passwords come from the broker's own configuration."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.is_complete = False
        self.user = ""
        self.expires_at_ms: int | None = None

    def step(self, message: bytes, now_ms: int) -> bytes:
        tokens = message.decode("utf-8", "replace").split("\0", 3)
        if len(tokens) != 3:
            raise SaslRefusal(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(tokens)}")
        authorization_id, username, password = tokens
        if not username:
            raise SaslRefusal("Authentication failed: username not specified")
        if not password:
            raise SaslRefusal("Authentication failed: password not specified")
        expected = self._users.get(username)
        is_right = is_same(password, expected if expected is not None else password + ".")
        if not is_right:
            raise SaslRefusal("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != username:
            raise SaslRefusal(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user, self.is_complete = username, True
        return b""


class ScramServer:
    """RFC 5802, in the library scramp. The broker never learns the password."""

    def __init__(self, mechanism: str, credentials: Credentials) -> None:
        from scramp import ScramException, ScramMechanism  # slow to import, and only SCRAM needs it

        self._error = ScramException
        self._credentials = credentials
        self._exchange = ScramMechanism(mechanism).make_server(self._credential)
        self._has_begun = False
        self._username = ""
        self.is_complete = False
        self.user = ""
        self.expires_at_ms: int | None = None

    def step(self, message: bytes, now_ms: int) -> bytes:
        try:
            text = message.decode()
            answer = self._finish(text) if self._has_begun else self._begin(text)
        except (self._error, UnicodeDecodeError, ValueError) as error:
            raise SaslMisuse(f"the SCRAM exchange failed: {type(error).__name__}") from None
        return answer.encode()

    def _begin(self, text: str) -> str:
        self._has_begun = True
        flag, authorization_id, rest = (*text.split(",", 2), "", "")[:3]
        self._exchange.set_client_first(f"{flag},,{rest}")
        if authorization_id and authorization_id.removeprefix("a=") != self._username:
            raise SaslRefusal(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        first: str = self._exchange.get_server_first()
        return first

    def _finish(self, text: str) -> str:
        self._admit_doubled_nonce(text)
        self._exchange.set_client_final(text)
        last: str = self._exchange.get_server_final()
        self.user, self.is_complete = self._username, True
        return last

    def _admit_doubled_nonce(self, text: str) -> None:
        """Accept the nonce of librdkafka before 2.6.1, which repeats its own part, as Kafka 3.9 does and 4.0 does not.

        The nonce of this exchange must still be whole, so that nobody can use a proof again.
        """
        nonce = self._exchange.nonce
        own_part = str(nonce).removesuffix(str(self._exchange.s_nonce))
        if f"r={own_part}{nonce}" in text.split(","):
            self._exchange.nonce = type(nonce)(f"{own_part}{nonce}")

    def _credential(self, username: str) -> tuple[bytes, bytes, bytes, int] | None:
        """Scramp asks for the credential of the user whom the client names."""
        self._username = username
        found = self._credentials(username)
        if found is None or found.iterations < MIN_ITERATIONS:
            return None
        return found.salt, found.stored_key, found.server_key, found.iterations


class PeerServer(ScramServer):
    """KLAMM-PEER: the user is a broker id, the password the cluster's secret."""

    def __init__(self, credential: ScramCredential) -> None:
        super().__init__(SCRAM_SHA_256, lambda name: credential if _is_broker_id(name) else None)


def _is_broker_id(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= 10 and int(name) < 2**31


class OAuthServer:
    """RFC 7628. A refused token is answered with a JSON error first, which the client acknowledges."""

    def __init__(self, verify: TokenVerifier) -> None:
        self._verify = verify
        self._refusal: str | None = None
        self.is_complete = False
        self.user = ""
        self.expires_at_ms: int | None = None

    def step(self, message: bytes, now_ms: int) -> bytes:
        if self._refusal is not None:
            raise SaslRefusal(self._refusal)
        authorization_id, token = _initial_response(message)
        try:
            verified = self._verify(token, now_ms)
        except SaslMisuse:
            self._refusal = '{"status":"invalid_token"}'
            return self._refusal.encode()
        if authorization_id and authorization_id != verified.user:
            raise SaslRefusal(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({verified.user})"
            )
        self.user, self.expires_at_ms, self.is_complete = verified.user, verified.expires_at_ms, True
        return b""


def _initial_response(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token. Raises SaslMisuse."""
    try:
        head, *fields = message.decode("ascii").split("\x01")
    except UnicodeDecodeError:
        raise SaslMisuse("the OAUTHBEARER message is not ASCII") from None
    match head.split(","):
        case ["n", authorization_id, ""] if len(fields) >= 3 and fields[-2:] == ["", ""]:
            pass
        case _:
            raise SaslMisuse("the OAUTHBEARER message is malformed")
    auth = [field.partition("=")[2] for field in fields if field.startswith("auth=")]
    if len(auth) != 1 or auth[0][:7].lower() != "bearer ":
        raise SaslMisuse("the OAUTHBEARER message has no bearer token")
    return authorization_id.removeprefix("a="), auth[0][7:].strip()
