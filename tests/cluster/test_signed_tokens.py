"""OAUTHBEARER with keys from a file or an address: signed tokens only, keys that change while a broker runs, counts."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from pathlib import Path
from typing import NamedTuple

from joserfc import jwt
from joserfc.jwk import ECKey

from klamm.client.blocking_connection import BlockingConnection
from klamm.client.client_errors import AuthenticationError
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.token_source import unsecured_token
from tests.support.raw_client import eventually
from tests.support.scripted_http import response, scripted_http
from tests.support.secured_cluster import SecuredCluster, secured_cluster


def jwks_of(*keys: ECKey) -> str:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


def write_keys(path: Path, *keys: ECKey) -> None:
    path.write_text(jwks_of(*keys))


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


class Logins(NamedTuple):
    succeeded: int
    failed: int


def logins(cluster: SecuredCluster, listener: str = "SASL_SSL") -> Logins:
    """The counts of one listener at `/metrics`."""
    names = ("successful_authentication_total", "failed_authentication_total")
    return Logins(*(cluster.socket_metric(name, listener) for name in names))


def refuse_without_certificate(cluster: SecuredCluster) -> None:
    """The listener for certificates counts the failed handshake of a client that has none."""
    before = logins(cluster, "SSL")
    host, port = cluster.bootstrap("SSL").split(":")
    context = ssl.create_default_context(cafile=cluster.files.ca)
    plain = socket.create_connection((host, int(port)))
    with plain, contextlib.suppress(OSError), context.wrap_socket(plain, server_hostname=host) as stream:
        assert stream.recv(1) == b"", "with TLS 1.3 the refusal follows the handshake"
    eventually(lambda: logins(cluster, "SSL").failed > before.failed, "the refusal was not counted")
    assert logins(cluster, "SSL").succeeded == before.succeeded


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
        before = logins(cluster)
        assert not is_accepted(cluster, token(second))
        assert not is_accepted(cluster, token(first, lifetime_s=-60))
        assert not is_accepted(cluster, unsecured_token({"sub": "carol", "iss": "https://issuer", "aud": "kafka"}))
        eventually(lambda: logins(cluster).failed >= before.failed + 3, "a refused login is not counted")
        assert logins(cluster).failed == before.failed + 3, "every refused login is counted once"
        assert is_accepted(cluster, token(first))
        eventually(lambda: logins(cluster).succeeded > before.succeeded, "a login is not counted")
        write_keys(jwks, second)
        eventually(lambda: is_accepted(cluster, token(second)), "the new key was never loaded")
        assert not is_accepted(cluster, token(first))
        assert token(first)[:40] not in cluster.brokers[0].log
        refuse_without_certificate(cluster)


def test_a_running_broker_reads_its_keys_from_an_address(tmp_path: Path) -> None:
    """It starts without keys if the address does not answer, and reads them again and again."""
    first, second = (ECKey.generate_key("P-256", {"kid": name}, private=True) for name in ("first", "second"))
    with scripted_http() as issuer:
        issuer.answer = response(b"", "503 Unavailable")
        settings = {
            "klamm.sasl.oauthbearer.unsecured.tokens": "false",
            "sasl.oauthbearer.jwks.endpoint.url": issuer.url,
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": 200,
        }
        with secured_cluster(tmp_path, extra=settings) as cluster:
            eventually(lambda: bool(issuer.requests), "the keys were never requested")
            assert not is_accepted(cluster, token(first)), "without keys no token is accepted"
            issuer.answer = response(jwks_of(first).encode())
            eventually(lambda: is_accepted(cluster, token(first)), "the keys were never loaded")
            assert not is_accepted(cluster, token(second))
            issuer.answer = response(jwks_of(second).encode())
            eventually(lambda: is_accepted(cluster, token(second)), "the new key was never loaded")
            assert not is_accepted(cluster, token(first))
            issuer.close()
            assert is_accepted(cluster, token(second)), "an issuer that is gone leaves the keys in use"
