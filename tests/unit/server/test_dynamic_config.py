"""Changed settings reach all logs and partitions in slices, and the newest setting remains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.controller.controller_runner import ControllerHandle
from klamm.server import dynamic_config
from klamm.server.dynamic_config import follow_topic_configs
from tests.support.one_broker import OneBroker

SLICE = 12
TOPICS = ("a", "b", "c")
PARTITIONS = 10


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneBroker]:
    monkeypatch.setattr(dynamic_config, "LOGS_PER_SLICE", SLICE)
    broker = OneBroker(tmp_path)
    for topic in TOPICS:
        broker.lead(topic, PARTITIONS)
    follow_topic_configs(broker.broker, ControllerHandle(broker.loop))
    yield broker
    broker.close()


def retentions(one: OneBroker) -> list[int]:
    return [log.config.retention_ms for log in one.broker.logs.logs.values()]


def set_default(one: OneBroker, retention_ms: int) -> None:
    one.broker.configs.set_broker("1", {"log.retention.ms": str(retention_ms)})


def spin_until(one: OneBroker, expected: list[int]) -> None:
    """The loop turns until every log has its setting; far more turns than a pass has slices are a failure."""
    for _ in range(100):
        if retentions(one) == expected:
            return
        one.spin()
    assert retentions(one) == expected


def test_a_default_of_all_topics_is_applied_in_slices(one: OneBroker) -> None:
    set_default(one, 1000)
    assert 0 < retentions(one).count(1000) <= SLICE, "the first slice is applied at once"
    spin_until(one, [1000] * len(TOPICS) * PARTITIONS)
    assert one.broker.logs.default_config.retention_ms == 1000


def test_the_newest_setting_remains(one: OneBroker) -> None:
    """The second change comes while the first is being applied, and a topic gets a setting of its own meanwhile."""
    set_default(one, 1000)
    assert 0 < retentions(one).count(1000) < len(TOPICS) * PARTITIONS
    set_default(one, 2000)
    one.broker.configs.set_topic("a", {"retention.ms": "3000"})
    expected = [3000] * PARTITIONS + [2000] * 2 * PARTITIONS
    spin_until(one, expected)
    for _ in range(10):
        one.spin()
    assert retentions(one) == expected


def test_a_log_that_is_created_meanwhile_gets_the_setting(one: OneBroker) -> None:
    set_default(one, 1000)
    for topic in TOPICS:
        one.lead(topic, PARTITIONS + 1)
    set_default(one, 2000)
    for topic in TOPICS:
        one.lead(topic, PARTITIONS + 2)
    spin_until(one, [2000] * len(TOPICS) * (PARTITIONS + 2))
