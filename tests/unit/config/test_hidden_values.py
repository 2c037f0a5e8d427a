"""Values that DescribeConfigs does not show: passwords, and the parts of addresses that may be secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from klamm.config.entries import broker_entries, default_broker_entries
from klamm.config.kafka_config import BROKER_KEYS
from klamm.config.listener_settings import LISTENER_KEYS
from klamm.config.shown_url import shown_url
from klamm.config.values import ConfigType
from tests.support.one_broker import OneBroker

SECRET: Final = "user:s3cret"
PASSWORDS: Final = sorted(name for name, key in BROKER_KEYS.items() if key.kind is ConfigType.PASSWORD)
PREFIXES: Final = ("listener.name.plaintext.", "listener.name.plaintext.plain.")
ADDRESSES: Final = ("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.token.endpoint.url")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    """Every password, and every address, also with the prefixes of a listener: in the file and in ZooKeeper."""
    settings = dict.fromkeys(PASSWORDS, SECRET)
    for prefix in PREFIXES:
        settings |= {f"{prefix}{name}": SECRET for name in PASSWORDS if name in LISTENER_KEYS}
    for name in ADDRESSES:
        url = "https://user:s3cret@issuer:8443/keys?token=s3cret#s3cret"
        settings |= {name: url, f"listener.name.plaintext.oauthbearer.{name}": url}
    broker = OneBroker(tmp_path, settings)
    for entity in ("1", "<default>"):
        broker.broker.configs.set_broker(entity, {name: SECRET for name in settings if "ssl." in name})
    yield broker
    broker.close()


def test_no_form_of_a_password_is_shown(one: OneBroker) -> None:
    configs = one.broker.configs
    entries = [*broker_entries(configs), *default_broker_entries(configs)]
    sensitive = {entry.name for entry in entries if entry.is_sensitive}
    assert sensitive >= set(PASSWORDS)
    assert sensitive >= {f"{prefix}{name}" for prefix in PREFIXES for name in PASSWORDS if name in LISTENER_KEYS}
    for entry in entries:
        if entry.is_sensitive:
            assert entry.value is None and {synonym.value for synonym in entry.synonyms} <= {None}, entry.name
    assert any(len(entry.synonyms) > 1 for entry in entries if entry.is_sensitive), "there are several sources"
    assert "s3cret" not in str(entries)


def test_addresses_are_shown_as_in_the_log(one: OneBroker) -> None:
    entries = {entry.name: entry for entry in broker_entries(one.broker.configs)}
    shown = "https://issuer:8443/keys?[hidden]"
    for name in ADDRESSES:
        for key in (name, f"listener.name.plaintext.oauthbearer.{name}"):
            values = [entries[key].value, *(synonym.value for synonym in entries[key].synonyms)]
            assert len(values) > 1 and set(values) == {shown}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://issuer/keys", "https://issuer/keys"),
        ("file:/etc/keys.json", "file:/etc/keys.json"),
        ("https://issuer/keys?k=v", "https://issuer/keys?[hidden]"),
        ("https://issuer/keys#part", "https://issuer/keys?[hidden]"),
        ("http://u:p@[::1]:8080/k", "http://[::1]:8080/k"),
        ("https://u:p@q@issuer/", "https://issuer/"),
        ("https://[broken", "[hidden]"),
    ],
)
def test_addresses_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown
