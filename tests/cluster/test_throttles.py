"""A reassignment under replication throttles: it still ends, and what the throttled replicas cost is counted."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.testing import LocalCluster
from tests.support.calm import CALM

WAIT_S = 120.0
RATE = 200_000
RECORD = b"x" * 20_000
RECORDS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    configs = {**CALM, "klamm.metrics.port": 0, "replica.fetch.max.bytes": 50_000}
    with LocalCluster(brokers=2, broker_configs=configs) as running:
        yield running


def throttled_bytes(cluster: LocalCluster, broker_id: int, side: str) -> float:
    ready = json.loads((cluster.data_dir / f"broker-{broker_id}.ready").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{ready['metrics_port']}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    assert any(line.startswith(f"kafka_server_{side}replication_byte_rate") for line in lines)
    name = f"klamm_server_{side}replication_throttledbytes_total"
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def set_config(cluster: LocalCluster, kind: ResourceType, name: str, values: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


def wait_until_received(cluster: LocalCluster, broker_id: int, news: str) -> None:
    """Brokers receive configurations with a delay; each logs it."""
    cluster.wait_for(lambda: f"Configuration of {news}" in cluster.logs(broker_id).read_text(), WAIT_S, what=news)


def reassign(cluster: LocalCluster, topic: str, replicas: list[int]) -> None:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=30_000, topics=[ReassignableTopic(name=topic, partitions=[partition])]
    )
    address = ("127.0.0.1", cluster.port(cluster.controller_id))
    response = ask_once(address, request, 0, AlterPartitionReassignmentsResponse, WAIT_S)
    assert response.error_code == response.responses[0].partitions[0].error_code == ErrorCode.NONE


def test_a_throttled_reassignment_ends_and_its_bytes_are_counted(cluster: LocalCluster) -> None:
    topic = cluster.unique_topic_name("moved")
    cluster.create_topic(topic, partitions=1, replication_factor=1)
    source = cluster.leader(topic, 0)
    target = 3 - source
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    for _ in range(RECORDS):
        producer.produce(topic, RECORD, partition=0)
        assert producer.flush(WAIT_S) == 0
    for broker_id in (1, 2):
        rates = {f"{side}.replication.throttled.rate": str(RATE) for side in ("leader", "follower")}
        set_config(cluster, ResourceType.BROKER, str(broker_id), rates)
    replicas = {"leader": f"0:{source}", "follower": f"0:{target}"}
    set_config(
        cluster,
        ResourceType.TOPIC,
        topic,
        {f"{side}.replication.throttled.replicas": value for side, value in replicas.items()},
    )
    for broker_id in (1, 2):
        wait_until_received(
            cluster, broker_id, f"topic {topic}: follower.replication.throttled.replicas is now 0:{target}"
        )
        wait_until_received(cluster, broker_id, f"broker {broker_id}: leader.replication.throttled.rate is now {RATE}")
    reassign(cluster, topic, [target])
    cluster.wait_for(lambda: cluster.isr(topic, 0) == [target], WAIT_S, what="the end of the reassignment")
    assert cluster.leader(topic, 0) == target
    moved = RECORDS * len(RECORD)
    assert throttled_bytes(cluster, source, "leader") >= moved
    assert throttled_bytes(cluster, target, "follower") >= moved
    assert throttled_bytes(cluster, target, "leader") == throttled_bytes(cluster, source, "follower") == 0
