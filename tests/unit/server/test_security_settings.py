"""Settings of security reach what they configure: times, tokens, successors of certificates, TLS to ZooKeeper."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from klamm.config import ConfigRepository, KafkaConfig
from klamm.errors import ConfigError
from klamm.security.sasl.mechanisms import OAUTHBEARER
from klamm.security.sasl.server_mechanisms import TokenRefusal
from klamm.security.sasl.token_source import unsecured_token
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings, server_context
from klamm.security.tls.stores import StoreSource, load_key_pair
from klamm.server import zookeeper_security
from klamm.server.broker_security import BrokerSecurity
from tests.support.certificates import STORE_PASSWORD, Issued, TlsFiles, write_tls_files

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
SKEW = "sasl.oauthbearer.clock.skew.seconds"


@pytest.fixture(scope="module", params=["PEM", "PKCS12"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return write_tls_files(tmp_path_factory.mktemp("tls"), request.param)


def secured(**settings: Any) -> BrokerSecurity:
    """A broker with a SASL listener for tokens and a plain one."""
    given = {
        "broker.id": 5,
        "listeners": "SASL_PLAINTEXT://localhost:0,PLAINTEXT://localhost:0",
        "sasl.enabled.mechanisms": OAUTHBEARER,
        "klamm.sasl.oauthbearer.unsecured.tokens": "true",
        **settings,
    }
    return BrokerSecurity(ConfigRepository(KafkaConfig(given)), 5, "cluster", Secret("the secret."))


def test_times_of_authentications() -> None:
    usual = secured().listeners["SASL_PLAINTEXT"]
    assert (usual.failure_delay_s, usual.timeout_s, usual.budget.max_wait_s) == (0.1, 30, 15)
    own = {"connection.failed.authentication.delay.ms": 250, "klamm.authentication.timeout.ms": 4_000}
    for listener in secured(**own).listeners.values():
        assert (listener.failure_delay_s, listener.timeout_s, listener.budget.max_wait_s) == (0.25, 4, 2)


@pytest.mark.parametrize("prefix", ["", "listener.name.sasl_plaintext.", "listener.name.sasl_plaintext.oauthbearer."])
def test_sessions_end_by_the_closest_setting(prefix: str) -> None:
    sasl = secured(**{f"{prefix}connections.max.reauth.ms": 90_000}).listeners["SASL_PLAINTEXT"].sasl
    assert sasl is not None and sasl.max_reauth_ms == {OAUTHBEARER: 90_000}
    sasl = secured().listeners["SASL_PLAINTEXT"].sasl
    assert sasl is not None and sasl.max_reauth_ms == {OAUTHBEARER: 0}


def user_of(claims: dict[str, Any], **settings: Any) -> str | None:
    """The user of a token at a broker; None if the token is refused."""
    sasl = secured(**settings).listeners["SASL_PLAINTEXT"].sasl
    assert sasl is not None
    server = sasl.mechanisms[OAUTHBEARER]()
    token = unsecured_token({"sub": "alice", "iat": NOW_S - 100, "exp": NOW_S + 100, **claims})
    try:
        server.step(f"n,,\x01auth=Bearer {token}\x01\x01".encode(), NOW_MS)
    except TokenRefusal:
        return None
    assert server.is_complete
    return server.user


@pytest.mark.parametrize(
    ("claims", "settings", "user"),
    [
        ({}, {}, "alice"),
        ({"exp": NOW_S - 20}, {}, "alice"),
        ({"exp": NOW_S - 20}, {SKEW: 10}, None),
        ({"exp": NOW_S - 40}, {}, None),
        ({"exp": NOW_S - 40}, {SKEW: 60}, "alice"),
        ({"nbf": NOW_S + 40}, {}, None),
        ({"nbf": NOW_S + 40}, {SKEW: 60}, "alice"),
        ({"email": "a@b"}, {"sasl.oauthbearer.sub.claim.name": "email"}, "a@b"),
        ({}, {"sasl.oauthbearer.sub.claim.name": "email"}, None),
        ({"iss": "one"}, {"sasl.oauthbearer.expected.issuer": "one"}, "alice"),
        ({"iss": "one"}, {"sasl.oauthbearer.expected.issuer": "another"}, None),
        ({"aud": ["kafka"]}, {"sasl.oauthbearer.expected.audience": "spark,kafka"}, "alice"),
        ({"aud": ["kafka"]}, {"sasl.oauthbearer.expected.audience": "spark"}, None),
        ({"iss": "one"}, {"listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.expected.issuer": "two"}, None),
    ],
    ids=str,
)
def test_which_tokens_are_accepted(claims: dict[str, Any], settings: dict[str, Any], user: str | None) -> None:
    assert user_of(claims, **settings) == user


def test_unsecured_tokens_are_refused_unless_they_are_asked_for(tmp_path: Path) -> None:
    """Also before any keys are loaded. Without the setting, OAUTHBEARER needs keys."""
    keys = {"sasl.oauthbearer.jwks.endpoint.url": f"file:{tmp_path}/none"}
    assert user_of({}, **keys) == "alice"
    assert user_of({}, **keys, **{"klamm.sasl.oauthbearer.unsecured.tokens": "false"}) is None
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url is missing"):
        secured(**{"klamm.sasl.oauthbearer.unsecured.tokens": "false"})


def test_a_broker_gets_its_own_token_from_the_address_of_its_listener(tmp_path: Path) -> None:
    """With OAUTHBEARER between brokers."""
    token = tmp_path / "token"
    token.write_text("a.b.c\n")
    made = secured(
        **{
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": OAUTHBEARER,
            "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.token.endpoint.url": f"file:{token}",
        }
    )
    outgoing = made.outgoing.of("SASL_PLAINTEXT").sasl
    assert outgoing is not None and outgoing.token is not None and outgoing.token() == "a.b.c"


@pytest.mark.parametrize(
    ("issued", "allows"),
    [
        (lambda authority: authority.issue((NameOID.COMMON_NAME, "elsewhere")), "ssl.allow.dn.changes"),
        (lambda authority: authority.issue(names=("localhost", "::1")), "ssl.allow.san.changes"),
    ],
    ids=["subject", "names"],
)
@pytest.mark.parametrize("prefix", ["", "listener.name.ssl."])
def test_a_new_certificate_may_have_another_subject_or_fewer_names_if_a_setting_says_so(
    tmp_path: Path, issued: Any, allows: str, prefix: str
) -> None:
    files = write_tls_files(tmp_path)
    new: Issued = issued(files.authority)
    path = tmp_path / "new.pem"
    path.write_bytes(new.pem)

    def problem(**more: str) -> str | None:
        given = {"broker.id": 5, "listeners": "SSL://localhost:0", "security.inter.broker.protocol": "SSL"}
        configs = ConfigRepository(KafkaConfig(given | files.settings() | more), 5)
        BrokerSecurity(configs, 5, "cluster", Secret("the secret."))
        return configs.file_problem("5", {}, {"ssl.keystore.location": str(path)})

    assert allows in (problem() or "")
    assert problem(**{f"{prefix}{allows}": "true"}) is None
    other = {"ssl.allow.dn.changes", "ssl.allow.san.changes"} - {allows}
    assert allows in (problem(**dict.fromkeys(other, "true")) or "")


def zookeeper_settings(files: TlsFiles) -> dict[str, Any]:
    """Kafka's keys. The types of the stores follow from their extensions."""
    given = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": str(files.broker),
        "zookeeper.ssl.truststore.location": str(files.truststore),
    }
    if files.form == "PKCS12":
        given |= dict.fromkeys(("zookeeper.ssl.keystore.password", "zookeeper.ssl.truststore.password"), STORE_PASSWORD)
    return given


def connected(files: TlsFiles, host: str = "localhost", **settings: str) -> tuple[str, str, bool]:
    """Shake hands in memory with a ZooKeeper that requires certificates, on `host`.

    Return the version of TLS, the cipher suite in OpenSSL's words, and whether the client has a certificate.
    """
    server = server_context(TlsSettings(pair_of(files), files.ca.read_bytes(), "requested"))
    client = zookeeper_security.client(KafkaConfig(zookeeper_settings(files) | settings)).tls
    assert client is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for side in 3 * [ours, theirs]:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    version, cipher = ours.version(), ours.cipher()
    assert version is not None and cipher is not None
    return version, cipher[0], theirs.getpeercert(binary_form=True) is not None


def pair_of(files: TlsFiles) -> Any:
    password = Secret(STORE_PASSWORD) if files.form == "PKCS12" else None
    return load_key_pair(StoreSource("broker", str(files.broker), files.form, password))


def test_keystore_and_truststore_for_zookeeper(files: TlsFiles) -> None:
    version, _, has_certificate = connected(files)
    assert version == "TLSv1.3" and has_certificate
    types = {"zookeeper.ssl.keystore.type": files.form, "zookeeper.ssl.truststore.type": files.form}
    assert connected(files, **types)[2]
    other = "PEM" if files.form == "PKCS12" else "PKCS12"
    for key in ("zookeeper.ssl.keystore", "zookeeper.ssl.truststore"):
        with pytest.raises(ConfigError, match=re.escape(f"{key}.location")) as raised:
            connected(files, **{f"{key}.type": other})
        assert STORE_PASSWORD not in str(raised.value)


def test_the_name_of_zookeeper_is_checked_unless_a_setting_says_no(files: TlsFiles) -> None:
    key = "zookeeper.ssl.endpoint.identification.algorithm"
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(files, "zookeeper.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(files, "zookeeper.example", **{key: "https"})
    assert connected(files, "zookeeper.example", **{key: ""})[2]


def test_protocols_and_cipher_suites_for_zookeeper(files: TlsFiles) -> None:
    assert connected(files, **{"zookeeper.ssl.enabled.protocols": "TLSv1.2"})[0] == "TLSv1.2"
    assert connected(files, **{"zookeeper.ssl.protocol": "TLSv1.2"})[0] == "TLSv1.3", "later versions are allowed too"
    suites = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    chosen = connected(files, **{"zookeeper.ssl.cipher.suites": suites})
    assert chosen[0] == "TLSv1.2" and chosen[1].endswith("AES128-GCM-SHA256")


def test_zookeeper_with_a_certificate_of_another_authority_is_refused(files: TlsFiles, tmp_path: Path) -> None:
    stranger = write_tls_files(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(
            files,
            **{
                "zookeeper.ssl.truststore.location": str(stranger.ca),
                "zookeeper.ssl.truststore.type": "PEM",
            },
        )
