"""Three brokers with SASL_SSL between them: a broker dies, certificates rotate, and mistakes are explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from klamm.client.blocking_connection import BlockingConnection
from klamm.errors import ErrorCode
from tests.support.broker_process import refuse_to_start, write_properties
from tests.support.certificates import Authority
from tests.support.raw_client import eventually
from tests.support.secured_cluster import ADMIN, SecuredCluster, secured_cluster

TOPIC = "replicated"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("three"), 3, {"replica.lag.time.max.ms": 2000}) as cluster:
        topic = NewTopic(TOPIC, 3, 3, config={"min.insync.replicas": "2"})
        admin = AdminClient(cluster.librdkafka(ADMIN))
        admin.create_topics([topic])[TOPIC].result(30)
        yield cluster


def isr_sizes(cluster: SecuredCluster) -> list[int]:
    admin = AdminClient(cluster.librdkafka(ADMIN))
    topic = admin.list_topics(TOPIC, timeout=10).topics[TOPIC]
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
        assert producer.flush(60) == 0

    send(0, 300)
    victim = cluster.brokers[2]
    victim.process.kill()
    victim.process.wait()
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
    ended = 0
    try:
        while ended < 3:
            message = consumer.poll(30)
            assert message is not None, "the consumer waits in vain"
            if message.error():
                ended += 1
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
        certificate = connection.peer_certificate
        assert certificate is not None
        return int(certificate["serialNumber"], 16)


def name_keystore(cluster: SecuredCluster, path: Path) -> None:
    """Set the keystore of broker 1, maybe to the path that it has."""
    entry = ConfigEntry("ssl.keystore.location", str(path), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient(cluster.librdkafka(ADMIN))
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_certificates_rotate_while_the_broker_runs(cluster: SecuredCluster, tmp_path: Path) -> None:
    files = cluster.files
    before = peer_serial(cluster)
    files.broker.write_bytes(files.authority.issue().pem)
    assert peer_serial(cluster) == before, "a new file alone changes nothing"
    name_keystore(cluster, files.broker)
    second = peer_serial(cluster)
    assert second != before
    other = tmp_path / "other.pem"
    other.write_bytes(files.authority.issue().pem)
    name_keystore(cluster, other)
    assert peer_serial(cluster) not in (before, second)
    eventually(lambda: isr_sizes(cluster) == [3, 3, 3], "the brokers lost each other")


def test_a_certificate_that_would_cut_off_the_broker_is_refused(cluster: SecuredCluster, tmp_path: Path) -> None:
    before = peer_serial(cluster)
    strange = tmp_path / "strange.pem"
    strange.write_bytes(Authority("another").issue().pem)
    for path, sentence in ((strange, "truststore does not accept"), (tmp_path / "missing.pem", "cannot be read")):
        with pytest.raises(KafkaException) as raised:
            name_keystore(cluster, path)
        error = raised.value.args[0]
        assert error.code() == ErrorCode.INVALID_REQUEST and sentence in error.str()
    assert peer_serial(cluster) == before


def test_passwords_are_neither_shown_nor_stored(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.librdkafka(ADMIN))
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(30)
    jaas = entries["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    assert jaas.is_sensitive and jaas.value is None
    assert not [name for name, entry in entries.items() if entry.value and ADMIN[1] in entry.value]
    entry = ConfigEntry("ssl.keystore.password", "new", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    with pytest.raises(KafkaException, match="ZooKeeper must not hold it"):
        admin.incremental_alter_configs([change])[change].result(30)


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
