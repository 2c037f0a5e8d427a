"""A cluster continues after `klamm zk repair` has reset its ZooKeeper: later acknowledged records are not lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.errors import KlammError
from klamm.testing import LocalCluster
from klamm.zk.server.inspection import inspect, repair
from klamm.zk.server.txnlog import log_path, numbered

TOPIC = "orders"
WAIT_S = 120.0


def produce(cluster: LocalCluster, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    errors: list[str] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            errors.append(str(error))

    for value in values:
        producer.produce(TOPIC, value.encode(), on_delivery=on_delivery)
    assert producer.flush(WAIT_S) == 0
    assert errors == []


def consume(cluster: LocalCluster, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[str] = []

    def has_all() -> bool:
        found.extend((m.value() or b"").decode() for m in consumer.consume(count, 1.0) if m.error() is None)
        return len(found) >= count

    try:
        cluster.wait_for(has_all, WAIT_S, what=f"{count} records are read")
    finally:
        consumer.close()
    return found


@pytest.mark.long
def test_a_repaired_cluster_loses_nothing_that_it_acknowledges(tmp_path: Path) -> None:
    """The lost changes raised leader epochs and handed out producer ids, which the brokers' logs know."""
    expected: list[str] = []
    for run in range(3):
        with LocalCluster(brokers=3, data_dir=tmp_path) as cluster:
            if run == 0:
                cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
            values = [f"{run}-{number}" for number in range(20)]
            produce(cluster, values)
            expected += values
    directory = tmp_path / "zookeeper"
    last = log_path(directory, numbered(directory, "log")[-1])
    data = bytearray(last.read_bytes())
    data[200] ^= 0xFF
    last.write_bytes(data)
    with pytest.raises(KlammError, match=r"(?s)^ZooKeeper ended .* is damaged at byte .*klamm zk repair"):
        LocalCluster(brokers=3, data_dir=tmp_path).start_all()
    report = inspect(directory)
    assert report.recovered is None and report.choices, report
    repair(directory, report.choices[0].zxid, 1_700_000_000_000)
    with LocalCluster(brokers=3, data_dir=tmp_path) as cluster:
        cluster.wait_for(lambda: len(cluster.isr(TOPIC, 0)) == 3, WAIT_S, what="all replicas are in sync")
        for run in range(3, 6):
            values = [f"{run}-{number}" for number in range(20)]
            produce(cluster, values)
            expected += values
        assert consume(cluster, len(expected)) == expected
        cluster.wait_for(lambda: sorted(cluster.isr(TOPIC, 0)) == [1, 2, 3], WAIT_S, what="all replicas stay in sync")
