"""Where a client gets its OAuth tokens: a file, an authorization server, or (unsecured) itself."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

from klamm.errors import ConfigError
from klamm.security.sasl.client_mechanisms import SaslFailure, TokenProvider
from klamm.security.secret import Secret

_CLAIM: Final = "unsecuredLoginStringClaim_"
_LIFETIME_S: Final = 3600
_TIMEOUT_S: Final = 10.0
_LARGEST_ANSWER: Final = 1 << 20


def provider(url: str | None, options: Mapping[str, str]) -> TokenProvider:
    """Return the provider that Kafka's keys describe.

    `file:` reads the token from a file at each use. `http(s):` asks an authorization server with the JAAS options
    `clientId`, `clientSecret` and `scope`. Without an address, `unsecuredLoginStringClaim_sub` makes an unsigned token.
    """
    if url:
        parts = urlsplit(url)
        if parts.scheme == "file":
            return partial(_from_file, Path(parts.path))
        if parts.scheme in ("http", "https") and options.get("clientId") and options.get("clientSecret"):
            return partial(
                _from_server, url, options["clientId"], Secret(options["clientSecret"]), options.get("scope")
            )
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url cannot be used: expected file:PATH, or https://... with clientId and "
            "clientSecret in sasl.jaas.config."
        )
    claims = {name.removeprefix(_CLAIM): value for name, value in options.items() if name.startswith(_CLAIM)}
    if "sub" not in claims:
        raise ConfigError(
            "OAUTHBEARER needs tokens: set sasl.oauthbearer.token.endpoint.url, or pass a token provider."
        )
    return partial(unsecured_token, claims)


def unsecured_token(claims: Mapping[str, object]) -> str:
    """Return an unsigned token, for tests. Brokers refuse it unless a setting allows it."""
    now = int(time.time())
    body = {"iat": now, "exp": now + _LIFETIME_S, **claims}
    return f"{_encoded({'alg': 'none'})}.{_encoded(body)}."


def _encoded(value: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _from_file(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SaslFailure(
            f"The token file {path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from None


def _from_server(url: str, client_id: str, secret: Secret[str], scope: str | None) -> str:
    from klamm.security.http_document import DocumentError, read_document  # slow to import

    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    basic = base64.b64encode(f"{client_id}:{secret.reveal()}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}"}
    try:
        document = read_document(
            url, timeout_s=_TIMEOUT_S, largest=_LARGEST_ANSWER, form=urlencode(form).encode(), headers=headers
        )
        return _access_token(json.loads(document))
    except DocumentError as error:
        raise SaslFailure(f"The authorization server gave no token: {error}.") from None
    except (ValueError, RecursionError) as error:
        raise SaslFailure(f"The authorization server gave no token: {type(error).__name__}.") from None


def _access_token(document: object) -> str:
    token = document.get("access_token") if isinstance(document, dict) else None
    if not isinstance(token, str) or not token.strip() or not token.isascii() or not token.isprintable():
        raise SaslFailure("The authorization server gave no token: its answer has no access_token.")
    return token.strip()
