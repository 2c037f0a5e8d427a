"""ClientSecurity in the settings of librdkafka, the library below confluent-kafka."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable
from typing import Any, Final

from klamm.model import SecurityProtocol
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.client_mechanisms import SaslCredentials, TokenProvider
from klamm.security.sasl.mechanisms import OAUTHBEARER
from klamm.security.tls.cipher_suites import openssl_suites
from klamm.security.tls.contexts import TlsSettings

_UNKNOWN_LIFETIME_S: Final = 300.0
"""How long a token is used whose end cannot be read from it."""


def librdkafka_settings(security: ClientSecurity) -> dict[str, Any]:
    """Return settings with all keys and passwords in them: never print them."""
    if security.protocol is SecurityProtocol.PLAINTEXT:
        return {}
    settings: dict[str, Any] = {"security.protocol": security.protocol.name}
    if security.tls is not None:
        settings |= _tls(security.tls)
    if security.sasl is not None:
        settings |= _sasl(security.sasl)
    return settings


def _tls(tls: TlsSettings) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "ssl.endpoint.identification.algorithm": "https" if tls.checks_hostname else "none",
        "enable.ssl.certificate.verification": tls.checks_certificate,
    }
    if tls.trusted is not None:
        settings["ssl.ca.pem"] = tls.trusted.decode()
    if tls.key_pair is not None:
        settings["ssl.certificate.pem"] = tls.key_pair.chain.decode()
        settings["ssl.key.pem"] = tls.key_pair.key.reveal().decode()
    if suites := openssl_suites(tls.cipher_suites).older:
        settings["ssl.cipher.suites"] = suites
    return settings


def _sasl(sasl: SaslCredentials) -> dict[str, Any]:
    if sasl.mechanism == OAUTHBEARER:
        assert sasl.token is not None, "OAUTHBEARER needs a token provider"
        return {"sasl.mechanism": sasl.mechanism, "oauth_cb": _token_callback(sasl.token, dict(sasl.extensions))}
    assert sasl.password is not None, f"{sasl.mechanism} needs a password"
    return {
        "sasl.mechanism": sasl.mechanism,
        "sasl.username": sasl.username,
        "sasl.password": sasl.password.reveal(),
    }


def _token_callback(
    provider: TokenProvider, extensions: dict[str, str]
) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    def callback(_: str) -> tuple[str, float, str, dict[str, str]]:
        token = provider()
        claims = _claims(token)
        end_s = claims.get("exp")
        until_s = float(end_s) if isinstance(end_s, int | float) else time.time() + _UNKNOWN_LIFETIME_S
        return token, until_s, str(claims.get("sub", "")), extensions

    return callback


def _claims(token: str) -> dict[str, Any]:
    """The claims of a JWT, without a check: only the broker decides whether they are true."""
    part = [*token.split("."), ""][1]
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return found if isinstance(found, dict) else {}
