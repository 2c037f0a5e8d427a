"""The security of listeners from their settings: certificates of clients, mechanisms, and the way to other brokers."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from klamm.config import ConfigRepository, KafkaConfig
from klamm.errors import ConfigError
from klamm.model import SecurityProtocol
from klamm.security.sasl.mechanisms import KLAMM_PEER, PLAIN, SCRAM_SHA_512
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings, client_context
from klamm.security.tls.stores import StoreSource, load_key_pair
from klamm.server.broker_security import BrokerSecurity
from tests.support.certificates import Authority, TlsFiles, write_tls_files

JAAS = 'PlainLoginModule required username="admin" password="the admin.s word" user_admin="the admin.s word";'


@pytest.fixture(scope="module", params=["PEM", "PKCS12"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return write_tls_files(tmp_path_factory.mktemp("tls"), request.param)


def security(files: TlsFiles, **settings: Any) -> BrokerSecurity:
    given = {
        "broker.id": 5,
        "listeners": "SASL_SSL://localhost:0,SSL://localhost:0,PLAINTEXT://localhost:0",
        **files.settings(),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        **settings,
    }
    configs = ConfigRepository(KafkaConfig(given))
    return BrokerSecurity(configs, 5, "cluster", Secret("the secret."))


def test_every_listener_has_its_own_security(files: TlsFiles) -> None:
    made = security(files, **{"ssl.client.auth": "required"})
    sasl, tls, plain = (made.listeners[name] for name in ("SASL_SSL", "SSL", "PLAINTEXT"))
    assert sasl.context is not None and tls.context is not None and plain.context is None
    assert tls.context.verify_mode == ssl.CERT_REQUIRED
    assert sasl.context.verify_mode == ssl.CERT_NONE, "a SASL listener asks for certificates by its own setting only"
    assert sasl.sasl is not None and list(sasl.sasl.mechanisms) == [PLAIN, SCRAM_SHA_512] and tls.sasl is None
    assert all(listener.peer is not None for listener in made.listeners.values())
    own = security(files, **{"listener.name.sasl_ssl.ssl.client.auth": "requested"}).listeners["SASL_SSL"].context
    assert own is not None and own.verify_mode == ssl.CERT_OPTIONAL


def negotiated(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """Shake hands in memory; return the version of TLS and the name of the cipher suite in OpenSSL's words."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for side in 3 * sides:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    version, cipher = sides[0].version(), sides[0].cipher()
    assert version is not None and cipher is not None
    return version, cipher[0]


def test_protocols_and_cipher_suites_are_those_of_the_listener(files: TlsFiles) -> None:
    suites = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    own = {"ssl.enabled.protocols": "TLSv1.2", "ssl.cipher.suites": suites}
    made = security(files, **{f"listener.name.ssl.{key}": value for key, value in own.items()})
    client = client_context(TlsSettings(trusted=files.ca.read_bytes()))
    restricted, other = made.listeners["SSL"].context, made.listeners["SASL_SSL"].context
    assert restricted is not None and other is not None
    version, cipher = negotiated(restricted, client)
    assert version == "TLSv1.2" and cipher.endswith("AES128-GCM-SHA256")
    assert negotiated(other, client)[0] == "TLSv1.3"
    client.set_ciphers("ECDHE+AES256")
    with pytest.raises(ssl.SSLError):
        negotiated(restricted, client)
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError):
        negotiated(restricted, client)


def test_a_listener_limits_the_frames_of_strangers(files: TlsFiles) -> None:
    key = "sasl.server.max.receive.size"

    def limit(**settings: Any) -> int:
        sasl = security(files, **settings).listeners["SASL_SSL"].sasl
        assert sasl is not None
        return sasl.max_receive_bytes

    assert limit() == 524_288
    assert limit(**{key: 2_000}) == 2_000
    assert limit(**{key: 2_000, f"listener.name.sasl_ssl.{key}": 1_000}) == 1_000
    assert limit(**{f"listener.name.other.{key}": 1_000}) == 524_288


def test_brokers_connect_by_the_inter_broker_listener(files: TlsFiles) -> None:
    chosen = {"security.inter.broker.protocol": "SASL_SSL", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
    outgoing = security(files, **chosen).outgoing.of("SASL_SSL")
    assert outgoing.protocol is SecurityProtocol.SASL_SSL and outgoing.tls is not None
    assert outgoing.sasl is not None and (outgoing.sasl.mechanism, outgoing.sasl.username) == (PLAIN, "admin")
    assert outgoing.peer is not None and (outgoing.peer.mechanism, outgoing.peer.username) == (KLAMM_PEER, "5")
    plain = security(files).outgoing.of("PLAINTEXT")
    assert plain.tls is None and plain.sasl is None and plain.peer is not None
    assert "the admin.s word" not in repr(outgoing) and "the secret." not in repr(outgoing)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sasl.enabled.mechanisms": ""}, "Listener SASL_SSL: sasl.enabled.mechanisms has nothing"),
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "sasl.enabled.mechanisms has GSSAPI"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "sasl.oauthbearer.jwks.endpoint.url is missing"),
        ({"listener.name.sasl_ssl.plain.sasl.jaas.config": "secret"}, "plain.sasl.jaas.config is malformed"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "Listener SASL_SSL: ssl.principal.mapping.rules is malformed"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": None}, "ssl.truststore.location is missing"),
        ({"ssl.keystore.location": "/nowhere"}, "ssl.keystore.location \\(/nowhere\\) cannot be used"),
        ({"security.inter.broker.protocol": "SASL_SSL"}, "sasl.mechanism cannot be 'GSSAPI'"),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "ftp://x"},
            "must begin with file:, http: or https:",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_explained(files: TlsFiles, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        security(files, **settings)
    assert "secret" not in str(raised.value)


def served_certificate(made: BrokerSecurity, files: TlsFiles) -> bytes:
    """Shake hands with the TLS listener as a client with a certificate. Return the broker's certificate."""
    client = client_context(
        TlsSettings(load_key_pair(StoreSource("client", str(files.client))), files.ca.read_bytes(), "required")
    )
    context = made.listeners["SSL"].context
    assert context is not None
    return certificate_of(client, context)


def certificate_of(client: ssl.SSLContext, context: ssl.SSLContext, host: str = "localhost") -> bytes:
    """Shake hands in memory. Return the certificate of the server. An address as host is not sent to the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        context.wrap_bio(to_server, to_client, server_side=True),
    ]
    for side in [*sides, *sides]:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    found = sides[0].getpeercert(binary_form=True)
    is_mutual = context.verify_mode == ssl.CERT_REQUIRED
    assert found is not None and (sides[1].getpeercert(binary_form=True) is not None) is is_mutual
    return found


@pytest.mark.parametrize("form", ["PEM", "PKCS12"])
def test_a_reload_with_a_bad_file_keeps_the_old_certificate(tmp_path: Path, form: str) -> None:
    files = write_tls_files(tmp_path, form)
    listeners = {"listeners": "SSL://localhost:0", "security.inter.broker.protocol": "SSL"}
    config = KafkaConfig({"broker.id": 5, **listeners, "ssl.client.auth": "required", **files.settings()})
    configs = ConfigRepository(config)
    made = BrokerSecurity(configs, 5, "cluster", Secret("the secret."))
    before = made.listeners["SSL"].context
    served = served_certificate(made, files)
    good = files.broker.read_bytes()
    for bad in (b"damaged", good[: len(good) // 2], files.new_keystore(authority=Authority("another"))):
        files.broker.write_bytes(bad)
        configs.reload_files()
        assert made.listeners["SSL"].context is before and served_certificate(made, files) == served
    files.broker.write_bytes(files.new_keystore())
    configs.reload_files()
    assert made.listeners["SSL"].context is not before and served_certificate(made, files) != served


@pytest.mark.parametrize("key", ["ssl.client.auth", "listener.name.ssl.ssl.client.auth"])
def test_a_change_does_not_open_a_listener_to_other_machines(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = write_tls_files(tmp_path, "PEM")

    def repository(host: str, **more: str) -> ConfigRepository:
        given = {
            "broker.id": 5,
            "listeners": f"SSL://{host}:0",
            "advertised.listeners": "SSL://localhost:0",
            "security.inter.broker.protocol": "SSL",
            "ssl.client.auth": "required",
            **files.settings(),
            **more,
        }
        return ConfigRepository(KafkaConfig(given), 5)

    def secured(configs: ConfigRepository) -> BrokerSecurity:
        return BrokerSecurity(configs, 5, "cluster", Secret("the secret."))

    configs = repository("")
    made = secured(configs)
    for value in ("none", "requested"):
        assert "without authentication on every address" in (configs.file_problem("5", {}, {key: value}) or "")
    configs.set_broker("5", {key: "none"})  # written to ZooKeeper by another tool
    context = made.listeners["SSL"].context
    assert context is not None and context.verify_mode == ssl.CERT_REQUIRED
    assert "without authentication on every address" in caplog.text
    with pytest.raises(ConfigError, match="without authentication on every address"):
        secured(configs)
    for allowed in (repository("localhost"), repository("", **{"klamm.allow.unauthenticated.listeners": "true"})):
        other = secured(allowed)
        assert allowed.file_problem("5", {}, {key: "none"}) is None
        allowed.set_broker("5", {key: "none"})
        context = other.listeners["SSL"].context
        assert context is not None and context.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_the_metrics_endpoint_uses_a_new_certificate(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = write_tls_files(tmp_path, "PEM")
    listeners = {"listeners": f"{protocol}://localhost:0", "security.inter.broker.protocol": protocol}
    configs = ConfigRepository(KafkaConfig({"broker.id": 5, **listeners, **files.settings()}))
    made = BrokerSecurity(configs, 5, "cluster", Secret("the secret."))
    endpoint, scraper = made.metrics_context(), client_context(TlsSettings(trusted=files.ca.read_bytes()))
    first, good = certificate_of(scraper, endpoint), files.broker.read_bytes()
    files.broker.write_bytes(good[: len(good) // 2])
    named_again = {"ssl.keystore.location": str(files.broker)}
    assert "cannot be used" in (configs.file_problem("5", {}, named_again) or "")
    configs.reload_files()
    assert certificate_of(scraper, endpoint) == first and "new certificates are not used" in caplog.text
    files.broker.write_bytes(files.new_keystore())
    configs.reload_files()
    assert certificate_of(scraper, endpoint) != first


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_metrics_endpoint_uses_a_new_certificate_of_another_type(tmp_path: Path, host: str) -> None:
    """Also for clients that accept both types and prefer the old one."""
    files = write_tls_files(tmp_path, "PEM")
    configs = ConfigRepository(
        KafkaConfig({"broker.id": 5, "listeners": "PLAINTEXT://localhost:0", **files.settings()})
    )
    made = BrokerSecurity(configs, 5, "cluster", Secret("the secret."))
    endpoint, scraper = made.metrics_context(), client_context(TlsSettings(trusted=files.ca.read_bytes()))
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for issued in (files.authority.issue(key=rsa_key), files.authority.issue()):
        files.broker.write_bytes(issued.pem)
        configs.reload_files()
        assert certificate_of(scraper, endpoint, host) == issued.certificate.public_bytes(Encoding.DER)
