"""OAUTHBEARER with keys from a file: signed tokens only, and keys that are replaced while the broker runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import ECKey

from klamm.client.blocking_connection import BlockingConnection
from klamm.client.client_errors import AuthenticationError
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.token_source import unsecured_token
from tests.support.raw_client import eventually
from tests.support.secured_cluster import SecuredCluster, secured_cluster


def write_keys(path: Path, *keys: ECKey) -> None:
    path.write_text(json.dumps({"keys": [key.as_dict(private=False) for key in keys]}))


def token(key: ECKey, lifetime_s: int = 600) -> str:
    now_s = int(time.time())
    claims = {"sub": "carol", "iss": "https://issuer", "aud": "kafka", "iat": now_s, "exp": now_s + lifetime_s}
    return jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key, algorithms=["ES256"])


def is_accepted(cluster: SecuredCluster, text: str) -> bool:
    given = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.files.ca),
        "sasl.mechanism": "OAUTHBEARER",
    }
    security = ClientSecurity.from_properties(given, token_provider=lambda: text)
    host, port = cluster.bootstrap().split(":")
    try:
        with BlockingConnection((host, int(port)), client_id="test", security=security) as connection:
            return connection.ask(MetadataRequest(topics=[]), MetadataResponse, 1).controller_id == 1
    except AuthenticationError as error:
        assert "invalid_token" in str(error) and text not in str(error)
        return False


def test_only_tokens_of_known_keys_are_accepted(tmp_path: Path) -> None:
    first, second = (ECKey.generate_key("P-256", {"kid": name}, private=True) for name in ("first", "second"))
    jwks = tmp_path / "jwks.json"
    write_keys(jwks, first)
    settings = {
        "klamm.sasl.oauthbearer.unsecured.tokens": "false",
        "sasl.oauthbearer.jwks.endpoint.url": f"file:{jwks}",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": 200,
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    with secured_cluster(tmp_path, extra=settings) as cluster:
        eventually(lambda: is_accepted(cluster, token(first)), "the keys were never loaded")
        assert not is_accepted(cluster, token(second))
        assert not is_accepted(cluster, token(first, lifetime_s=-60))
        assert not is_accepted(cluster, unsecured_token({"sub": "carol", "iss": "https://issuer", "aud": "kafka"}))
        write_keys(jwks, second)
        eventually(lambda: is_accepted(cluster, token(second)), "the new key was never loaded")
        assert not is_accepted(cluster, token(first))
        assert token(first)[:40] not in cluster.brokers[0].log
