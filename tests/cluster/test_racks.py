"""Three brokers in three racks: consumers read from the replica in theirs (KIP-392), and from another when it dies."""

from __future__ import annotations

import io
import json
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import kio.schema.fetch.v12.request as kio_fetch
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta, i64

from klamm.testing import LocalCluster
from tests.support.calm import CALM, kill_at_once
from tests.support.raw_client import eventually

WAIT_S = 60.0
RACKS = {1: "rack-a", 2: "rack-b", 3: "rack-c"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    everywhere: dict[str, object] = {**CALM, "replica.selector.class": SELECTOR, "klamm.metrics.port": 0}
    configs: dict[Any, Any] = {**everywhere, **{broker: {"broker.rack": rack} for broker, rack in RACKS.items()}}
    with LocalCluster(brokers=3, broker_configs=configs) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = cluster.unique_topic_name("racks")
    cluster.create_topic(name, partitions=1, replication_factor=3, config={"min.insync.replicas": 2})
    return name


def bytes_out(cluster: LocalCluster, broker_id: int, topic: str) -> float:
    """Return the bytes that a broker has sent to consumers of the topic."""
    ready = json.loads((cluster.data_dir / f"broker-{broker_id}.ready").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{ready['metrics_port']}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    name = f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{topic}"}}'
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def write(cluster: LocalCluster, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0


class Reader:
    def __init__(self, cluster: LocalCluster, topic: str, rack: str) -> None:
        self.values: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "racks",
                "client.rack": rack,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def read_until(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(self.values) < count:
            assert time.monotonic() < deadline, f"read {len(self.values)} of {count}"
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.values.append(int(message.value() or b""))

    def close(self) -> None:
        self._consumer.close()


def kio_fetch_from(cluster: LocalCluster, broker_id: int, topic: str, rack: str, offset: int) -> Any:
    """One Fetch v12 of a consumer, written and read by another codec than ours; the partition's answer."""
    partition = kio_fetch.FetchPartition(partition=i32(0), fetch_offset=i64(offset), partition_max_bytes=i32(1 << 20))
    request = kio_fetch.FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(milliseconds=0)),
        min_bytes=i32(1),
        topics=(kio_fetch.FetchTopic(topic=TopicName(topic), partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id=rack,
    )
    header = RequestHeader(request_api_key=i16(1), request_api_version=i16(12), correlation_id=i32(7), client_id="kio")
    body = io.BytesIO()
    entity_writer(RequestHeader)(body, header)
    entity_writer(kio_fetch.FetchRequest)(body, request)
    with socket.create_connection(("127.0.0.1", cluster.port(broker_id)), WAIT_S) as connection:
        connection.sendall(struct.pack(">i", len(body.getvalue())) + body.getvalue())
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
    _, position = entity_reader(ResponseHeader)(answer, 0)
    response, _ = entity_reader(FetchResponse)(answer, position)
    return response.responses[0].partitions[0]


def test_a_client_reads_from_its_rack_and_continues_elsewhere_when_the_broker_dies(
    cluster: LocalCluster, topic: str
) -> None:
    leader = cluster.leader(topic, 0)
    near = next(broker for broker in RACKS if broker != leader)
    other = next(broker for broker in RACKS if broker not in (leader, near))
    write(cluster, topic, 0, 500)
    reader = Reader(cluster, topic, RACKS[near])
    reader.read_until(500)
    assert bytes_out(cluster, near, topic) > 0
    assert bytes_out(cluster, leader, topic) == bytes_out(cluster, other, topic) == 0
    write(cluster, topic, 500, 200)
    reader.read_until(700)
    assert bytes_out(cluster, leader, topic) == 0
    kill_at_once(cluster, near)
    write(cluster, topic, 700, 200)
    reader.read_until(900)
    assert reader.values == list(range(900))
    assert bytes_out(cluster, leader, topic) > 0
    reader.close()
    cluster.start(near)


def test_answers_of_leader_and_followers(cluster: LocalCluster, topic: str) -> None:
    cluster.wait_for(lambda: len(cluster.isr(topic, 0)) == 3, WAIT_S, what="all in sync")
    leader = cluster.leader(topic, 0)
    near = next(broker for broker in RACKS if broker != leader)
    write(cluster, topic, 0, 10)

    def named() -> bool:
        """A leader refers consumers to a follower after the follower's own fetch has shown its position."""
        data = kio_fetch_from(cluster, leader, topic, RACKS[near], 0)
        return bool(data.preferred_read_replica == near and not data.records)

    eventually(named, "the leader does not send the consumer to its rack")
    data = kio_fetch_from(cluster, leader, topic, RACKS[leader], 0)
    assert (data.preferred_read_replica, data.high_watermark) == (-1, 10) and data.records
    eventually(
        lambda: kio_fetch_from(cluster, near, topic, RACKS[near], 0).high_watermark == 10,
        "the follower does not learn the high watermark",
    )
    data = kio_fetch_from(cluster, near, topic, RACKS[near], 0)
    assert (int(data.error_code), data.preferred_read_replica) == (0, -1) and data.records
    assert int(kio_fetch_from(cluster, near, topic, RACKS[near], 11).error_code) == 1, "OFFSET_OUT_OF_RANGE"
