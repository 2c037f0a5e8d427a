"""`klamm config alter` names keys that klamm accepts without effect."""

from __future__ import annotations

from klamm.cli.config import why_no_effect
from klamm.config import BROKER_KEYS, TOPIC_KEYS
from klamm.config.definition import Support


def test_keys_without_effect_have_a_reason() -> None:
    assert why_no_effect("broker", "num.network.threads") == BROKER_KEYS["num.network.threads"].doc
    for kind, keys in ("broker", BROKER_KEYS), ("topic", TOPIC_KEYS):
        ignored = {name for name, key in keys.items() if key.support is Support.NO_EFFECT}
        assert {name for name in keys if why_no_effect(kind, name)} == ignored


def test_other_keys_have_none() -> None:
    assert why_no_effect("broker", "log.retention.ms") is None
    assert why_no_effect("topic", "retention.ms") is None
    assert why_no_effect("topic", "unknown") is None
