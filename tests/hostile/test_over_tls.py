"""The attacks over SASL_SSL, and attacks on the handshakes of TLS and SASL. Sizes are small; answers are counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.protocol.messages.metadata import MetadataRequest
from tests.support import secured_attacks
from tests.support.attack_target import Target, frame
from tests.support.secured_attacks import HANDSHAKES, OVER_TLS, SecuredTarget, read_answer
from tests.support.secured_cluster import ADMIN, ALICE, SecuredCluster, secured_cluster

TOPIC = "orders"
RECORDS = 20
SIZE = 0.02
HANDSHAKE_SIZE = 0.3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    extra = {"connection.failed.authentication.delay.ms": 0, "klamm.admit.unproven.peers": "false"}
    with secured_cluster(tmp_path_factory.mktemp("hostile-tls"), 1, extra) as cluster:
        admin = AdminClient(cluster.librdkafka(ADMIN))
        topics = (TOPIC, target(cluster, SIZE).damaged_topic)
        for created in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
            created.result(60)
        producer = Producer(cluster.librdkafka() | {"acks": "all"})
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number).encode())
        assert producer.flush(60) == 0
        yield cluster


def target(cluster: SecuredCluster, size: float) -> SecuredTarget:
    port = cluster.brokers[0].ready["listeners"]["SASL_SSL"]
    return secured_attacks.attacker([port], TOPIC, cluster.files.ca, ALICE, 7, size)


def probe(cluster: SecuredCluster) -> None:
    """An ordinary client logs in and is answered."""
    with target(cluster, 1).connect() as connection:
        connection.sendall(frame(MetadataRequest(topics=None), 7))
        assert TOPIC.encode() in read_answer(connection)


def check(cluster: SecuredCluster) -> None:
    probe(cluster)
    (broker,) = cluster.brokers
    assert broker.process.poll() is None
    assert "Traceback" not in broker.log, broker.log


@pytest.mark.parametrize("attack", OVER_TLS, ids=lambda attack: attack.__name__)
def test_an_attack_of_a_client_that_has_logged_in(cluster: SecuredCluster, attack: Callable[[Target], None]) -> None:
    with contextlib.suppress(OSError):  # A closed connection is one of the right answers.
        attack(target(cluster, SIZE))
    check(cluster)


@pytest.mark.parametrize("attack", HANDSHAKES, ids=lambda attack: attack.__name__)
def test_an_attack_on_handshakes(cluster: SecuredCluster, attack: Callable[[SecuredTarget], None]) -> None:
    with target(cluster, 1).connect() as earlier:
        attack(target(cluster, HANDSHAKE_SIZE))
        earlier.sendall(frame(MetadataRequest(topics=None), 7))
        assert TOPIC.encode() in read_answer(earlier)
    check(cluster)


def test_nothing_acknowledged_was_lost(cluster: SecuredCluster) -> None:
    """After all attacks; forged requests tried to delete the topic."""
    consumer = Consumer(cluster.librdkafka() | {"group.id": "after", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found = [message.value() for message in consumer.consume(RECORDS, 240)]
    finally:
        consumer.close()
    assert found == [str(number).encode() for number in range(RECORDS)]
