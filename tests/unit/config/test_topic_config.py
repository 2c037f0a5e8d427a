"""Topic configuration: what is accepted, and what the broker's keys give when a topic says nothing."""

from __future__ import annotations

import pytest

from klamm.config import TOPIC_KEYS, KafkaConfig, effective_topic_config, validate_topic_config
from klamm.log import LogConfig


def test_every_default_agrees_with_the_default_of_its_broker_keys() -> None:
    effective = effective_topic_config({}, KafkaConfig())
    assert effective == {name: key.default_text for name, key in TOPIC_KEYS.items()}


def test_synonyms_give_the_default_in_the_topic_keys_unit() -> None:
    broker = KafkaConfig({"log.retention.minutes": 2, "log.roll.hours": 1, "min.insync.replicas": 2})
    effective = effective_topic_config({"retention.bytes": "10"}, broker)
    assert effective["retention.ms"] == "120000"
    assert effective["segment.ms"] == "3600000"
    assert effective["min.insync.replicas"] == "2"
    assert effective["retention.bytes"] == "10"


def test_keys_of_a_newer_kafka_in_zookeeper_are_ignored() -> None:
    effective = effective_topic_config({"from.the.future": "1", "segment.ms": "soon"}, KafkaConfig())
    assert effective["segment.ms"] == "604800000"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"retention.ms": "abc"}, {"retention.ms": "-1", "retention.bytes": "10"}),
        ({"retention.bytes": "1 GiB"}, {"retention.ms": "604800000", "retention.bytes": "-1"}),
        ({"cleanup.policy": "keep", "retention.ms": "1"}, {"retention.ms": "-1", "retention.bytes": "-1"}),
        ({"delete.retention.ms": "-5"}, {"delete.retention.ms": "3153600000000"}),
        ({"min.compaction.lag.ms": "one day"}, {"min.compaction.lag.ms": "3153600000000"}),
    ],
)
def test_an_invalid_value_deletes_nothing(overrides: dict[str, str], expected: dict[str, str]) -> None:
    effective = effective_topic_config(overrides, KafkaConfig({"log.retention.bytes": 10}))
    assert effective["cleanup.policy"] == "delete"
    assert {name: effective[name] for name in expected} == expected
    assert LogConfig.from_properties(effective)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"retention.m": "1"},
            "retention.m is not a topic configuration. Did you mean retention.ms or retention.bytes?",
        ),
        ({"retention.ms": "x"}, "retention.ms cannot be 'x': expected a whole number of 64 bits."),
        ({"retention.ms": "-2"}, "retention.ms cannot be '-2': expected a number of at least -1."),
        ({"retention.ms": None}, "retention.ms has no value: expected a value, or leave the key out for the default."),
        ({"cleanup.policy": "keep"}, "cleanup.policy cannot be 'keep': expected one of compact, delete."),
        (
            {"min.cleanable.dirty.ratio": "0.0_5"},
            "min.cleanable.dirty.ratio cannot be '0.0_5': expected a number.",
        ),
        (
            {"min.cleanable.dirty.ratio": "1.5"},
            "min.cleanable.dirty.ratio cannot be '1.5': expected a number from 0 to 1.",
        ),
        (
            {"max.message.bytes": str(2**31)},
            f"max.message.bytes cannot be '{2**31}': expected a whole number of 32 bits.",
        ),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "min.compaction.lag.ms cannot be 5: expected at most max.compaction.lag.ms (4).",
        ),
        (
            {"remote.storage.enable": "true"},
            "remote.storage.enable cannot be 'true': expected false: klamm does not have tiered storage yet.",
        ),
        (
            {"leader.replication.throttled.replicas": "1-2"},
            "leader.replication.throttled.replicas cannot be '1-2': "
            "expected '*' or pairs of partition:broker, separated by commas.",
        ),
        (
            {"follower.replication.throttled.replicas": f"{2**31}:1"},
            f"follower.replication.throttled.replicas cannot be '{2**31}:1': "
            "expected '*' or pairs of partition:broker, separated by commas.",
        ),
    ],
)
def test_refused(overrides: dict[str, str | None], message: str) -> None:
    assert validate_topic_config(overrides) == message


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"cleanup.policy": "compact,delete", "retention.ms": "-1", "compression.type": "zstd"},
        {"preallocate": "TRUE", "segment.bytes": " 1024 "},
        {"follower.replication.throttled.replicas": "0:1,1:2"},
    ],
)
def test_accepted(overrides: dict[str, str | None]) -> None:
    assert validate_topic_config(overrides) is None
