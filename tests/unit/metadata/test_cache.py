"""MetadataCache: a callback that waits for a broker is called once, during the update that adds the broker."""

from __future__ import annotations

import pytest

from klamm.metadata import MetadataCache
from klamm.metadata.update import MAX_PARTITIONS, MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import BrokerEndPoints, EndPoint, TopicPartition


def alive(*broker_ids: int) -> MetadataUpdate:
    return MetadataUpdate(1, 1, tuple(BrokerEndPoints(broker_id, ()) for broker_id in broker_ids), ())


def test_waiting_for_a_broker() -> None:
    cache = MetadataCache(1)
    received: list[str] = []
    cache.when_alive(1, lambda: received.append("first"))
    cache.when_alive(2, lambda: received.append("second"))
    cache.update(alive(2))
    assert received == ["second"]
    cache.update(alive(1, 2))
    cache.update(alive(1, 2))
    assert received == ["second", "first"]
    cache.when_alive(1, lambda: received.append("at once"))
    assert received[-1] == "at once"


def test_an_update_in_slices_is_known_with_its_last_slice() -> None:
    cache = MetadataCache(1)
    received: list[str] = []
    cache.when_alive(1, lambda: received.append("alive"))
    cache.when_partitions_known(lambda: received.append("partitions"))
    states = tuple(PartitionState("t", index, 1, 1, 0, (1,), 0, (1,)) for index in range(2 * MAX_PARTITIONS))
    for start in (0, MAX_PARTITIONS):
        topic = TopicUpdate("t", states[start : start + MAX_PARTITIONS])
        cache.update(MetadataUpdate(1, 1, (BrokerEndPoints(1, ()),), (topic,), is_sliced=True))
    assert received == [], "a full slice has another behind it"
    cache.update(alive(1))
    assert received == ["alive", "partitions"]


def test_a_controller_that_sends_all_at_once_is_not_waited_for_after_any_number_of_partitions() -> None:
    """A controller of Kafka in a cluster of just so many partitions: nothing is behind its first update."""
    cache = MetadataCache(1)
    received: list[str] = []
    cache.when_alive(1, lambda: received.append("alive"))
    cache.when_partitions_known(lambda: received.append("partitions"))
    states = tuple(PartitionState("t", index, 1, 1, 0, (1,), 0, (1,)) for index in range(MAX_PARTITIONS))
    cache.update(MetadataUpdate(1, 1, (BrokerEndPoints(1, ()),), (TopicUpdate("t", states),)))
    assert received == ["alive", "partitions"]


def test_the_list_of_live_brokers_leaves_partitions_unchanged() -> None:
    cache = MetadataCache(1)
    received: list[str] = []
    cache.when_partitions_known(lambda: received.append("partitions"))
    cache.update(alive(1))
    assert not received
    cache.update(MetadataUpdate(1, 1, (), (TopicUpdate("t", (PartitionState("t", 0, 1, 1, 0, (1,), 0, (1,)),)),)))
    assert received == ["partitions"]


def node(broker_id: int, *listeners: str) -> BrokerEndPoints:
    return BrokerEndPoints(broker_id, tuple(EndPoint(name, "host", 9092) for name in listeners))


def test_replicas_that_a_listener_reaches() -> None:
    cache = MetadataCache(1)
    brokers = (node(1, "A", "B"), node(2, "A"), node(4, "A", "B"))
    partition = PartitionState("t", 0, 1, 1, 0, (1,), 0, (1, 2, 3))
    cache.update(MetadataUpdate(1, 1, brokers, (TopicUpdate("t", (partition,)),)))
    tp = TopicPartition("t", 0)
    assert cache.get_all_partitions() == {tp}
    assert cache.get_partition_replica_endpoints(tp, "A") == {1: brokers[0], 2: brokers[1]}
    assert cache.get_partition_replica_endpoints(tp, "B") == {1: brokers[0]}
    assert cache.get_partition_replica_endpoints(TopicPartition("u", 0), "A") == {}


def test_different_listeners_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    cache = MetadataCache(1)
    cache.update(MetadataUpdate(1, 1, (node(1, "A"), node(2, "A")), ()))
    assert not caplog.messages
    for _ in range(2):
        cache.update(MetadataUpdate(1, 1, (node(1, "A"), node(2, "A", "B")), ()))
    message = "Listeners are not identical across brokers: this broker has A, but broker 2 has A, B"
    assert caplog.messages == [message]
