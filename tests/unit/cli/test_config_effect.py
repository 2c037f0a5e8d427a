"""`klamm config`: keys that klamm accepts without effect, and secrets that are not set."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from confluent_kafka.admin import ConfigSource

from klamm.cli.config import _value, warn_of_ignored
from klamm.config import BROKER_KEYS, TOPIC_KEYS
from klamm.config.definition import Support


def test_keys_without_effect_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, keys in ("broker", BROKER_KEYS), ("topic", TOPIC_KEYS):
        ignored = [name for name, key in keys.items() if key.support is Support.NO_EFFECT]
        warn_of_ignored(kind, keys)
        assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ignored


def test_the_warning_does_not_repeat_the_documentation_of_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    """`How long this broker tries to connect` does not explain why the key is ignored."""
    key = "socket.connection.setup.timeout.ms"
    warn_of_ignored("broker", [key])
    assert capsys.readouterr().err == f"Warning: {key} has no effect in klamm: docs/reference/configuration.md\n"


def test_other_keys_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_ignored("broker", ["log.retention.ms", "unknown"])
    warn_of_ignored("topic", ["retention.ms"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("is_sensitive", "source", "shown"),
    [
        (True, ConfigSource.DEFAULT_CONFIG, None),
        (True, ConfigSource.STATIC_BROKER_CONFIG, "[hidden]"),
        (False, ConfigSource.DEFAULT_CONFIG, "7"),
    ],
)
def test_a_secret_that_is_not_set_is_not_shown_as_hidden(
    is_sensitive: bool, source: ConfigSource, shown: str | None
) -> None:
    entry = Mock(value=None if is_sensitive else "7", source=source.value, is_sensitive=is_sensitive)
    assert _value(entry) == shown
