"""KIP-73: which replicas are throttled, how the rate is sampled, and which replicas wait. Time is an argument."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from klamm.apis import fetch
from klamm.clock import elapsed_ms
from klamm.config import KafkaConfig
from klamm.config.repository import validate_broker_config
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.metrics.instruments import Gauge
from klamm.model import TopicPartition
from klamm.replica.replication_quota import ReplicationQuotaManager, SampledRate, throttled_partitions
from klamm.server.dynamic_config import follow_throttles
from tests.support.followers import TP, Brokers
from tests.support.one_broker import ManualClock, OneBroker, batch
from tests.unit.apis.test_fetch import ID, only, request, values


class TestRate:
    def test_bytes_a_second_over_the_last_windows(self) -> None:
        clock = ManualClock()
        rate = SampledRate(clock, sample_count=3, window_s=1.0)
        assert rate.measure() == 0
        rate.record(600)
        assert rate.measure() == 600, "less than a window counts as one"
        clock.elapsed_ms = 2000
        rate.record(100)
        assert rate.measure() == 350
        clock.elapsed_ms = 2900
        assert rate.measure() == pytest.approx(700 / 2.9)
        clock.elapsed_ms = 3000
        assert rate.measure() == 100, "the oldest window has gone"
        clock.elapsed_ms = 9000
        assert rate.measure() == 0

    def test_when_it_will_be_low_enough(self) -> None:
        clock = ManualClock()
        rate = SampledRate(clock, sample_count=11, window_s=1.0)
        rate.record(5000)
        assert rate.seconds_until(1000) == 5.0
        assert rate.seconds_until(0) == rate.seconds_until(1) == 11.0
        assert rate.seconds_until(5000) == 0
        clock.elapsed_ms = 4000
        assert rate.seconds_until(1000) == 1.0 and rate.measure() == 1250
        clock.elapsed_ms = 5000
        assert rate.seconds_until(1000) == 0 and rate.measure() == 1000


class TestThrottledReplicas:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("*", None),
            ("", frozenset()),
            ("none", frozenset()),
            ("0:1,3:1,1:2", {0, 3}),
            ("x:1,:,7", frozenset()),
            ("4:1," + "9" * 5000 + ":1,2147483648:1,5:" + "9" * 5000, {4}),
        ],
        ids=["all", "empty", "none", "pairs", "not pairs", "numbers that Python refuses to parse"],
    )
    def test_the_throttled_replicas_of_a_topic_on_this_broker(self, text: str, expected: set[int] | None) -> None:
        assert throttled_partitions([pair for pair in text.split(",") if pair], 1) == expected

    def test_partitions_of_a_topic(self) -> None:
        quota = ReplicationQuotaManager("LeaderReplication", ManualClock(), MetricsRegistry(ManualClock()))
        assert not quota.has_throttled
        quota.throttle("t", frozenset({1}))
        quota.throttle("all", None)
        answers = [quota.is_throttled(TopicPartition(*tp)) for tp in (("t", 0), ("t", 1), ("all", 9), ("other", 0))]
        assert answers == [False, True, True, False]
        quota.throttle("t", frozenset())
        quota.throttle("all", frozenset())
        assert not quota.has_throttled

    def test_configurations_reach_the_quotas(self, tmp_path: Path) -> None:
        one = OneBroker(tmp_path)
        configs, quotas = one.broker.configs, one.broker.replicas.quotas
        configs.set_topic("before", {"leader.replication.throttled.replicas": "*"})
        configs.set_broker("1", {"leader.replication.throttled.rate": "500"})
        follow_throttles(one.broker)
        assert quotas.leader.limit == 500 and quotas.leader.is_throttled(TopicPartition("before", 4))
        configs.set_topic("t", {"follower.replication.throttled.replicas": "0:1, 1:2"})
        assert [quotas.follower.is_throttled(TopicPartition("t", p)) for p in (0, 1)] == [True, False]
        configs.set_broker("1", {"follower.replication.throttled.rate": "70"})
        assert quotas.follower.limit == 70 and quotas.leader.limit == (1 << 63) - 1
        configs.set_topic("t", None)
        configs.set_topic("before", {"retention.ms": "1"})
        assert not quotas.follower.has_throttled and not quotas.leader.has_throttled
        one.close()

    def test_rates_are_of_each_broker(self) -> None:
        config = KafkaConfig({"broker.id": "1"})
        rate = {"leader.replication.throttled.rate": "-1"}
        problem = validate_broker_config(config, rate, per_broker=True, current={})
        assert problem is not None and "leader.replication.throttled.rate cannot be '-1'" in problem
        problem = validate_broker_config(config, {**rate}, per_broker=False, current={})
        assert problem is not None and "set it for each broker" in problem


class TestLeader:
    @pytest.fixture
    def leader(self, tmp_path: Path) -> Iterator[OneBroker]:
        """Broker 1 leads; 2 is in sync and 3 is not; 100 bytes per second are allowed and have been exceeded."""
        one = OneBroker(tmp_path)
        one.lead("t", topic_id=ID, replicas=(1, 2, 3), isr=(1, 2))
        one.broker.replicas.quotas.leader.throttle("t", None)
        one.broker.replicas.quotas.leader.limit = 100
        for _ in range(3):
            append_one(one)
        yield one
        one.close()

    def fetch(self, one: OneBroker, replica_id: int, offset: int = 0, **fields: Any) -> Any:
        return one.dispatch(fetch.API, request({0: offset}, replica_id=replica_id, **fields), 12)

    def test_a_follower_out_of_sync_is_held_back_and_all_are_counted(self, leader: OneBroker) -> None:
        quota = leader.broker.replicas.quotas.leader
        first = only(self.fetch(leader, 3))
        size = leader.broker.logs.logs[TP].size_bytes
        assert len(values(first)) == 3 and quota.bytes.count == size and quota.is_exceeded
        held_back = only(self.fetch(leader, 3))
        assert (held_back.error_code, values(held_back)) == (0, [])
        assert leader.broker.replicas.partitions[TP].remotes[3].log_end_offset == 0, "its progress is noted"
        assert len(values(only(self.fetch(leader, 2)))) == 3
        assert quota.bytes.count == 2 * size
        gauge = leader.broker.metrics.find("kafka.server", "LeaderReplication", "byte-rate")
        assert isinstance(gauge, Gauge) and gauge.value == 2 * size
        leader.clock.elapsed_ms += 11_000
        assert len(values(only(self.fetch(leader, 3)))) == 3

    def test_a_fetch_that_is_held_back_waits(self, leader: OneBroker) -> None:
        self.fetch(leader, 3)
        waiting = self.fetch(leader, 3, max_wait_ms=60_000)
        append_one(leader)
        leader.spin()
        assert not waiting.done()
        leader.clock.elapsed_ms += 11_000
        append_one(leader)
        assert len(values(only(leader.run(waiting)))) == 5

    def test_consumers_and_other_topics_are_not_concerned(self, leader: OneBroker) -> None:
        self.fetch(leader, 3)
        counted = leader.broker.replicas.quotas.leader.bytes.count
        leader.broker.replicas.partitions[TP].log.update_high_watermark(3)  # type: ignore[union-attr]
        assert len(values(only(leader.ask(fetch.API, request(), 10)))) == 3
        leader.broker.replicas.quotas.leader.throttle("t", frozenset())
        assert len(values(only(self.fetch(leader, 3)))) == 3
        assert leader.broker.replicas.quotas.leader.bytes.count == counted


def append_one(one: OneBroker) -> None:
    result = one.broker.replicas.partitions[TP].append_records_to_leader(batch(b"x" * 100), 1, elapsed_ms(one.clock))
    assert not isinstance(result, ErrorCode) and result.error == 0
    one.broker.replicas.complete_after_append(TP)


class TestFollower:
    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Iterator[Brokers]:
        brokers = Brokers(tmp_path, max_bytes=1)
        yield brokers
        brokers.close()

    def test_a_lagging_partition_is_not_fetched_until_there_is_room(self, cluster: Brokers) -> None:
        cluster.elect(1, isr=(1,))
        for _ in range(4):
            cluster.append(b"x" * 200)
        follower = cluster.brokers[2]
        quota = follower.broker.replicas.quotas.follower
        quota.throttle("t", None)
        quota.limit = 250
        cluster.round(2)
        while not cluster.log(2).log_end_offset:
            cluster.round(2)
        copied = cluster.log(2).log_end_offset
        assert copied < 4 and quota.bytes.count == cluster.log(2).size_bytes and quota.is_exceeded
        fetcher = cluster.fetchers[2]
        follower.loop.run_until_complete(fetcher._hold_back())
        assert not len(fetcher._session) and fetcher._seconds_to_next() is not None
        for _ in range(40):
            follower.clock.elapsed_ms += 11_000
            cluster.round(2)
        assert cluster.log(2).log_end_offset == 4, "it gets there"
        assert quota.bytes.count == cluster.log(2).size_bytes

    def test_a_follower_that_has_caught_up_is_never_held_back(self, cluster: Brokers) -> None:
        cluster.elect(1)
        cluster.append(b"a")
        cluster.catch_up(2)
        cluster.round(2)
        quota = cluster.brokers[2].broker.replicas.quotas.follower
        quota.throttle("t", None)
        quota.limit = 0
        quota.record(1000)
        assert quota.is_exceeded
        cluster.append(b"b")
        cluster.round(2)
        assert cluster.log(2).log_end_offset == 2

    def test_a_partition_that_leaves_while_it_is_held_back_is_forgotten(self, cluster: Brokers) -> None:
        cluster.elect(1, isr=(1,))
        cluster.append(b"a")
        fetcher = cluster.fetchers[2]
        quota = cluster.brokers[2].broker.replicas.quotas.follower
        quota.throttle("t", None)
        quota.limit = 0
        quota.record(1000)
        while fetcher._truncating:
            cluster.round(2)
        assert fetcher._throttled and not fetcher.is_idle and not cluster.log(2).log_end_offset
        fetcher.remove([TP])
        assert not fetcher._throttled and fetcher.is_idle

    def test_a_partition_whose_throttle_is_removed_continues(self, cluster: Brokers) -> None:
        cluster.elect(1, isr=(1,))
        cluster.append(b"a")
        fetcher = cluster.fetchers[2]
        quota = cluster.brokers[2].broker.replicas.quotas.follower
        quota.throttle("t", None)
        quota.throttle("other", None)
        quota.limit = 0
        quota.record(1000)
        while fetcher._truncating:
            cluster.round(2)
        assert fetcher._throttled and fetcher._seconds_to_next() == 1.0
        quota.throttle("t", frozenset())
        cluster.round(2)
        assert not fetcher._throttled and cluster.log(2).log_end_offset == 1


class TestLag:
    def test_how_far_a_follower_is_behind(self, tmp_path: Path) -> None:
        cluster = Brokers(tmp_path, max_bytes=1)
        cluster.elect(1)
        metrics = cluster.brokers[2].broker.metrics
        tags = {"clientId": "fetcher", "topic": "t", "partition": "0"}

        def lag() -> object:
            return cast(Gauge, metrics.find("kafka.server", "FetcherLagMetrics", "ConsumerLag", tags)).value

        assert lag() == -1
        for _ in range(3):
            cluster.append(b"a")
        cluster.catch_up(2)
        cluster.round(2)
        assert lag() == 0
        cluster.log(1).update_high_watermark(3)
        cluster.fetchers[2].remove([TP])
        assert metrics.find("kafka.server", "FetcherLagMetrics", "ConsumerLag", tags) is None
        cluster.close()
