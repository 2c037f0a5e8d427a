"""The broker's side of each SASL mechanism: a client's message in, a challenge out. Passwords never leave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from klamm.errors import KlammError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.sasl.mechanisms import SCRAM_SHA_256
from klamm.security.sasl.scram_credential import MIN_ITERATIONS, ScramCredential
from klamm.security.secret import is_same

if TYPE_CHECKING:
    from klamm.security.sasl.scram_exchange import ScramExchange


class SaslRefusal(KlammError):
    """The client is refused, with a reason that it may read."""


class SaslMisuse(KlammError):
    """The client is refused, with a reason for the broker's log only: the client reads a general sentence."""


class TokenRefusal(KlammError):
    """A token is refused, with a reason for the broker's log only. The client reads `challenge` and acknowledges it."""

    def __init__(self, reason: str, challenge: bytes) -> None:
        super().__init__(reason)
        self.challenge = challenge


@lazy_dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The claims of a token that its verifier accepted."""

    user: str
    expires_at_ms: int


_INVALID_TOKEN: Final = '{"status":"invalid_token"}'
_SHOWN: Final = 64
"""Characters of a user's name that are logged."""
Credentials = Callable[[str], ScramCredential | None]
Decoys = Callable[[str], ScramCredential]
"""Returns a credential for a name that no user has. Nobody knows its password."""
TokenVerifier = Callable[[str, int], VerifiedToken]
"""Takes a token and the time; raises SaslMisuse."""


class SaslServer(Protocol):
    is_complete: bool
    user: str
    """The name of the client, when the exchange is complete."""
    expires_at_ms: int | None
    """When the credential ends, if it does."""

    def step(self, message: bytes, now_ms: int) -> bytes:
        """Return the next challenge, or the last one with `is_complete`.

        Raises SaslRefusal, SaslMisuse and TokenRefusal.
        """


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


@cache
def _scram_exchange() -> type[ScramExchange]:
    from klamm.security.sasl.scram_exchange import ScramExchange  # scramp is slow to import, only SCRAM needs it

    return ScramExchange


class ScramServer:
    """RFC 5802, with the keys of the library scramp. The broker never learns the password.

    With `decoys`, a name that no user has is challenged like any other, and refused when its proof arrives: otherwise
    the first answer shows which names exist.
    """

    __slots__ = (
        "_credentials",
        "_decoys",
        "_exchange",
        "_has_begun",
        "_problem",
        "_username",
        "expires_at_ms",
        "is_complete",
        "user",
    )

    def __init__(self, mechanism: str, credentials: Credentials, decoys: Decoys | None = None) -> None:
        self._credentials = credentials
        self._decoys = decoys
        self._exchange = _scram_exchange()(mechanism, self._credential)
        self._has_begun = False
        self._username = ""
        self._problem = ""
        """For the log. It names existing users only: people type passwords where a name is expected."""
        self.is_complete = False
        self.user = ""
        self.expires_at_ms: int | None = None

    def step(self, message: bytes, now_ms: int) -> bytes:
        try:
            text = message.decode()
            answer = self._finish(text) if self._has_begun else self._begin(text)
        except ValueError as error:
            raise SaslMisuse(self._problem or f"the SCRAM exchange failed: {type(error).__name__}") from None
        return answer.encode()

    def _begin(self, text: str) -> str:
        self._has_begun = True
        authorization_id, first = self._exchange.begin(text)
        if authorization_id and authorization_id != self._username:
            raise SaslRefusal(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return first

    def _finish(self, text: str) -> str:
        try:
            last = self._exchange.finish(text)
        except ValueError:
            self._problem = self._problem or f"the password of {self._username[:_SHOWN]!r} is wrong"
            raise
        if self._problem:
            raise ValueError(self._problem)
        self.user, self.is_complete = self._username, True
        return last

    def _credential(self, username: str) -> ScramCredential | None:
        """Find the credential of the user whom the client names."""
        self._username = username
        decoy = (
            None if self._decoys is None else self._decoys(username)
        )  # for every name, so that it takes the same time
        found = self._credentials(username)
        if found is None or found.iterations < MIN_ITERATIONS:
            self._problem = "no user of that name has a password for this mechanism"
            return decoy
        return found


class PeerServer(ScramServer):
    """KLAMM-PEER: the user is a broker id, the password the cluster's secret."""

    __slots__ = ()

    def __init__(self, credential: ScramCredential) -> None:
        super().__init__(SCRAM_SHA_256, lambda name: credential if _is_broker_id(name) else None)


def _is_broker_id(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= 10 and int(name) < 2**31


class OAuthServer:
    """RFC 7628. A refused token is answered with a JSON error first, which the client acknowledges."""

    def __init__(self, verify: TokenVerifier) -> None:
        self._verify = verify
        self._is_refused = False
        self.is_complete = False
        self.user = ""
        self.expires_at_ms: int | None = None

    def step(self, message: bytes, now_ms: int) -> bytes:
        if self._is_refused:
            raise SaslRefusal(_INVALID_TOKEN)
        authorization_id, token = _initial_response(message)
        try:
            verified = self._verify(token, now_ms)
        except SaslMisuse as error:
            self._is_refused = True
            raise TokenRefusal(str(error), _INVALID_TOKEN.encode()) from None
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
