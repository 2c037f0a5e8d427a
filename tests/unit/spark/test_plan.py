"""Which partitions are read, when brokers do not tell at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from klamm.model import TopicPartition
from klamm.spark.options import OptionError, parse_read_options
from klamm.spark.plan import Planner

TP = TopicPartition("orders", 0)


class FakeClient:
    """A broker that has just started: it knows of no topic until it was asked `late` times."""

    def __init__(self, late: int) -> None:
        self.late = late

    def topics(self, names: Any, pattern: str | None) -> dict[str, list[int]]:
        self.late -= 1
        return {} if self.late >= 0 else {"orders": [0]}


def planner(client: FakeClient, waits: list[float]) -> Planner:
    options = parse_read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "orders"}, streaming=True)
    return Planner(options, cast(Any, client), sleep=waits.append)


def test_a_partition_that_was_read_before_is_not_given_up_quickly() -> None:
    waits: list[float] = []
    assert planner(FakeClient(late=20), waits).partitions(frozenset([TP])) == (TP,)
    assert sum(waits) == pytest.approx(4.0)
    assert planner(FakeClient(late=1000), waits).partitions(frozenset([TP])) == ()


def test_a_topic_that_does_not_exist_is_told_soon() -> None:
    waits: list[float] = []
    with pytest.raises(OptionError, match="'subscribe' names topic 'orders', which does not exist"):
        planner(FakeClient(late=1000), waits).partitions()
    assert sum(waits) <= 1.01
