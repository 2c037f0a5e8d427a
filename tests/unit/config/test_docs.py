"""The documentation says what the declarations say, and the declarations what the code does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import pytest

from klamm.cli.up import UP_DEFAULTS
from klamm.config import BROKER_KEYS, TOPIC_KEYS, Support, docs
from klamm.config.definition import AnyKey
from klamm.config.listener_settings import LISTENER_KEYS
from klamm.errors import ConfigError
from klamm.local.broker_settings import TEST_DEFAULTS, defaults_by_size
from tests.support.source_tree import ROOT, modules


def test_the_documentation_is_fresh() -> None:
    written = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert written == docs.render(), "run: make docs"


@pytest.mark.parametrize(
    ("where", "defaults"),
    [
        ("`klamm up` sets", UP_DEFAULTS),
        ("`LocalCluster` and", TEST_DEFAULTS),
        ("`LocalCluster` and", {"zookeeper.session.timeout.ms": defaults_by_size(3)["zookeeper.session.timeout.ms"]}),
    ],
    ids=["up", "LocalCluster", "LocalCluster of 3"],
)
def test_the_defaults_of_up_and_of_tests_are_documented(where: str, defaults: Mapping[str, object]) -> None:
    paragraph = docs.render().replace("\n\n", "\0").replace("\n", " ").partition(where)[2].partition("\0")[0]
    for key, value in defaults.items():
        assert f"`{key}` is {str(value).lower()}" in paragraph


@cache
def readers() -> str:
    """All code that may read a key, without the declarations and without code that only writes a broker's file."""
    declarations = {"network_keys", "log_keys", "cluster_keys", "topic_keys", "security_keys", "docs"}
    others = ("klamm.cli", "klamm.testing")
    return "\n".join(
        m.text for m in modules() if m.name.rpartition(".")[2] not in declarations and not m.name.startswith(others)
    )


@pytest.mark.parametrize("key", BROKER_KEYS.values(), ids=lambda key: key.name)
def test_a_key_is_honoured_exactly_if_its_documentation_says_so(key: AnyKey) -> None:
    """A key that code reads is not marked as without effect; one that nothing reads is."""
    topics = [topic for topic in TOPIC_KEYS.values() if key.name in topic.synonyms]
    gives_a_default = any(topic.support is Support.HONOURED for topic in topics)
    is_read = gives_a_default or re.search(rf"\.{key.attribute}\b", readers()) is not None
    is_read = is_read or (key.name in LISTENER_KEYS and f'"{key.name}"' in readers())
    if key.support is not Support.ONLY_DEFAULT:
        assert is_read == (key.support is Support.HONOURED), f"support={key.support} of {key.name} is not true"


def test_keys_of_missing_features_accept_only_their_default() -> None:
    keys = [*BROKER_KEYS.values(), *TOPIC_KEYS.values()]
    for key in (key for key in keys if key.support is Support.ONLY_DEFAULT):
        with pytest.raises(ConfigError):
            key.parse("true" if key.default is False else "something")
