"""Security changes under load, broker by broker: from PLAINTEXT to SASL_SSL with access control, and new certificates.

No record is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from klamm.local.ports import ReservedPort
from klamm.security.certificates.certificate_store import CertificateStore
from klamm.testing import LocalCluster
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.broker_process import BrokerProcess, write_properties

WAIT_S = 120.0
TOPIC = "orders"
IDS = (1, 2, 3)
PASSWORDS = {"broker": "of the brokers", "app": "of the application", "stranger": "of nobody"}
AUTHORIZER = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:broker"}
OPEN = {"allow.everyone.if.no.acl.found": "true"}
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in {timeout_s:g} s: {what}"
        time.sleep(0.05)


class Load:
    """A producer that writes until it is stopped, and the numbers that the brokers have acknowledged."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.acked: list[str] = []
        self.failed: list[str] = []
        self._name = name
        self._producer = Producer(
            {**config, **QUIET, "enable.idempotence": True, "delivery.timeout.ms": int(WAIT_S * 1000)}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            self._producer.produce(TOPIC, f"{self._name}-{number}", on_delivery=self._done)
            self._producer.poll(0)
            number += 1

    def _done(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        if error is None:
            self.acked.append(value.decode())
        else:
            self.failed.append(str(error))

    def await_more(self) -> None:
        """Wait until records are acknowledged that were written from now on."""
        before = len(self.acked)
        wait_until(lambda: len(self.acked) > before + 20, WAIT_S, f"{self._name} makes progress")

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(WAIT_S) == 0 and not self.failed, self.failed[:3]
        return self.acked


def everything(config: dict[str, Any], partitions: int) -> list[str]:
    consumer = Consumer({**config, **QUIET, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(partitions)])
    found: list[str] = []
    ended: set[int | None] = set()
    try:
        while len(ended) < partitions:
            message = consumer.poll(WAIT_S)
            assert message is not None, "the end of a partition did not come"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
            else:
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value.decode())
    finally:
        consumer.close()
    return found


class Nodes:
    """Three brokers whose listeners change from start to start."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self._directory = directory
        self._zookeeper = zookeeper
        self._plain = {broker_id: ReservedPort() for broker_id in IDS}
        self._secure = {broker_id: ReservedPort() for broker_id in IDS}
        self._running: dict[int, BrokerProcess] = {}
        self._store = CertificateStore.create(directory / "certificates", 1)
        self._store.issue_broker("broker", [], 1)

    @property
    def plain(self) -> dict[str, Any]:
        return {"bootstrap.servers": ",".join(f"127.0.0.1:{port.number}" for port in self._plain.values())}

    def secure(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port.number}" for port in self._secure.values()),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._store.ca_path),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }

    def start(
        self,
        broker_id: int,
        listeners: tuple[str, ...],
        inter_broker: str,
        authorizer: Mapping[str, object] | None = None,
    ) -> None:
        ports = {"PLAINTEXT": self._plain, "SASL_SSL": self._secure}
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        properties = {
            "broker.id": broker_id,
            "zookeeper.connect": self._zookeeper,
            "zookeeper.session.timeout.ms": 6000,
            "log.dirs": self._directory / f"data-{broker_id}",
            "listeners": ",".join(f"{name}://127.0.0.1:{ports[name][broker_id].number}" for name in listeners),
            "inter.broker.listener.name": inter_broker,
            "min.insync.replicas": 2,
            "ssl.keystore.location": self._store.keystore_path("broker"),
            "ssl.truststore.location": self._store.ca_path,
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f'{module} required username="broker" '
            f'password="{PASSWORDS["broker"]}";',
            **(authorizer or {}),
        }
        config = write_properties(self._directory / f"broker-{broker_id}.properties", properties)
        self._running[broker_id] = BrokerProcess(config)
        self._running[broker_id].__enter__()

    def roll(
        self,
        client: dict[str, Any],
        listeners: tuple[str, ...],
        inter_broker: str,
        authorizer: Mapping[str, object] | None = None,
    ) -> None:
        """Restart one broker after another; each has to be in sync before the next stops."""
        for broker_id in IDS:
            assert self._running.pop(broker_id).stop() == 0
            self.start(broker_id, listeners, inter_broker, authorizer)
            wait_until(lambda: self._is_whole(client), WAIT_S, f"all replicas in sync after broker {broker_id}")

    def _is_whole(self, client: dict[str, Any]) -> bool:
        topics = AdminClient({**client, **QUIET}).list_topics(TOPIC, timeout=WAIT_S).topics
        partitions = topics[TOPIC].partitions.values()
        return len(partitions) == 3 and all(len(each.isrs) == 3 for each in partitions)

    def close(self) -> None:
        for process in self._running.values():
            process.__exit__(None, None, None)
        for port in (*self._plain.values(), *self._secure.values()):
            port.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as running:
        zookeeper = EmbeddedZooKeeperThread(tmp_path / "zookeeper", fsync=False).start()
        running.callback(zookeeper.stop)
        made = Nodes(tmp_path, zookeeper.address)
        running.callback(made.close)
        yield made


def grant(config: dict[str, Any], user: str) -> None:
    """Let a user write and read the topic, and use the group of `everything`."""
    wanted = (
        (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
        (ResourceType.TOPIC, TOPIC, AclOperation.READ),
        (ResourceType.GROUP, "check", AclOperation.READ),
    )
    entries = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in wanted
    ]
    admin = AdminClient({**config, **QUIET})  # its answers end with it
    for created in admin.create_acls(entries).values():
        created.result(WAIT_S)


def is_refused(config: dict[str, Any]) -> bool:
    """Whether every broker hides the topic from this user."""
    servers = config["bootstrap.servers"].split(",")
    errors = [
        AdminClient({**config, **QUIET, "bootstrap.servers": server}).list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC]
        for server in servers
    ]
    codes = [topic.error.code() for topic in errors if topic.error is not None]
    return codes == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * len(servers)


@pytest.mark.long
def test_from_plaintext_to_sasl_ssl(nodes: Nodes) -> None:
    for broker_id in IDS:
        nodes.start(broker_id, ("PLAINTEXT",), "PLAINTEXT")
    admin = AdminClient({**nodes.plain, **QUIET})
    admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(WAIT_S)
    old = Load("old", nodes.plain)
    old.await_more()
    nodes.roll(nodes.plain, ("PLAINTEXT", "SASL_SSL"), "PLAINTEXT")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(name, info, word.encode()) for name, word in PASSWORDS.items()
    ]
    for done in admin.alter_user_scram_credentials(users).values():
        done.result(WAIT_S)
    new = Load("new", nodes.secure("app"))
    new.await_more()
    nodes.roll(nodes.plain, ("PLAINTEXT", "SASL_SSL"), "SASL_SSL")
    acked = old.stop()
    nodes.roll(nodes.secure("app"), ("SASL_SSL",), "SASL_SSL")
    new.await_more()
    nodes.roll(nodes.secure("app"), ("SASL_SSL",), "SASL_SSL", AUTHORIZER | OPEN)
    new.await_more()
    grant(nodes.secure("broker"), "app")
    wait_until(lambda: is_refused(nodes.secure("stranger")), WAIT_S, "entries close the topic to others")
    new.await_more()
    nodes.roll(nodes.secure("app"), ("SASL_SSL",), "SASL_SSL", AUTHORIZER)
    new.await_more()
    assert is_refused(nodes.secure("stranger"))
    acked += new.stop()
    found = everything(nodes.secure("app"), 3)
    assert sorted(found) == sorted(acked), "a record is lost, or there twice"


@pytest.mark.long
def test_certificates_are_replaced_under_load() -> None:
    with LocalCluster(3, tls=True, sasl="SCRAM-SHA-512") as cluster:
        cluster.create_topic(TOPIC, 3, 3, {"min.insync.replicas": 2})
        load = Load("load", cluster.client_config("app"))
        for _ in range(2):
            load.await_more()
            cluster.renew_certificate()
            AdminClient({**cluster.client_config("app"), **QUIET}).list_topics(timeout=WAIT_S)
        cluster.kill(2)  # the others reach it, and it them, with the new certificate
        cluster.start(2)
        cluster.wait_for(lambda: len(cluster.isr(TOPIC, 0)) == 3, what="all replicas in sync")
        load.await_more()
        acked = load.stop()
        assert sorted(everything(cluster.client_config("app"), 3)) == sorted(acked)
