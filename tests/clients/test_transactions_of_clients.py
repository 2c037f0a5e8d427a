"""Transactions from confluent-kafka, aiokafka and kafka-python: commit, abort, fencing, offsets, read_committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidTransactionTimeout as AiokafkaTimeoutError
from aiokafka.errors import KafkaError as AiokafkaError
from aiokafka.structs import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import KafkaError as KafkaPythonError
from kafka.structs import OffsetAndMetadata

from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import eventually

Name = Callable[[str], str]
WAIT_S = 120


@pytest.fixture(scope="module")
def servers() -> Any:
    configs = {**CALM, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with LocalCluster(brokers=3, broker_configs=configs) as running:
        yield running.bootstrap_servers


def make_topic(servers: str, topic: str, partitions: int = 3) -> str:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=3)])[topic].result(WAIT_S)
    return topic


def transactional(servers: str, name: str, **extra: Any) -> Producer:
    client = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0, **extra})
    client.init_transactions(WAIT_S)
    return client


def read(servers: str, topic: str, count: int, group: str, isolation: str = "read_committed") -> list[str]:
    """Read `count` records; then the end of each partition shows that there are no more."""
    client = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    partitions = client.list_topics(topic, WAIT_S).topics[topic].partitions
    client.assign([TopicPartition(topic, index, 0) for index in partitions])
    found: list[str] = []
    ended: set[int | None] = set()

    def is_read() -> bool:
        message = client.poll(0.5)
        if message is None:
            return False
        error = message.error()
        if error is None:
            ended.discard(message.partition())
            found.append((message.value() or b"").decode())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
        return len(ended) == len(partitions) and len(found) >= count

    eventually(is_read, f"{topic} has other records than expected")
    client.close()
    return sorted(found)


def test_read_committed_sees_committed_records_only(servers: str, name: Name) -> None:
    topic = make_topic(servers, name("t"))
    client = transactional(servers, name("txn"))
    for number in range(6):
        client.begin_transaction()
        for partition in range(3):
            client.produce(topic, f"{number}-{partition}".encode(), partition=partition)
        client.flush(WAIT_S)
        if number % 2:
            client.abort_transaction(WAIT_S)
        else:
            client.commit_transaction(WAIT_S)
    committed = [f"{number}-{partition}" for number in (0, 2, 4) for partition in range(3)]
    assert read(servers, topic, 9, name("g")) == committed
    assert len(read(servers, topic, 18, name("h"), "read_uncommitted")) == 18


def test_a_second_producer_fences_the_first(servers: str, name: Name) -> None:
    topic, transactional_id = make_topic(servers, name("t")), name("txn")
    first = transactional(servers, transactional_id)
    first.begin_transaction()
    first.produce(topic, b"zombie", partition=0)
    first.flush(WAIT_S)
    second = transactional(servers, transactional_id)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(WAIT_S)
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"alive", partition=0)
    second.commit_transaction(WAIT_S)
    assert read(servers, topic, 1, name("g")) == ["alive"]


def test_an_abort_with_nothing_open_succeeds(servers: str, name: Name) -> None:
    topic = make_topic(servers, name("t"))
    client = transactional(servers, name("txn"))
    client.begin_transaction()
    client.abort_transaction(WAIT_S)
    client.begin_transaction()
    client.produce(topic, b"after", partition=0)
    client.commit_transaction(WAIT_S)
    client.begin_transaction()
    client.abort_transaction(WAIT_S)
    assert read(servers, topic, 1, name("g")) == ["after"]


def test_a_timeout_above_the_limit_is_refused(servers: str, name: Name) -> None:
    settings = {"transaction.timeout.ms": 900_001, "message.timeout.ms": 60_000}
    with pytest.raises(KafkaException) as refused:
        transactional(servers, name("txn"), **settings)
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


def test_a_transaction_that_times_out_is_aborted(servers: str, name: Name) -> None:
    topic = make_topic(servers, name("t"), partitions=1)
    settings = {"transaction.timeout.ms": 1_500, "message.timeout.ms": 1_400}
    client = transactional(servers, name("txn"), **settings)
    client.begin_transaction()
    client.produce(topic, b"forgotten", partition=0)
    client.flush(WAIT_S)
    other = Producer({"bootstrap.servers": servers, "log_level": 0})
    other.produce(topic, b"behind it", partition=0)
    other.flush(WAIT_S)
    assert read(servers, topic, 1, name("g")) == ["behind it"], "the reader waits for the abort"
    with pytest.raises(KafkaException):
        client.commit_transaction(WAIT_S)
    successor = transactional(servers, name("txn"))
    successor.begin_transaction()
    successor.produce(topic, b"later", partition=0)
    successor.commit_transaction(WAIT_S)
    assert read(servers, topic, 2, name("h")) == ["behind it", "later"]


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_are_committed_with_the_transaction(servers: str, name: Name, commit: bool) -> None:
    source, target, group = make_topic(servers, name("in")), make_topic(servers, name("out")), name("g")
    client = transactional(servers, name("txn"))
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    client.begin_transaction()
    client.produce(source, b"input", partition=0)
    client.commit_transaction(WAIT_S)
    consumer.subscribe([source])
    message = eventually(lambda: consumer.poll(0.5), "the input was not read")
    next_offset = (message.offset() or 0) + 1
    client.begin_transaction()
    client.produce(target, b"output", partition=0)
    client.send_offsets_to_transaction(
        [TopicPartition(source, 0, next_offset)], consumer.consumer_group_metadata(), WAIT_S
    )
    if commit:
        client.commit_transaction(WAIT_S)
    else:
        client.abort_transaction(WAIT_S)
    [stored] = consumer.committed([TopicPartition(source, 0)], WAIT_S)
    consumer.close()
    assert stored.offset == (next_offset if commit else -1001)
    assert read(servers, target, int(commit), name("h")) == (["output"] if commit else [])


def test_aiokafka(servers: str, name: Name) -> None:
    source, topic = make_topic(servers, name("in")), make_topic(servers, name("t"))
    transactional_id, group = name("txn"), name("g")

    async def scenario() -> None:
        client = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
        await client.start()
        for number in range(4):
            await client.begin_transaction()
            await client.send_and_wait(topic, f"{number}".encode(), partition=number % 3)
            if number % 2:
                await client.abort_transaction()
            else:
                offsets = {AiokafkaPartition(source, 0): number}
                await client.send_offsets_to_transaction(offsets, group)
                await client.commit_transaction()
        await client.begin_transaction()
        await client.abort_transaction()
        zombie = client
        client = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
        await client.start()
        with pytest.raises(AiokafkaError):
            async with zombie.transaction():
                await zombie.send_and_wait(topic, b"zombie", partition=0)
        async with client.transaction():
            await client.send_and_wait(topic, b"alive", partition=0)
        await client.stop()
        await zombie.stop()

    asyncio.run(scenario())
    assert read(servers, topic, 3, name("h")) == ["0", "2", "alive"]
    settings = {"bootstrap.servers": servers, "group.id": group, "log_level": 0}
    [stored] = Consumer(settings).committed([TopicPartition(source, 0)], WAIT_S)
    assert stored.offset == 2


def test_kafka_python(servers: str, name: Name) -> None:
    source, topic = make_topic(servers, name("in")), make_topic(servers, name("t"))
    transactional_id, group = name("txn"), name("g")
    client = KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
    client.init_transactions()
    for number in range(4):
        client.begin_transaction()
        client.send(topic, f"{number}".encode(), partition=number % 3).get(WAIT_S)
        offsets = {KafkaPythonPartition(source, 0): OffsetAndMetadata(number, "", -1)}
        client.send_offsets_to_transaction(offsets, group)
        if number % 2:
            client.abort_transaction()
        else:
            client.commit_transaction()
    client.begin_transaction()
    client.abort_transaction()
    zombie = client
    client = KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
    client.init_transactions()
    zombie.begin_transaction()
    with pytest.raises(KafkaPythonError):
        zombie.send(topic, b"zombie", partition=0).get(WAIT_S)
    zombie.close(WAIT_S)
    client.begin_transaction()
    client.send(topic, b"alive", partition=0)
    client.commit_transaction()
    client.close(WAIT_S)
    assert read(servers, topic, 3, name("h")) == ["0", "2", "alive"]
    settings = {"bootstrap.servers": servers, "group.id": group, "log_level": 0}
    [stored] = Consumer(settings).committed([TopicPartition(source, 0)], WAIT_S)
    assert stored.offset == 2


def test_other_clients_report_a_timeout_above_the_limit(servers: str, name: Name) -> None:
    settings = {"bootstrap_servers": servers, "transaction_timeout_ms": 900_001}

    async def start() -> None:
        client = AIOKafkaProducer(transactional_id=name("txn"), **settings)
        try:
            await client.start()
        finally:
            await client.stop()

    with pytest.raises(AiokafkaTimeoutError):
        asyncio.run(start())
    client = KafkaProducer(transactional_id=name("txn"), **settings)
    with pytest.raises(KafkaPythonError, match="InvalidTransactionTimeout"):
        client.init_transactions()
    client.close(WAIT_S)
