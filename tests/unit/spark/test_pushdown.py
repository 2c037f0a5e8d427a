"""Filters that are pushed: what they save, without a row that Spark would have kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual

from klamm.model import TopicPartition
from klamm.spark.source.pushdown import PushdownReader
from klamm.spark.source.read_options import parse_read_options
from klamm.spark.source.source_offsets import OffsetRange
from klamm.spark.source.topic_schema import full_schema

TP = TopicPartition("orders", 0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WHOLE = OffsetRange(TP, 0, 100)


class TimesAreOffsets:
    """A cluster whose record at offset n has the timestamp n."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def list_offsets(self, timestamps: dict[TopicPartition, int], isolation: int = 0) -> dict[TopicPartition, int]:
        self.asked += timestamps.values()
        return {tp: max(0, time) for tp, time in timestamps.items()}


def ranges(client: TimesAreOffsets, *filters: Filter) -> list[OffsetRange]:
    options = parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "orders"}, streaming=False)
    reader = PushdownReader(options, full_schema(options))
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark checks timestamps again"
    return reader._ranges([WHOLE], cast(Any, client))


@pytest.mark.parametrize("kind", [GreaterThan, GreaterThanOrEqual, EqualTo])
@pytest.mark.parametrize("milliseconds", [-62_135_596_800_000, -1000, -1, 0])
def test_a_bound_before_1970_is_left_to_spark(kind: type[Any], milliseconds: int) -> None:
    """Records may have negative timestamps, which brokers do not look for: their numbers mean earliest and latest."""
    client = TimesAreOffsets()
    bound = kind(("timestamp",), EPOCH + timedelta(milliseconds=milliseconds))
    assert ranges(client, bound) == [WHOLE]
    assert client.asked == []


def test_the_latest_bound_moves_the_start() -> None:
    client = TimesAreOffsets()
    bounds = [GreaterThan(("timestamp",), EPOCH + timedelta(milliseconds=ms)) for ms in (20, -5, 50, 0)]
    assert ranges(client, *bounds) == [OffsetRange(TP, 49, 100)]
    assert client.asked == [49]
