"""Three brokers with SASL_SSL between them: a broker dies, certificates rotate, and mistakes are explained."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from klamm.client.blocking_connection import BlockingConnection
from klamm.errors import ErrorCode
from klamm.local.broker_sessions import expire_session
from tests.support.broker_process import refuse_to_start, write_properties
from tests.support.calm import CALM
from tests.support.certificates import Authority
from tests.support.raw_client import eventually
from tests.support.secured_cluster import ADMIN, SecuredCluster, secured_cluster

TOPIC = "replicated"
WAIT_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("three"), 3, {**CALM}, stores="PKCS12") as cluster:
        topic = NewTopic(TOPIC, 3, 3, config={"min.insync.replicas": "2"})
        admin = AdminClient(cluster.librdkafka(ADMIN))
        admin.create_topics([topic])[TOPIC].result(WAIT_S)
        yield cluster


def isr_sizes(cluster: SecuredCluster) -> list[int]:
    admin = AdminClient(cluster.librdkafka(ADMIN))
    topic = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC]
    return [len(partition.isrs) for partition in topic.partitions.values()]


def test_no_acknowledged_record_is_lost_when_a_broker_dies(cluster: SecuredCluster) -> None:
    eventually(lambda: isr_sizes(cluster) == [3, 3, 3], "the replicas never joined over SASL_SSL")
    producer = Producer(cluster.librdkafka() | {"acks": "all", "enable.idempotence": True})
    acknowledged: list[bytes] = []

    def send(first: int, count: int) -> None:
        def on_delivery(error: object, message: object) -> None:
            assert error is None, error
            acknowledged.append(message.value())  # type: ignore[attr-defined]

        for number in range(first, first + count):
            producer.produce(TOPIC, str(number).encode(), on_delivery=on_delivery)
        assert producer.flush(WAIT_S) == 0

    send(0, 300)
    victim = cluster.brokers[2]
    victim.process.kill()
    victim.process.wait()
    expire_session(cluster.zookeeper_connect, [cluster.log_dir(3)], WAIT_S)
    send(300, 300)
    victim.launch()
    victim.await_ready()
    eventually(lambda: isr_sizes(cluster) == [3, 3, 3], "the broker never caught up")
    send(600, 100)
    assert read_all(cluster) == sorted(acknowledged) and len(acknowledged) == 700


def read_all(cluster: SecuredCluster) -> list[bytes]:
    consumer = Consumer(cluster.librdkafka() | {"group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(3)])
    values: list[bytes] = []
    ended: set[int | None] = set()
    try:
        while len(ended) < 3:
            message = consumer.poll(WAIT_S)
            assert message is not None, "the consumer receives nothing"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
            else:
                value = message.value()
                assert isinstance(value, bytes)
                values.append(value)
    finally:
        consumer.close()
    return sorted(values)


def peer_serial(cluster: SecuredCluster) -> int:
    host, port = cluster.bootstrap().split(",")[0].split(":")
    with BlockingConnection((host, int(port)), client_id="test", security=cluster.client_security()) as connection:
        assert isinstance(connection._socket, ssl.SSLSocket)
        certificate = connection._socket.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


def name_keystore(cluster: SecuredCluster, path: Path) -> None:
    """Set the keystore of broker 1, maybe to the path that it has."""
    alter_broker(cluster, {"ssl.keystore.location": str(path)})


def alter_broker(cluster: SecuredCluster, settings: dict[str, str]) -> None:
    operation = AlterConfigOpType.SET
    entries = [ConfigEntry(key, value, incremental_operation=operation) for key, value in settings.items()]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    admin = AdminClient(cluster.librdkafka(ADMIN))
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def test_certificates_rotate_while_the_broker_runs(cluster: SecuredCluster, tmp_path: Path) -> None:
    files = cluster.files
    before = peer_serial(cluster)
    files.broker.write_bytes(files.new_keystore())
    assert peer_serial(cluster) == before, "a new file alone changes nothing"
    name_keystore(cluster, files.broker)
    second = peer_serial(cluster)
    assert second != before
    other = tmp_path / "other.p12"
    other.write_bytes(files.new_keystore())
    name_keystore(cluster, other)
    third = peer_serial(cluster)
    assert third not in (before, second)
    pem = tmp_path / "other.pem"
    pem.write_bytes(files.authority.issue().pem)
    alter_broker(cluster, {"ssl.keystore.location": str(pem), "ssl.keystore.type": "PEM"})
    assert peer_serial(cluster) not in (before, second, third)
    alter_broker(cluster, {"ssl.keystore.location": str(other), "ssl.keystore.type": "PKCS12"})
    assert peer_serial(cluster) == third
    eventually(lambda: isr_sizes(cluster) == [3, 3, 3], "the brokers lost each other")


def test_a_certificate_that_would_cut_off_the_broker_is_refused(cluster: SecuredCluster, tmp_path: Path) -> None:
    before = peer_serial(cluster)
    strange, damaged = tmp_path / "strange.p12", tmp_path / "damaged.p12"
    strange.write_bytes(cluster.files.new_keystore(authority=Authority("another")))
    damaged.write_bytes(cluster.files.new_keystore()[:-40])
    for path, sentence in (
        (strange, "truststore does not accept"),
        (damaged, "check its password"),
        (tmp_path / "missing.p12", "cannot be read"),
    ):
        with pytest.raises(KafkaException) as raised:
            name_keystore(cluster, path)
        error = raised.value.args[0]
        assert error.code() == ErrorCode.INVALID_REQUEST and sentence in error.str()
    assert peer_serial(cluster) == before


def test_passwords_are_neither_shown_nor_stored(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.librdkafka(ADMIN))
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(WAIT_S)
    jaas = entries["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    assert jaas.is_sensitive and jaas.value is None
    assert not [name for name, entry in entries.items() if entry.value and ADMIN[1] in entry.value]
    entry = ConfigEntry("ssl.keystore.password", "new", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    with pytest.raises(KafkaException, match="it must not be stored in ZooKeeper"):
        admin.incremental_alter_configs([change])[change].result(WAIT_S)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"listeners": "SSL://localhost:0", "security.inter.broker.protocol": "SSL"},
            "ssl.keystore.location is missing",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://localhost:0", "security.inter.broker.protocol": "SASL_PLAINTEXT"},
            "sasl.enabled.mechanisms has GSSAPI",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://localhost:0",
                "security.inter.broker.protocol": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            "listener.name.sasl_plaintext.plain.sasl.jaas.config is missing",
        ),
        ({"sasl.kerberos.service.name": "kafka"}, "klamm does not support Kerberos yet"),
    ],
)
def test_a_listener_that_cannot_be_secured_is_explained(
    settings: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    config = {"broker.id": 1, "log.dirs": tmp_path / "logs", **settings}
    assert sentence in refuse_to_start(write_properties(tmp_path / "broker.properties", config))
    assert not (tmp_path / "logs").exists()
