"""Three brokers: what is acknowledged survives the death of leaders and controllers, and those who return catch up."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from kazoo.client import KazooClient

from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.testing import LocalCluster
from klamm.zk.model.paths import partition_state_path
from klamm.zk.model.znodes import from_json
from tests.support.calm import CALM, kill_at_once

WAIT_S = 120.0
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, broker_configs=CALM) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """Three partitions on three brokers, of which two must have a record."""
    name = cluster.unique_topic_name("replicated")
    cluster.create_topic(name, partitions=3, replication_factor=3, config={"min.insync.replicas": 2})
    return name


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S} s"
        time.sleep(0.02)


def wait_for_isr(cluster: LocalCluster, topic: str, members: set[int], partitions: int = 3) -> None:
    wait_for(
        lambda: all(set(cluster.isr(topic, p)) == members for p in range(partitions)), f"{topic} in sync on {members}"
    )


class Writer:
    """An idempotent producer that remembers what was acknowledged, by partition and in order."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": int(WAIT_S * 1000),
                "log_level": 0,
            }
        )
        self.count = 0
        self.acked: dict[int, list[bytes]] = defaultdict(list)

    def write(self, count: int) -> None:
        for _ in range(count):
            value = b"%06d" % self.count
            self._producer.produce(self._topic, value, partition=self.count % 3, on_delivery=self._on_delivery)
            self.count += 1
            self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value, partition = message.value(), message.partition()
        assert value is not None and partition is not None
        self.acked[partition].append(bytes(value))

    @property
    def acked_count(self) -> int:
        return sum(map(len, self.acked.values()))


def read_all(cluster: LocalCluster, topic: str, counts: dict[int, int]) -> dict[int, list[bytes]]:
    """All partitions to their ends, which are no earlier than the counts of what was acknowledged."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader", "log_level": 0})
    out: dict[int, list[bytes]] = {p: [] for p in counts}
    ends = {p: read_end(consumer, TopicPartition(topic, p), count) for p, count in counts.items()}
    consumer.assign([TopicPartition(topic, p, 0) for p in out])
    deadline = time.monotonic() + WAIT_S
    while any(len(out[p]) < ends[p] for p in out):
        assert time.monotonic() < deadline, f"read {out} of {ends}"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            out[message.partition() or 0].append(bytes(message.value() or b""))
    consumer.close()
    return out


def read_end(consumer: Consumer, partition: TopicPartition, at_least: int) -> int:
    """Asks again while the leader moves, and while a new one has not heard from the others how much is committed."""
    found: list[int] = []

    def is_notified() -> bool:
        with contextlib.suppress(KafkaException):
            found.append(consumer.get_watermark_offsets(partition, timeout=10)[1])
        return bool(found) and found[-1] >= at_least

    wait_for(is_notified, f"{at_least} records of {partition}")
    return found[-1]


def check_nothing_lost(cluster: LocalCluster, topic: str, writer: Writer) -> None:
    """Everything was acknowledged, and it is there once and in order."""
    writer.flush()
    assert writer.acked_count == writer.count
    assert read_all(cluster, topic, {p: len(writer.acked[p]) for p in range(3)}) == writer.acked


def produce(cluster: LocalCluster, broker_id: int, topic: str, acks: int = -1) -> ErrorCode:
    """One record to partition 0 through one broker; the error code of the answer."""
    records = build_batch([Record(0, 0, None, b"x")])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
    response = ask_once((HOST, cluster.port(broker_id)), request, 9, ProduceResponse, WAIT_S)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def test_a_record_reaches_all_replicas_before_it_is_acknowledged(cluster: LocalCluster, topic: str) -> None:
    assert all(sorted(cluster.isr(topic, p)) == [1, 2, 3] for p in range(3))
    assert sorted(cluster.leader(topic, p) for p in range(3)) == [1, 2, 3]
    writer = Writer(cluster, topic)
    writer.write(300)
    check_nothing_lost(cluster, topic, writer)


def test_the_death_of_a_leader_loses_nothing_and_it_comes_back(cluster: LocalCluster, topic: str) -> None:
    writer = Writer(cluster, topic)
    writer.write(300)
    writer.flush()
    leader = cluster.leader(topic, 0)
    writer.write(300)
    kill_at_once(cluster, leader)
    wait_for(lambda: cluster.leader(topic, 0) != leader, "a new leader")
    writer.write(300)
    writer.flush()
    wait_for_isr(cluster, topic, {1, 2, 3} - {leader})
    cluster.start(leader)
    wait_for_isr(cluster, topic, {1, 2, 3})
    writer.write(300)
    check_nothing_lost(cluster, topic, writer)


def test_the_death_of_the_controller_loses_nothing(cluster: LocalCluster, topic: str) -> None:
    writer = Writer(cluster, topic)
    writer.write(300)
    controller = cluster.controller_id
    kill_at_once(cluster, controller)
    wait_for(lambda: cluster.controller_id != controller, "a new controller")
    writer.write(300)
    other = cluster.unique_topic_name("after")
    cluster.create_topic(other, replication_factor=2)
    assert cluster.leader(other) != controller
    cluster.start(controller)
    wait_for_isr(cluster, topic, {1, 2, 3})
    check_nothing_lost(cluster, topic, writer)


@pytest.mark.long
def test_a_rolling_restart_is_not_noticed(cluster: LocalCluster, topic: str) -> None:
    writer = Writer(cluster, topic)
    for broker_id in cluster.broker_ids:
        writer.write(200)
        cluster.stop(broker_id)
        writer.write(200)
        writer.flush()
        cluster.start(broker_id)
        wait_for_isr(cluster, topic, {1, 2, 3})
    check_nothing_lost(cluster, topic, writer)


def test_below_min_insync_replicas_acks_all_is_refused(cluster: LocalCluster, topic: str) -> None:
    survivor = cluster.leader(topic, 0)
    others = [broker_id for broker_id in cluster.broker_ids if broker_id != survivor]
    assert produce(cluster, survivor, topic) == ErrorCode.NONE
    for broker_id in others:
        kill_at_once(cluster, broker_id)
    wait_for(lambda: cluster.isr(topic, 0) == [survivor], "the others are out of sync")
    assert produce(cluster, survivor, topic) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(cluster, survivor, topic, acks=1) == ErrorCode.NONE
    for broker_id in others:
        cluster.start(broker_id)
    wait_for_isr(cluster, topic, {1, 2, 3})
    assert produce(cluster, cluster.leader(topic, 0), topic) == ErrorCode.NONE


def test_brokers_that_are_not_the_controller_ask_it(cluster: LocalCluster) -> None:
    """For producer ids, and for topics that come into being by being asked for."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    ids: list[int] = []
    for broker_id in cluster.broker_ids:
        answer = ask_once((HOST, cluster.port(broker_id)), request, 1, InitProducerIdResponse, WAIT_S)
        assert answer.error_code == ErrorCode.NONE
        ids.append(answer.producer_id)
    assert len(set(ids)) == 3
    other = next(broker_id for broker_id in cluster.broker_ids if broker_id != cluster.controller_id)
    name = cluster.unique_topic_name("asked-for")
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)

    def exists() -> bool:
        answer = ask_once((HOST, cluster.port(other)), wanted, 7, MetadataResponse, WAIT_S)
        assert answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
        return bool(answer.topics[0].error_code == ErrorCode.NONE)

    wait_for(exists, "the topic")


def test_a_group_continues_when_its_coordinator_dies(cluster: LocalCluster, topic: str) -> None:
    writer = Writer(cluster, topic)
    writer.write(30)
    writer.flush()
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([topic])
    seen: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            seen.append(bytes(message.value() or b""))
        return len(seen) == writer.count

    wait_for(read, "all records")
    consumer.commit(asynchronous=False)
    wait_for_isr(cluster, "__consumer_offsets", {1, 2, 3}, partitions=4)
    coordinator = cluster.leader("__consumer_offsets", _group_partition(topic))
    kill_at_once(cluster, coordinator)
    writer.write(30)
    wait_for(read, "the rest")
    consumer.close()
    cluster.start(coordinator)
    committed = Consumer({**settings, "log_level": 0}).committed(
        [TopicPartition(topic, p) for p in range(3)], timeout=WAIT_S
    )
    assert sum(each.offset for each in committed) >= 30
    assert sorted(seen) == sorted(b"%06d" % i for i in range(60))
    wait_for_isr(cluster, topic, {1, 2, 3})


def _group_partition(group: str) -> int:
    """The partition of __consumer_offsets by Java's hash of the group's name."""
    number = 0
    for character in group:
        number = (31 * number + ord(character)) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % 4


@pytest.mark.long
def test_an_old_protocol_keeps_its_isr_in_zookeeper() -> None:
    """Before 2.7 leaders write the ISR themselves, and followers ask for the end of their epoch before they fetch.

    Here ZooKeeper notices the death, by the time of the session.
    """
    configs = {
        "inter.broker.protocol.version": "2.6",
        "zookeeper.session.timeout.ms": 6_000,
        "replica.lag.time.max.ms": 40_000,
    }
    with LocalCluster(brokers=3, broker_configs=configs) as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3, config={"min.insync.replicas": 2})
        zk = KazooClient(cluster.zookeeper_connect)
        zk.start(timeout=WAIT_S)

        def isr() -> set[int]:
            data, _ = zk.get(partition_state_path("t", 0))
            return set(from_json("state", data)["isr"])

        writer = Writer(cluster, "t")
        writer.write(300)
        writer.flush()
        wait_for(lambda: isr() == {1, 2, 3}, "all in sync")
        leader = cluster.leader("t", 0)
        cluster.kill(leader)
        wait_for(lambda: cluster.leader("t", 0) != leader, "a new leader")
        writer.write(300)
        writer.flush()
        wait_for(lambda: isr() == {1, 2, 3} - {leader}, "the dead broker is out")
        cluster.start(leader)
        wait_for(lambda: isr() == {1, 2, 3}, "the broker is back")
        check_nothing_lost(cluster, "t", writer)
        zk.stop()
        zk.close()
