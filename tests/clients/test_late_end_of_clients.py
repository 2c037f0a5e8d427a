"""A commit that was held back in the network and arrives during the next transaction, with clients of the old protocol.

On Apache Kafka 3.9 it commits that transaction, and records that the client then aborts are visible to everybody.
confluent-kafka and aiokafka repeat a commit that timed out. kafka-python does not: its program starts a new producer,
which has a new epoch. It does repeat a commit whose connection was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaProducer

from klamm.client.transaction_client import TransactionClient
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.spark.source.client_options import driver_client
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import eventually
from tests.support.relayed_cluster import relayed_cluster
from tests.support.relays import Relays

T = TypeVar("T")
WAIT_S = 120
GIVE_UP_MS = 4_000
"""When a client gives up a request with its connection, and sends it again on another one. A machine that stands still
for seconds must not have the same effect.
"""
TRANSACTION_MS = 600_000
Running = tuple[LocalCluster, Relays]


class Client(Protocol):
    """A transactional producer. `name` is its transactional id, its client id and the topic that it writes to."""

    repeats_after_timeout: bool
    """Whether it repeats a commit without an answer; otherwise only one whose connection was lost."""

    def begin(self) -> object: ...
    def send(self, value: bytes) -> object: ...
    def commit(self) -> object: ...
    def abort(self) -> object: ...
    def close(self) -> object: ...


class Confluent:
    repeats_after_timeout = True

    def __init__(self, servers: str, name: str) -> None:
        self._topic = name
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "client.id": name,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "socket.timeout.ms": GIVE_UP_MS,
                "request.timeout.ms": GIVE_UP_MS,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, value: bytes) -> None:
        self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(WAIT_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        del self._producer


class Aiokafka:
    repeats_after_timeout = True

    def __init__(self, servers: str, name: str) -> None:
        self._topic = name
        self._loop = asyncio.new_event_loop()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=servers,
                client_id=name,
                transactional_id=name,
                transaction_timeout_ms=TRANSACTION_MS,
                request_timeout_ms=GIVE_UP_MS,
            )
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, call: Awaitable[T]) -> T:
        return self._loop.run_until_complete(call)

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, value: bytes) -> None:
        self._run(self._producer.send_and_wait(self._topic, value, partition=0))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()


class KafkaPython:
    repeats_after_timeout = False

    def __init__(self, servers: str, name: str) -> None:
        self._topic = name
        self._producer = KafkaProducer(
            bootstrap_servers=servers,
            client_id=name,
            transactional_id=name,
            transaction_timeout_ms=TRANSACTION_MS,
            request_timeout_ms=WAIT_S * 1000,
            delivery_timeout_ms=2 * WAIT_S * 1000,
            max_block_ms=WAIT_S * 1000,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, value: bytes) -> None:
        self._producer.send(self._topic, value, partition=0).get(WAIT_S)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(WAIT_S)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with relayed_cluster(3, CALM) as started:
        yield started


def refusals(cluster: LocalCluster, name: str) -> int:
    sentence = f"closing an older connection of {name}:"
    return sum(cluster.logs(broker_id).read_text().count(sentence) for broker_id in cluster.broker_ids)


def is_open(cluster: LocalCluster, name: str) -> bool:
    with driver_client(cluster.bootstrap_servers) as client:
        return name in TransactionClient(client).open_ids(name)


def visible(servers: str, topic: str) -> list[bytes]:
    """All records that a reader of committed records sees up to the end of the partition."""
    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.id": f"{topic}-readers", "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while True:
        message = eventually(lambda: consumer.poll(0.5), "the partition was not read")
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        found.append(message.value() or b"")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("make", [Confluent, pytest.param(Aiokafka, marks=pytest.mark.long), KafkaPython])
def test_a_late_commit_does_not_commit_the_next_transaction(
    running: Running, name: Callable[[str], str], make: Callable[[str, str], Client]
) -> None:
    cluster, relays = running
    topic = name("late")
    cluster.create_topic(topic, replication_factor=3)
    client = make(relays.bootstrap_servers, topic)
    client.begin()
    client.send(b"first")
    relays.hold(topic, resets_at=None if client.repeats_after_timeout else EndTxnRequest.KEY)
    client.commit()  # it gets no answer, or loses the connection; it connects again, and commits there
    client.begin()
    client.send(b"second")
    before = refusals(cluster, topic)
    assert relays.release(), "no request was held back"
    eventually(
        lambda: refusals(cluster, topic) > before or not is_open(cluster, topic), "the late commit did not arrive"
    )
    assert is_open(cluster, topic), "the late commit ended the next transaction"
    client.abort()
    assert visible(cluster.bootstrap_servers, topic) == [b"first"]
    client.begin()
    client.send(b"third")
    client.commit()
    client.close()
    assert eventually(lambda: (found := visible(cluster.bootstrap_servers, topic))[1:] and found, "not committed") == [
        b"first",
        b"third",
    ]
