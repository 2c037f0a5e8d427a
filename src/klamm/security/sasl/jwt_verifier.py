"""JwtVerifier: accept tokens that a known key has signed, by the library joserfc. Unsigned ones only if asked for."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from klamm.errors import ConfigError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.sasl.server_mechanisms import SaslMisuse, VerifiedToken

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Signatures with a private key only: a JWKS is public, so it must never serve as a shared secret."""
MAX_TOKEN_BYTES: Final = 64 * 1024


@lazy_dataclass(frozen=True, slots=True)
class TokenRules:
    """Which signed tokens are accepted, by Kafka's keys `sasl.oauthbearer.*`."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    skew_s: int = 30
    user_claim: str = "sub"
    accepts_unsecured: bool = False


class JwtVerifier:
    """`keys` is replaced when the JWKS changes. Owner: the broker loop."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self._keys: Any = None

    def load_keys(self, document: bytes) -> None:
        """Replace the keys by a JWKS. Raises ConfigError."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            self._keys = KeySet.import_key_set(json.loads(document))
        except (JoseError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"The JWKS cannot be used: {type(error).__name__}.") from None

    def verify(self, token: str, now_ms: int) -> VerifiedToken:
        """Return the user and the end of a token. Raises SaslMisuse."""
        if len(token) > MAX_TOKEN_BYTES:
            raise SaslMisuse("the token is too long")
        if self._rules.accepts_unsecured and _header(token).get("alg") == "none":
            return self._check(_unsecured_claims(token), now_ms)
        return self._check(self._signed_claims(token), now_ms)

    def _signed_claims(self, token: str) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        if self._keys is None:
            raise SaslMisuse("no JWKS is loaded, so no signature can be checked")
        try:
            return jwt.decode(token, self._keys, algorithms=list(ALGORITHMS)).claims
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise SaslMisuse(f"the signature of a token is not valid: {type(error).__name__}") from None

    def _check(self, claims: Mapping[str, Any], now_ms: int) -> VerifiedToken:
        rules, now_s = self._rules, now_ms / 1000
        expires, not_before, issued = (_number(claims, name) for name in ("exp", "nbf", "iat"))
        if expires is None or expires + rules.skew_s <= now_s:
            raise SaslMisuse("the token has expired, or has no exp")
        if any(moment is not None and moment - rules.skew_s > now_s for moment in (not_before, issued)):
            raise SaslMisuse("the token is not valid yet")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise SaslMisuse("the token has another issuer")
        if rules.audiences and not any(audience in rules.audiences for audience in _audiences(claims)):
            raise SaslMisuse("the token is for another audience")
        user = claims.get(rules.user_claim)
        if not isinstance(user, str) or not user.strip() or not _is_text(user):
            raise SaslMisuse(f"the token has no {rules.user_claim}")
        return VerifiedToken(user, int(expires * 1000))


def _audiences(claims: Mapping[str, Any]) -> Iterator[str]:
    found = claims.get("aud")
    yield from (each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str))


def _is_text(value: str) -> bool:
    """Whether a string of JSON has no half of a surrogate pair, which no message and no log can contain."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise SaslMisuse(f"the claim {name} is not a time")
    return float(value)


def _header(token: str) -> Mapping[str, Any]:
    return _decoded(token.split(".", 1)[0])


def _unsecured_claims(token: str) -> Mapping[str, Any]:
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise SaslMisuse("an unsigned token must have an empty signature")
    return _decoded(parts[1])


def _decoded(part: str) -> Mapping[str, Any]:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise SaslMisuse("the token is malformed") from None
    if not isinstance(value, dict):
        raise SaslMisuse("the token is malformed")
    return value
