"""A broker that others could use without authentication does not start, and the message has the lines that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.config import KafkaConfig
from klamm.errors import ConfigError
from klamm.model import is_loopback
from klamm.server import zookeeper_security
from klamm.server.exposure import refuse_exposure
from tests.support.certificates import write_tls_files

ALLOW = {"klamm.allow.unauthenticated.listeners": "true"}
REMOTE = {"klamm.zookeeper.embedded.host": "0.0.0.0"}
DIGEST = {"klamm.zookeeper.digest": "klamm:a secret"}


def config(listeners: str, **more: str) -> KafkaConfig:
    keys = {name if "." in name else name.replace("_", "."): value for name, value in more.items()}
    advertised = listeners.replace("0.0.0.0", "broker.example").replace("://:", "://broker.example:")
    return KafkaConfig(
        {
            "listeners": listeners,
            "advertised.listeners": advertised,
            "inter.broker.listener.name": listeners.partition(":")[0],
            **keys,
        }
    )


@pytest.mark.parametrize(
    "listeners",
    [
        "PLAINTEXT://:9092",
        "PLAINTEXT://0.0.0.0:9092",
        "PLAINTEXT://192.0.2.1:9092",
        "PLAINTEXT://[2001:db8::1]:9092",
        "PLAINTEXT://broker.example:9092",
        "SSL://192.0.2.1:9092",
        "SASL_SSL://192.0.2.1:9093,PLAINTEXT://192.0.2.1:9092",
    ],
)
def test_an_open_listener_is_refused(listeners: str) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_exposure(config(listeners))
    text = str(refused.value)
    assert "listeners=SASL_SSL://" in text and "sasl.enabled.mechanisms=SCRAM-SHA-512" in text
    assert "klamm.allow.unauthenticated.listeners=true" in text and "://localhost:9092" in text
    refuse_exposure(config(listeners, **ALLOW))


@pytest.mark.parametrize(
    "listeners",
    [
        "PLAINTEXT://localhost:9092",
        "PLAINTEXT://127.0.0.1:9092",
        "PLAINTEXT://[::1]:9092",
        "SASL_SSL://:9092",
        "SASL_PLAINTEXT://192.0.2.1:9092,PLAINTEXT://127.0.0.2:9093",
    ],
)
def test_a_guarded_listener_is_accepted(listeners: str) -> None:
    refuse_exposure(config(listeners))


def test_the_default_listens_on_this_machine_only() -> None:
    refuse_exposure(KafkaConfig())
    assert [endpoint.host for endpoint in KafkaConfig().endpoints] == ["localhost"]


def test_certificates_of_clients_are_authentication() -> None:
    refuse_exposure(config("SSL://:9092", ssl_client_auth="required"))
    refuse_exposure(config("SSL://:9092", **{"listener_name_ssl_ssl_client_auth": "required"}))
    with pytest.raises(ConfigError, match="without authentication on every address"):
        refuse_exposure(config("SSL://:9092", ssl_client_auth="requested"))


UNSIGNED = {"klamm.sasl.oauthbearer.unsecured.tokens": "true"}


@pytest.mark.parametrize(
    ("listeners", "more", "is_refused"),
    [
        ("SASL_SSL://192.0.2.1:9092", UNSIGNED | {"sasl.enabled.mechanisms": "OAUTHBEARER"}, True),
        ("SASL_PLAINTEXT://:9092", UNSIGNED | {"sasl.enabled.mechanisms": "SCRAM-SHA-512,oauthbearer"}, True),
        ("SASL_SSL://:9092", UNSIGNED | {"listener.name.sasl_ssl.sasl.enabled.mechanisms": "OAUTHBEARER"}, True),
        ("SASL_SSL://:9092", {"sasl.enabled.mechanisms": "OAUTHBEARER"}, False),
        ("SASL_SSL://:9092", UNSIGNED | {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}, False),
        ("SASL_SSL://localhost:9092", UNSIGNED | {"sasl.enabled.mechanisms": "OAUTHBEARER"}, False),
    ],
)
def test_unsigned_tokens_are_not_authentication(listeners: str, more: dict[str, str], is_refused: bool) -> None:
    if not is_refused:
        refuse_exposure(config(listeners, **more))
        return
    with pytest.raises(ConfigError, match="would accept unsigned OAUTHBEARER tokens") as refused:
        refuse_exposure(config(listeners, **more))
    text = str(refused.value)
    assert "  klamm.sasl.oauthbearer.unsecured.tokens=false\n" in text and "://localhost:9092" in text
    refuse_exposure(config(listeners, **more, **ALLOW))


def test_unsigned_tokens_beside_certificates_of_clients_are_accepted() -> None:
    tokens = UNSIGNED | {"sasl.enabled.mechanisms": "OAUTHBEARER"}
    refuse_exposure(config("SASL_SSL://:9092", **tokens, **{"listener.name.sasl_ssl.ssl.client.auth": "required"}))
    with pytest.raises(ConfigError, match="unsigned"):
        refuse_exposure(config("SASL_SSL://:9092", **tokens, **{"ssl.client.auth": "required"}))


def test_open_metrics_are_refused() -> None:
    local = "PLAINTEXT://localhost:9092"
    with pytest.raises(ConfigError, match=r"klamm\.metrics\.ssl\.enable=true\n  klamm\.metrics\.basic\.auth=USER"):
        refuse_exposure(config(local, klamm_metrics_port="0", klamm_metrics_host="0.0.0.0"))
    refuse_exposure(config(local, klamm_metrics_host="0.0.0.0"))
    refuse_exposure(
        config(
            local,
            klamm_metrics_port="0",
            klamm_metrics_host="0.0.0.0",
            klamm_metrics_ssl_enable="true",
            klamm_metrics_basic_auth="u:p",
        )
    )


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"zookeeper.set.acl": "true"}, "access rules need an identity"),
        (REMOTE, "klamm.zookeeper.digest"),
        (REMOTE | DIGEST, "zookeeper.set.acl to be true"),
        (REMOTE | DIGEST | {"zookeeper.set.acl": "false"}, "zookeeper.set.acl to be true"),
        ({"zookeeper.ssl.client.enable": "true"}, "zookeeper.ssl.keystore.location"),
        ({"zookeeper.ssl.crl.enable": "true"}, "revocation"),
    ],
)
def test_zookeeper_is_not_left_open(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        KafkaConfig(properties)
    assert "a secret" not in str(raised.value)


def test_a_remote_embedded_zookeeper_has_a_secret_and_rules(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guarded = REMOTE | DIGEST | {"zookeeper.set.acl": "true"}
    assert zookeeper_security.client(KafkaConfig(guarded)).set_acl
    zookeeper_security.embedded_server(KafkaConfig(guarded))
    assert "listens on 0.0.0.0 without TLS" in caplog.text and "a secret" not in caplog.text
    caplog.clear()
    zookeeper_security.embedded_server(KafkaConfig(guarded | {"klamm.zookeeper.embedded.host": "127.0.0.1"}))
    files = write_tls_files(tmp_path)
    tls = {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": str(files.broker)}
    assert zookeeper_security.embedded_server(KafkaConfig(guarded | tls)).tls is not None
    assert not caplog.records


@pytest.mark.parametrize("set_acl", ["true", "false"])
def test_the_embedded_zookeeper_guards_znodes_if_brokers_set_rules(set_acl: str) -> None:
    config = KafkaConfig({"broker.id": "1", "klamm.zookeeper.digest": "klamm:s3cret", "zookeeper.set.acl": set_acl})
    options = zookeeper_security.embedded_server(config)
    assert not options.gate.is_open and options.guards_znodes is (set_acl == "true")


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "192.0.2.1", "localhost.example", "::ffff:192.0.2.1")))
