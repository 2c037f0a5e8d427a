"""Dynamic configuration: notified listeners, allowed steps, ignored settings."""

from __future__ import annotations

import logging

import pytest

from klamm.config import DEFAULT_BROKER, ConfigRepository, KafkaConfig, validate_broker_config
from klamm.config.topic_config import KEEP_RECORDS


def repository() -> ConfigRepository:
    return ConfigRepository(KafkaConfig({"broker.id": 1, "num.io.threads": 4}))


def test_a_brokers_setting_lies_above_the_clusters_default() -> None:
    configs = repository()
    assert configs.set_broker(DEFAULT_BROKER, {"num.io.threads": "5", "log.segment.bytes": "2048"})
    assert configs.set_broker("1", {"num.io.threads": "6"})
    assert not configs.set_broker("2", {"num.io.threads": "7"})
    assert (configs.config.num_io_threads, configs.config.log_segment_bytes) == (6, 2048)
    configs.set_broker("1", None)
    assert configs.config.num_io_threads == 5


def test_only_listeners_of_changed_keys_are_notified() -> None:
    configs = repository()
    reported: list[tuple[str, int, int]] = []
    configs.on_change(
        ["num.io.threads"], lambda old, new: reported.append(("threads", old.num_io_threads, new.num_io_threads))
    )
    configs.on_change(["log.retention.ms"], lambda old, new: reported.append(("retention", 0, 0)))
    configs.set_broker("1", {"num.io.threads": "8"})
    configs.set_broker("1", {"num.io.threads": "8"})
    assert reported == [("threads", 4, 8)]


def test_topic_listeners_get_the_effective_config() -> None:
    configs = repository()
    reported: list[tuple[str, object]] = []
    configs.on_topic_change(lambda topic, config: reported.append((topic, config["retention.ms"])))
    assert configs.set_topic("t", {"retention.ms": "7"})
    assert not configs.set_topic("t", {"retention.ms": "7"})
    assert configs.set_topic("t", {})
    assert not configs.set_topic("t", None)
    assert reported == [("t", "7"), ("t", "604800000")]
    assert configs.topic_overrides("t") == {}


def test_changes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    configs = repository()
    with caplog.at_level(logging.INFO, "klamm.config"):
        configs.set_broker(DEFAULT_BROKER, {"num.io.threads": "5"})
        configs.set_broker("1", {"num.io.threads": "5", "log.cleaner.threads": "2"})
        configs.set_broker("1", {})
        configs.set_topic("old", {"retention.ms": "1"}, is_news=False)
        configs.set_topic("t", {"retention.ms": "7"})
        configs.set_topic("t", {})
    assert [(record.levelname, record.getMessage().removeprefix("Configuration of ")) for record in caplog.records] == [
        ("INFO", "broker 1: num.io.threads is now 5"),
        ("INFO", "broker 1: log.cleaner.threads is now 2"),
        ("WARNING", "broker 1: log.cleaner.threads is accepted but has no effect in klamm"),
        ("INFO", "broker 1: log.cleaner.threads is no longer set"),
        ("INFO", "topic t: retention.ms is now 7"),
        ("INFO", "topic t: retention.ms is no longer set"),
    ]


def test_an_unusable_value_is_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    configs = repository()
    with caplog.at_level(logging.WARNING, "klamm.config"):
        configs.set_broker("1", {"num.io.threads": "many", "broker.id": "2", "log.segment.bytes": "2048"})
    assert configs.config.log_segment_bytes == 2048
    assert (configs.config.num_io_threads, configs.config.broker_id) == (4, 1)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num.io.threads": "9"}, "num.io.threads cannot go from 4 to 9 at once: expected a number from 2 to 8."),
        ({"num.io.threads": "1"}, "num.io.threads cannot go from 4 to 1 at once: expected a number from 2 to 8."),
        ({"num.io.threads": "x"}, "num.io.threads cannot be 'x': expected a whole number of 32 bits."),
        (
            {"broker.rack": "a"},
            "broker.rack cannot be changed while the broker runs: set it in the broker's file and restart.",
        ),
        (
            {"sasl.kerberos.service.name": "a"},
            "sasl.kerberos.service.name is not available: klamm does not support Kerberos yet.",
        ),
        (
            {"listener.name.x.ssl.keystore.type": "a"},
            "listener.name.x.ssl.keystore.type cannot be 'a': expected one of JKS, PEM, PKCS12.",
        ),
        (
            {"ssl.keystore.password": "a"},
            "ssl.keystore.password cannot be changed while the broker runs: "
            "it must not be stored in ZooKeeper. Set it in the broker's file.",
        ),
        (
            {"num.io.thread": "1"},
            "num.io.thread is not a broker configuration. Did you mean num.io.threads or num.network.threads?",
        ),
        ({"num.io.threads": "2", "log.segment.bytes": "2048"}, None),
        ({"num.io.threads": "8"}, None),
    ],
)
def test_validate(overrides: dict[str, str | None], message: str | None) -> None:
    config = KafkaConfig({"broker.id": 1, "num.io.threads": 4})
    assert validate_broker_config(config, overrides, per_broker=True, current={}) == message


def test_an_invalid_default_of_a_setting_that_deletes_keeps_records(caplog: pytest.LogCaptureFixture) -> None:
    configs = ConfigRepository(KafkaConfig({"broker.id": 1, "log.retention.ms": 1000, "log.retention.bytes": 5}))
    configs.set_broker(DEFAULT_BROKER, {"log.retention.ms": "abc"})
    assert (configs.topic_config("t")["retention.ms"], configs.topic_config("t")["retention.bytes"]) == ("-1", "5")
    configs.set_broker(DEFAULT_BROKER, {"log.cleanup.policy": "none", "log.retention.bytes": "7"})
    effective = configs.topic_config("t")
    assert [effective[key] for key in ("cleanup.policy", "retention.ms", "retention.bytes")] == ["delete", "-1", "-1"]
    configs.set_broker(DEFAULT_BROKER, {"log.retention.ms": "2000"})
    assert configs.topic_config("t")["retention.ms"] == "2000"
    assert "log.retention.ms: no records are deleted for this setting until it is valid" in caplog.messages


def test_an_invalid_default_policy_keeps_the_records_of_topics_with_a_retention_of_their_own() -> None:
    """The policy may have been `compact`, which ignores the retention."""
    configs = ConfigRepository(KafkaConfig({"broker.id": 1}))
    configs.set_topic("t", {"retention.ms": "1000", "retention.bytes": "5"})
    configs.set_topic("d", {"retention.ms": "1000", "cleanup.policy": "delete"})
    configs.set_broker(DEFAULT_BROKER, {"log.cleanup.policy": "compcat"})
    effective = configs.topic_config("t")
    assert [effective[key] for key in ("cleanup.policy", "retention.ms", "retention.bytes")] == ["delete", "-1", "-1"]
    assert configs.topic_config("d")["retention.ms"] == "1000"
    configs.set_broker(DEFAULT_BROKER, {"log.cleanup.policy": "delete"})
    assert configs.topic_config("t")["retention.ms"] == "1000"


def test_a_topic_that_keeps_its_records_is_not_compacted_by_default() -> None:
    """Compaction would delete records that have the same key, or none."""
    configs = ConfigRepository(KafkaConfig({"broker.id": 1, "log.cleanup.policy": "compact"}))
    configs.set_topic("t", KEEP_RECORDS)
    effective = configs.topic_config("t")
    assert [effective[key] for key in ("cleanup.policy", "retention.ms", "retention.bytes")] == ["delete", "-1", "-1"]
