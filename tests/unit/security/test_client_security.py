"""ClientSecurity: Kafka's keys and librdkafka's, every form of keystore, and secrets that stay hidden."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from klamm.errors import ConfigError
from klamm.model import SecurityProtocol
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.jaas import parse_jaas
from klamm.security.secret import Secret
from klamm.security.tls.cipher_suites import openssl_suites
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.stores import StoreSource, load_certificates, load_key_pair
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_without_settings_a_client_is_plain() -> None:
    assert ClientSecurity.from_properties({}) == ClientSecurity()


def test_librdkafka_keys(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "cert.pem").write_bytes(issued.certificate_pem)
    (tmp_path / "key.pem").write_bytes(issued.key_pem)
    security = ClientSecurity.from_properties(
        {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.location": str(tmp_path / "cert.pem"),
            "ssl.key.location": str(tmp_path / "key.pem"),
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": "wonderland",
            "group.id": "ignored",
        }
    )
    assert security.protocol is SecurityProtocol.SASL_SSL
    assert security.tls is not None and security.tls.trusted == authority.pem and security.tls.checks_hostname
    assert security.tls.key_pair is not None
    assert security.sasl is not None and security.sasl.username == "alice"
    assert client_context(security.tls).check_hostname
    assert pickle.loads(pickle.dumps(security)) == security
    assert "wonderland" not in repr(security) and "PRIVATE" not in repr(security)


def test_kafka_keys_with_pkcs12_and_jaas(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "keys.p12").write_bytes(authority.issue().pkcs12("changeit"))
    (tmp_path / "trust.p12").write_bytes(authority.truststore("trusted"))
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="bob" password="a;b=\\"c\\"" ;'
    security = ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(tmp_path / "trust.p12"),
            "ssl.truststore.password": "trusted",
            "ssl.truststore.type": "JKS",
            "ssl.keystore.location": str(tmp_path / "keys.p12"),
            "ssl.keystore.password": "changeit",
            "ssl.endpoint.identification.algorithm": "",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas,
        }
    )
    assert security.tls is not None and not security.tls.checks_hostname
    assert security.tls.trusted == authority.pem
    assert security.sasl is not None and security.sasl.password == Secret('a;b="c"')


def test_pem_in_the_settings(authority: Authority) -> None:
    issued = authority.issue()
    security = ClientSecurity.from_properties(
        {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": authority.pem.decode().replace("\n", "\\n"),
            "ssl.keystore.key": issued.key_pem.decode(),
            "ssl.keystore.certificate.chain": issued.certificate_pem.decode(),
        }
    )
    assert security.tls is not None and security.tls.key_pair is not None


def test_an_encrypted_key_needs_its_password(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(authority.issue().encrypted_pem("opensesame"))
    source = StoreSource("ssl.keystore.location", str(path), "PEM", key_password=Secret("opensesame"))
    assert b"ENCRYPTED" not in load_key_pair(source).key.reveal()
    for wrong in (None, Secret("wrong")):
        with pytest.raises(ConfigError, match=r"check ssl\.key\.password") as raised:
            load_key_pair(StoreSource("ssl.keystore.location", str(path), "PEM", key_password=wrong))
        assert "wrong" not in str(raised.value).replace("wrong password", "")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xfe\xed\xfe\xed\x00\x00", "does not read JKS"),
        (b"nothing", "contains no private key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be read"),
    ],
)
def test_an_unusable_keystore_is_named(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence) as raised:
        load_key_pair(StoreSource("ssl.keystore.location", str(path)))
    assert str(path) in str(raised.value)


def test_a_key_without_its_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "store.pem"
    path.write_bytes(authority.issue().key_pem + authority.issue().certificate_pem)
    with pytest.raises(ConfigError, match="does not belong to its private key"):
        load_key_pair(StoreSource("ssl.keystore.location", str(path)))


def test_a_wrong_store_password_is_reported_without_it(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "trust.p12"
    path.write_bytes(authority.truststore("right"))
    with pytest.raises(ConfigError, match="check its password") as raised:
        load_certificates(StoreSource("ssl.truststore.location", str(path), password=Secret("tr0mpe")))
    assert "tr0mpe" not in str(raised.value)


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"security.protocol": "TLS"}, "expected one of PLAINTEXT"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism is missing"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism cannot be 'GSSAPI'"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "needs a user and a password"),
        ({"security.protocol": "SSL", "ssl.key.location": "x"}, "requires ssl.certificate.location"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"}, "cannot be read"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, "needs tokens"),
    ],
)
def test_wrong_settings_are_explained(properties: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ClientSecurity.from_properties(properties)


@pytest.mark.parametrize("text", ["", "Module", 'Module required a="b"', 'Module required a "b";', 'M required a="b;'])
def test_malformed_jaas_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match="is malformed") as raised:
        parse_jaas("sasl.jaas.config", text)
    assert '"b' not in str(raised.value)


def test_jaas_users() -> None:
    entry = parse_jaas("x", 'Module required username="admin" user_alice="a" user_bob=b;')
    assert entry.users == {"alice": "a", "bob": "b"} and "admin" not in repr(entry)


def test_cipher_suites_have_openssl_names() -> None:
    suites = openssl_suites(
        ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_256_CBC_SHA", "TLS_AES_128_GCM_SHA256"]
    )
    assert suites == ("ECDHE-RSA-AES128-GCM-SHA256:AES256-SHA", True)


def test_cipher_suites_restrict_the_versions(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "keys.pem").write_bytes(authority.issue().pem)
    pair = load_key_pair(StoreSource("x", str(tmp_path / "keys.pem")))
    older = server_context(TlsSettings(pair, cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)))
    newer = server_context(TlsSettings(pair, cipher_suites=("TLS_AES_128_GCM_SHA256",)))
    assert older.maximum_version.name == "TLSv1_2" and newer.minimum_version.name == "TLSv1_3"
    with pytest.raises(ConfigError, match="no suite that OpenSSL has"):
        server_context(TlsSettings(pair, cipher_suites=("TLS_ECDHE_ECDSA_WITH_NOTHING_SHA256",)))
    with pytest.raises(ConfigError, match=r"ssl\.enabled\.protocols"):
        server_context(TlsSettings(pair, protocols=("TLSv1",)))
