"""Tokens: signatures of known keys only, and the attacks on JWT that are known by name."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from klamm.errors import ConfigError
from klamm.security.sasl.jwt_verifier import MAX_TOKEN_BYTES, JwtVerifier, TokenRules
from klamm.security.sasl.server_mechanisms import SaslMisuse
from klamm.security.sasl.token_source import unsecured_token

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"}, private=True)
EC = ECKey.generate_key("P-256", {"kid": "ec"}, private=True)
JWKS = json.dumps({"keys": [RSA.as_dict(private=False), EC.as_dict(private=False)]}).encode()
CLAIMS = {"sub": "alice", "exp": NOW_S + 600, "iat": NOW_S, "iss": "https://issuer", "aud": ["kafka", "other"]}


def verifier(**rules: Any) -> JwtVerifier:
    made = JwtVerifier(TokenRules(**rules))
    made.load_keys(JWKS)
    return made


def signed(algorithm: str = "RS256", key: Any = RSA, kid: str | None = "rsa", **claims: Any) -> str:
    header = {"alg": algorithm} | ({"kid": kid} if kid else {})
    return jwt.encode(header, CLAIMS | claims, key, algorithms=[algorithm])


@pytest.mark.parametrize(("algorithm", "key", "kid"), [("RS256", RSA, "rsa"), ("ES256", EC, "ec")])
def test_a_signed_token_names_its_user(algorithm: str, key: Any, kid: str) -> None:
    found = verifier(issuer="https://issuer", audiences=("kafka",)).verify(signed(algorithm, key, kid), NOW_MS)
    assert (found.user, found.expires_at_ms) == ("alice", NOW_MS + 600_000)


def test_another_claim_can_name_the_user() -> None:
    assert verifier(user_claim="email").verify(signed(email="a@b"), NOW_MS).user == "a@b"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW_S - 31},
        {"exp": None},
        {"exp": True},
        {"exp": 1e300},
        {"nbf": NOW_S + 31},
        {"iat": NOW_S + 31},
        {"iss": "https://another"},
        {"aud": "another"},
        {"aud": []},
        {"aud": 7},
        {"aud": [["kafka"], {}]},
        {"sub": ""},
        {"sub": 7},
    ],
)
def test_a_claim_that_does_not_fit_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(SaslMisuse):
        verifier(issuer="https://issuer", audiences=("kafka",)).verify(signed(**claims), NOW_MS)


def test_half_of_a_character_is_not_a_user() -> None:
    with pytest.raises(SaslMisuse, match="has no sub"):
        verifier(accepts_unsecured=True).verify(unsecured_token(CLAIMS | {"sub": "\ud800"}), NOW_MS)


def test_clocks_may_differ_a_little() -> None:
    assert verifier().verify(signed(exp=NOW_S - 29, iat=NOW_S + 29), NOW_MS).user == "alice"


def test_a_stranger_cannot_sign() -> None:
    other = RSAKey.generate_key(2048, {"kid": "rsa"}, private=True)
    with pytest.raises(SaslMisuse, match="not valid"):
        verifier().verify(signed(key=other), NOW_MS)


def test_the_public_key_is_not_a_shared_secret() -> None:
    """The classic confusion: HMAC with the public key, which everybody has, as its secret."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"rsa"}').decode().rstrip("=")
    content = f"{head}.{signed().split('.')[1]}"
    for secret in (RSA.as_pem(private=False), RSA.as_der(private=False), b""):
        signature = hmac.digest(secret, content.encode(), "sha256")
        token = f"{content}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
        with pytest.raises(SaslMisuse):
            verifier().verify(token, NOW_MS)


@pytest.mark.parametrize("alg", ["none", "None", "NONE"])
def test_unsigned_tokens_are_refused_unless_they_are_asked_for(alg: str) -> None:
    """RFC 7518 spells it `none`. Other spellings, which pass a filter that looks for it, are never accepted."""
    head = base64.urlsafe_b64encode(json.dumps({"alg": alg}).encode()).decode().rstrip("=")
    token = f"{head}.{unsecured_token(CLAIMS).split('.')[1]}."
    with pytest.raises(SaslMisuse):
        verifier().verify(token, NOW_MS)
    lenient = verifier(accepts_unsecured=True)
    if alg == "none":
        assert lenient.verify(token, NOW_MS).user == "alice"
    else:
        with pytest.raises(SaslMisuse):
            lenient.verify(token, NOW_MS)


def test_an_unsigned_token_with_a_signature_is_refused() -> None:
    with pytest.raises(SaslMisuse):
        verifier(accepts_unsecured=True).verify(unsecured_token(CLAIMS) + "abc", NOW_MS)


def test_a_changed_token_is_refused() -> None:
    head, body, signature = signed().split(".")
    other = unsecured_token(CLAIMS | {"sub": "admin"}).split(".")[1]
    assert other != body
    with pytest.raises(SaslMisuse):
        verifier().verify(f"{head}.{other}.{signature}", NOW_MS)


def test_keys_can_be_replaced() -> None:
    made = verifier()
    token = signed()
    assert made.verify(token, NOW_MS)
    made.load_keys(json.dumps({"keys": [EC.as_dict(private=False)]}).encode())
    with pytest.raises(SaslMisuse):
        made.verify(token, NOW_MS)
    with pytest.raises(ConfigError, match="JWKS cannot be used"):
        made.load_keys(b"<html>")
    assert made.verify(signed("ES256", EC, "ec"), NOW_MS), "a bad document leaves the old keys in use"


def test_without_keys_nothing_is_accepted() -> None:
    with pytest.raises(SaslMisuse, match="no JWKS"):
        JwtVerifier(TokenRules()).verify(signed(), NOW_MS)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "{}", "\0", "a" * (MAX_TOKEN_BYTES + 1), "é.é.é"])
def test_rubbish_is_refused(token: str) -> None:
    for accepts_unsecured in (False, True):
        with pytest.raises(SaslMisuse):
            verifier(accepts_unsecured=accepts_unsecured).verify(token, NOW_MS)


def test_the_key_set_is_public() -> None:
    assert not any("d" in key for key in KeySet.import_key_set(json.loads(JWKS)).as_dict()["keys"])


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"keys": 7}'])
def test_a_bad_key_set_is_refused(content: str) -> None:
    with pytest.raises(ConfigError):
        JwtVerifier(TokenRules()).load_keys(content.encode())
