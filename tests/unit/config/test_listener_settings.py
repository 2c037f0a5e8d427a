"""Settings with the prefix of a listener and of a mechanism, their precedence, and secrets that no one prints."""

from __future__ import annotations

import logging

import pytest

from klamm.config import ConfigRepository, KafkaConfig
from klamm.config.entries import broker_entries
from klamm.config.listener_settings import parse_name

BASE = {"broker.id": 1, "listeners": "OUT://localhost:0,PLAINTEXT://localhost:0",
        "listener.security.protocol.map": "OUT:SASL_SSL,PLAINTEXT:PLAINTEXT"}  # fmt: skip


def test_the_closest_setting_wins() -> None:
    config = KafkaConfig(
        BASE
        | {
            "connections.max.reauth.ms": 1,
            "listener.name.out.connections.max.reauth.ms": 2,
            "listener.name.out.scram-sha-256.connections.max.reauth.ms": 3,
            "listener.name.out.plain.sasl.jaas.config": "secret",
        }
    )
    out, plain = config.listener_settings("OUT"), config.listener_settings("PLAINTEXT")
    assert out.value("connections.max.reauth.ms", "SCRAM-SHA-256") == 3
    assert out.value("connections.max.reauth.ms", "PLAIN") == 2
    assert plain.value("connections.max.reauth.ms", "PLAIN") == 1
    assert out.value("sasl.jaas.config", "PLAIN") == "secret" and out.value("sasl.jaas.config") is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("listener.name.a.b.ssl.client.auth", ("A.B", None, "ssl.client.auth")),
        ("listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config", ("SASL_SSL", "scram-sha-512", "sasl.jaas.config")),
    ],
)
def test_names_are_split(name: str, parts: tuple[str, str | None, str]) -> None:
    found = parse_name(name)
    assert found is not None and (found.listener, found.mechanism, found.key.name) == parts


@pytest.mark.parametrize("name", ["listener.name.ssl.client.auth", "listener.name.x.num.partitions", "ssl.client.auth"])
def test_other_names_are_not_settings_of_a_listener(name: str) -> None:
    assert parse_name(name) is None


def test_secrets_are_neither_described_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = KafkaConfig(BASE | {"listener.name.out.plain.sasl.jaas.config": "s3cret", "ssl.key.password": "s3cret"})
    configs = ConfigRepository(config)
    configs.set_broker("1", {"listener.name.out.ssl.client.auth": "required", "ssl.keystore.password": "s3cret"})
    entries = {entry.name: entry for entry in broker_entries(configs)}
    assert entries["listener.name.out.plain.sasl.jaas.config"].value is None
    assert entries["listener.name.out.plain.sasl.jaas.config"].is_sensitive
    assert entries["listener.name.out.ssl.client.auth"].value == "required"
    assert "s3cret" not in repr(list(entries.values())) and "s3cret" not in caplog.text
    assert configs.config.listener_settings("OUT").value("ssl.client.auth") == "required"


def test_files_are_read_again_when_a_setting_of_tls_changes() -> None:
    configs = ConfigRepository(KafkaConfig(BASE))
    reloads: list[None] = []
    configs.reload_files = lambda: reloads.append(None)
    configs.set_broker("1", {"num.io.threads": "4"})
    assert not reloads
    configs.set_broker("1", {"num.io.threads": "4", "listener.name.out.ssl.keystore.location": "/a"})
    configs.set_broker("1", {"num.io.threads": "4", "listener.name.out.ssl.keystore.location": "/b"})
    assert len(reloads) == 2
