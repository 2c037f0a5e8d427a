"""Which partitions are read, when brokers do not report them at once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytest

from klamm.client.client_errors import UnreachableError
from klamm.client.connection_pool import ClientConfig
from klamm.client.patience import Patience
from klamm.model import TopicPartition
from klamm.spark.source.planner import Planner
from klamm.spark.source.read_options import OptionError, parse_read_options
from klamm.spark.source.source_offsets import OffsetRange

TP = TopicPartition("orders", 0)


class FakeClient:
    """A broker that has just started: it knows of no topic until it was asked `late` times."""

    config = ClientConfig(bootstrap=())

    def __init__(self, late: int) -> None:
        self.late = late

    def within(self, _: Patience) -> AbstractContextManager[None]:
        return nullcontext()

    def topics(self, names: Any, pattern: str | None) -> dict[str, list[int]]:
        self.late -= 1
        return {} if self.late >= 0 else {"orders": [0]}


class OldClient(FakeClient):
    """One that has the offsets 5 to 9."""

    def __init__(self) -> None:
        super().__init__(late=0)

    def earliest(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 5)

    def latest(self, tps: tuple[TopicPartition, ...], isolation: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 10)


class AwayClient(FakeClient):
    def __init__(self) -> None:
        super().__init__(late=0)
        self.asked = 0

    def topics(self, names: Any, pattern: str | None) -> dict[str, list[int]]:
        self.asked += 1
        raise UnreachableError("nobody there")


def planner(client: FakeClient, waits: list[float]) -> Planner:
    options = parse_read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "orders"}, streaming=True)
    return Planner(options, cast(Any, client), sleep=waits.append)


def test_a_partition_that_was_read_before_is_not_given_up_quickly() -> None:
    waits: list[float] = []
    assert planner(FakeClient(late=20), waits).partitions(frozenset([TP])) == (TP,)
    assert sum(waits) == pytest.approx(4.0)
    assert planner(FakeClient(late=1000), waits).partitions(frozenset([TP])) == ()


def test_a_topic_that_does_not_exist_is_reported_soon() -> None:
    waits: list[float] = []
    with pytest.raises(OptionError, match="'subscribe' names topic 'orders', which does not exist"):
        planner(FakeClient(late=1000), waits).partitions()
    assert sum(waits) <= 1.01


def test_a_cluster_that_was_never_reached_is_asked_once() -> None:
    client = AwayClient()
    with pytest.raises(UnreachableError):
        planner(client, []).partitions()
    assert client.asked == 1


def with_offsets(given: dict[str, str], *, streaming: bool = False) -> Planner:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "orders"} | given
    return Planner(parse_read_options(options, streaming=streaming), cast(Any, OldClient()))


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_an_offset_beyond_the_end_is_a_wrong_option(name: str, caplog: pytest.LogCaptureFixture) -> None:
    given = {name: '{"orders":{"0":11}}'}
    reported = f"Option '{name}' names offset 11 of orders-0, which is beyond its end: the log ends at 10"
    with pytest.raises(OptionError, match=reported):
        with_offsets(given).batch_ranges()
    ranges = [] if name == "startingOffsets" else [OffsetRange(TP, 5, 10)]
    assert with_offsets({**given, "failOnDataLoss": "false"}).batch_ranges() == ranges
    assert reported in caplog.text
    with pytest.raises(OptionError, match="the last stable offset is 10"):
        with_offsets({**given, "kafka.isolation.level": "read_committed"}).batch_ranges()
    assert len(with_offsets({name: '{"orders":{"0":10}}'}).batch_ranges()) == (name == "endingOffsets")


def test_a_stream_does_not_begin_beyond_the_end() -> None:
    for offset in (11, 10):
        stream = with_offsets({"startingOffsets": f'{{"orders":{{"0":{offset}}}}}'}, streaming=True)
        if offset == 10:
            assert stream.starting_stream((TP,)) == {TP: 10}
            continue
        with pytest.raises(OptionError, match="'startingOffsets' names offset 11 of orders-0"):
            stream.starting_stream((TP,))
