"""Replicas move between the directories of their brokers while a client writes, also over a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka.admin import KafkaAdminClient
from kafka.errors import NoError
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import RawClient

TOPIC = "moved"
VALUE = b"v" * 1000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers with two directories each. Copies stop after their first chunk until the limit is raised."""
    configs: dict[object, object] = {
        broker: {
            **CALM,
            "log.dirs": f"{tmp_path}/broker-{broker}/a,{tmp_path}/broker-{broker}/b",
            "replica.alter.log.dirs.io.max.bytes.per.second": 1 if broker == 1 else 1 << 40,
        }
        for broker in (1, 2)
    }
    with LocalCluster(brokers=2, broker_configs=configs) as running:  # type: ignore[arg-type]
        yield running


def replicas(cluster: LocalCluster, broker: int) -> dict[str, tuple[bool, int]]:
    """(is future, offset lag) by directory."""
    client = RawClient(cluster.port(broker))
    answer = client.ask(DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse)
    return {
        result.log_dir: (p.is_future_key, p.offset_lag)
        for result in answer.results
        for topic in result.topics
        if topic.name == TOPIC
        for p in topic.partitions
    }


def move(cluster: LocalCluster, broker: int) -> tuple[str, str]:
    """Asks for a move to the other directory; returns (source, target)."""
    (source,) = replicas(cluster, broker)
    target = source[:-1] + ("b" if source.endswith("a") else "a")
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        (error,) = admin.alter_replica_log_dirs({(TOPIC, 0, broker): target}).values()
    finally:
        admin.close()
    assert error is NoError
    return source, target


def raise_limit(cluster: LocalCluster) -> None:
    key = "replica.alter.log.dirs.io.max.bytes.per.second"
    entry = ConfigEntry(key, str(1 << 40), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def test_leader_and_follower_move_under_load_and_after_a_kill(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create_topic(TOPIC, replication_factor=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5})
    sent = 0

    def produce(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.produce(TOPIC, VALUE, key=b"%d" % sent)
            sent += 1
        assert producer.flush(120) == 0

    produce(1000)
    (before,) = replicas(cluster, 2)
    other = before[:-1] + ("b" if before.endswith("a") else "a")
    file = tmp_path / "moves.json"
    leader = cluster.leader(TOPIC, 0)
    order = [leader, 3 - leader]
    log_dirs = [other if broker == 2 else "any" for broker in order]
    entry = {"topic": TOPIC, "partition": 0, "replicas": order, "log_dirs": log_dirs}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    done = CliRunner().invoke(app, ["partition", "reassign", "-f", str(file), "-b", cluster.bootstrap_servers])
    assert done.exit_code == 0, (done.output, done.exception)
    produce(200)
    cluster.wait_for(lambda: set(replicas(cluster, 2)) == {other}, what="broker 2 moved its replica")

    source, target = move(cluster, 1)
    cluster.wait_for(lambda: replicas(cluster, 1).get(target, (False, 0))[0], what="broker 1 shows the copy")
    produce(200)
    assert replicas(cluster, 1)[target][1] > 0 and replicas(cluster, 1)[source] == (False, 0)
    cluster.kill(1)
    cluster.start(1)
    assert replicas(cluster, 1)[target][0], "the copy is still there after the kill"
    raise_limit(cluster)
    produce(200)
    cluster.wait_for(lambda: set(replicas(cluster, 1)) == {target}, what="broker 1 moved its replica")
    cluster.wait_for(lambda: len(cluster.isr(TOPIC, 0)) == 2, what="both replicas are in sync")
    produce(100)
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    keys: list[bytes | None] = []
    for _ in range(600):
        keys += [message.key() for message in consumer.consume(500, timeout=1) if message.error() is None]
        if len(keys) >= sent:
            break
    consumer.close()
    assert keys == [b"%d" % i for i in range(sent)]
