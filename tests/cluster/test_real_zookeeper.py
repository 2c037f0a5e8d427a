"""A broker on a real ZooKeeper 3.9, over TLS by Kafka's keys, under a chroot: it writes what Kafka would write."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from klamm.errors import ErrorCode
from klamm.security.certificates.certificate_store import CertificateStore
from klamm.testing import LocalCluster
from klamm.zk.client import predecessor
from tests.support.raw_client import RawClient, batch_of, eventually
from tests.support.real_zookeeper import RealZooKeeper

CHROOT = "/klamm/test"
LARGE = b"x" * 500


class Znode(NamedTuple):
    data: bytes | None
    version: int
    czxid: int
    owner: int

    @property
    def value(self) -> Any:
        return json.loads(self.data or b"")


class Tree:
    """The znodes under the chroot, through a plain kazoo client."""

    def __init__(self, kazoo: KazooClient) -> None:
        self.kazoo = kazoo

    def get(self, path: str) -> Znode:
        data, stat = self.kazoo.get(CHROOT + path)
        return Znode(data, stat.version, stat.czxid, stat.ephemeralOwner)

    def find(self, path: str) -> Znode | None:
        try:
            return self.get(path)
        except NoNodeError:
            return None

    def until_gone(self, path: str) -> None:
        eventually(lambda: self.find(path) is None, f"{path} is still there")

    def children(self, path: str) -> list[str]:
        return sorted(self.kazoo.get_children(CHROOT + path))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    store = CertificateStore.create(tmp_path_factory.mktemp("certificates") / "tls", 1)
    store.issue_broker("server", [], 1)
    store.issue_client("klamm", 1)
    return store


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory, certificates: CertificateStore) -> Iterator[RealZooKeeper]:
    with RealZooKeeper(tmp_path_factory.mktemp("zookeeper"), certificates=certificates) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(zookeeper: RealZooKeeper, certificates: CertificateStore) -> Iterator[LocalCluster]:
    settings = {
        "broker.rack": "r1",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.keystore.location": certificates.directory / "klamm.p12",
        "zookeeper.ssl.keystore.password": certificates.password,
        "zookeeper.ssl.truststore.location": certificates.truststore_path,
        "zookeeper.ssl.truststore.password": certificates.password,
        "zookeeper.ssl.enabled.protocols": "TLSv1.3",
    }
    with LocalCluster(zookeeper=zookeeper.secure_address + CHROOT, broker_configs=settings) as running:
        yield running


@pytest.fixture(scope="module")
def tree(zookeeper: RealZooKeeper, cluster: LocalCluster) -> Iterator[Tree]:
    kazoo = KazooClient(zookeeper.address)
    kazoo.start(60)
    yield Tree(kazoo)
    kazoo.stop()
    kazoo.close()


@pytest.fixture
def client(cluster: LocalCluster) -> RawClient:
    return RawClient(cluster.port(1))


def until_answered(client: RawClient, topic: str, code: ErrorCode) -> None:
    """Until a Produce of one large record is answered so."""
    eventually(
        lambda: client.produce(topic, batch_of([LARGE])).error_code == code, f"{topic} never answered {code.name}"
    )


def test_the_session_of_the_broker_uses_tls(tree: Tree) -> None:
    """ZooKeeper lists the sessions of each port apart: only the session of this test is not encrypted."""
    connections = tree.kazoo.command(b"cons")
    session_of_test, session_of_broker = (
        f"sid=0x{number & (2**64 - 1):x}"
        for number in ((tree.kazoo.client_id or (0, b""))[0], tree.get("/brokers/ids/1").owner)
    )
    assert session_of_test in connections and session_of_broker not in connections


def test_registration_and_controller(tree: Tree, cluster: LocalCluster) -> None:
    # An empty directory may be a lost one; the controller removes the mark when no ISR depends on it.
    cluster.wait_for(
        lambda: "klamm_unclean_shutdown" not in tree.get("/brokers/ids/1").value, what="The trusted registration"
    )
    broker, controller = tree.get("/brokers/ids/1"), tree.get("/controller")
    stamp = broker.value["timestamp"]
    assert re.fullmatch(r"\d{13}", stamp)
    assert broker.value == {
        "features": {},
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": [f"PLAINTEXT://127.0.0.1:{cluster.port(1)}"],
        "jmx_port": -1,
        "port": cluster.port(1),
        "host": "127.0.0.1",
        "version": 5,
        "rack": "r1",
        "timestamp": stamp,
    }
    assert broker.version == 2 and broker.owner == controller.owner != 0
    assert set(controller.value) == {"version", "brokerid", "timestamp", "kraftControllerEpoch"}
    assert (controller.value["version"], controller.value["brokerid"]) == (2, 1)
    assert controller.value["kraftControllerEpoch"] == -1 and isinstance(controller.value["timestamp"], str)
    epoch = tree.get("/controller_epoch")
    assert epoch.value >= 1 and epoch.owner == 0
    identity = tree.get("/cluster/id").value
    assert identity["version"] == "1" and re.fullmatch(r"[A-Za-z0-9_-]{22}", identity["id"])


def test_znodes_that_exist_from_the_start(tree: Tree) -> None:
    expected = "consumers brokers/ids brokers/topics config/changes admin/delete_topics brokers/seqid"
    expected += " isr_change_notification latest_producer_id_block log_dir_event_notification"
    expected += " config/topics config/clients config/users config/brokers config/ips"
    assert [path for path in expected.split() if tree.find("/" + path) is None] == []


def test_topic_znodes(tree: Tree, cluster: LocalCluster, client: RawClient) -> None:
    cluster.create_topic("orders", partitions=2, config={"retention.ms": 3_600_000})
    topic = tree.get("/brokers/topics/orders")
    topic_id = topic.value["topic_id"]
    assert topic.value == {
        "version": 3,
        "partitions": {"0": [1], "1": [1]},
        "adding_replicas": {},
        "removing_replicas": {},
        "topic_id": topic_id,
    }
    assert uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")).version == 4 and topic.owner == 0
    epoch = tree.get("/controller_epoch").value
    for partition in ("0", "1"):
        state = tree.get(f"/brokers/topics/orders/partitions/{partition}/state")
        assert state.value == {"controller_epoch": epoch, "leader": 1, "version": 1, "leader_epoch": 0, "isr": [1]}
        assert (state.version, state.owner) == (0, 0)
        assert tree.get(f"/brokers/topics/orders/partitions/{partition}").data is None
    assert tree.get("/config/topics/orders").value == {"version": 1, "config": {"retention.ms": "3600000"}}
    client.new_producer()
    block = tree.get("/latest_producer_id_block").value
    assert set(block) == {"version", "broker", "block_start", "block_end"}
    assert (block["version"], block["broker"]) == (1, 1) and int(block["block_end"]) - int(block["block_start"]) == 999
    assert isinstance(block["block_start"], str)


def test_config_change(tree: Tree, cluster: LocalCluster, client: RawClient) -> None:
    cluster.create_topic("changed")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    _alter(admin, ResourceType.TOPIC, "changed", "max.message.bytes", "200")
    assert tree.get("/config/topics/changed").value == {"version": 1, "config": {"max.message.bytes": "200"}}
    last = tree.children("/config/changes")[-1]
    assert re.fullmatch(r"config_change_\d{10}", last)
    assert tree.get(f"/config/changes/{last}").value == {"version": 2, "entity_path": "topics/changed"}
    until_answered(client, "changed", ErrorCode.MESSAGE_TOO_LARGE)
    _alter(admin, ResourceType.BROKER, "1", "num.io.threads", "9")
    assert tree.get("/config/brokers/1").value == {"version": 1, "config": {"num.io.threads": "9"}}


def _alter(admin: AdminClient, kind: ResourceType, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]).values():
        future.result(60)


def test_a_change_by_an_operators_tool(tree: Tree, cluster: LocalCluster, client: RawClient) -> None:
    """Written by hand, the config first and then the notification: in both forms that Kafka knows."""
    cluster.create_topic("by-hand")
    for limit, notification in (
        ("200", {"version": 2, "entity_path": "topics/by-hand"}),
        ("100000", {"version": 1, "entity_type": "topics", "entity_name": "by-hand"}),
    ):
        config = {"version": 1, "config": {"max.message.bytes": limit}}
        tree.kazoo.set(CHROOT + "/config/topics/by-hand", json.dumps(config).encode())
        change = CHROOT + "/config/changes/config_change_"
        tree.kazoo.create(change, json.dumps(notification).encode(), sequence=True)
        until_answered(client, "by-hand", ErrorCode.MESSAGE_TOO_LARGE if limit == "200" else ErrorCode.NONE)


def test_delete_topic(tree: Tree, cluster: LocalCluster) -> None:
    cluster.create_topic("gone", partitions=2, config={"retention.ms": 1})
    cluster.delete_topic("gone")
    for path in ("/brokers/topics/gone", "/admin/delete_topics/gone", "/config/topics/gone"):
        tree.until_gone(path)
    assert not list((cluster.data_dir / "broker-1").glob("gone-[01]"))
    cluster.create_topic("gone")


def test_an_operator_deletes_a_topic_through_zookeeper(tree: Tree, cluster: LocalCluster) -> None:
    cluster.create_topic("removed-by-hand")
    tree.kazoo.create(CHROOT + "/admin/delete_topics/removed-by-hand", b"")
    for path in ("/brokers/topics/removed-by-hand", "/admin/delete_topics/removed-by-hand"):
        tree.until_gone(path)


def test_the_controller_znode_is_deleted(tree: Tree, cluster: LocalCluster, client: RawClient) -> None:
    cluster.create_topic("before")
    epoch, broker = tree.get("/controller_epoch").value, tree.get("/brokers/ids/1")
    tree.kazoo.delete(CHROOT + "/controller")
    eventually(
        lambda: tree.find("/controller") is not None and tree.get("/controller_epoch").value > epoch,
        "nobody became controller again",
    )
    assert client.produce("before", batch_of([b"x"])).error_code == ErrorCode.NONE
    cluster.create_topic("after")
    assert client.produce("after", batch_of([b"x"])).error_code == ErrorCode.NONE
    assert tree.get("/brokers/ids/1").czxid == broker.czxid, "the registration stays"
    states = tree.get("/brokers/topics/after/partitions/0/state").value
    assert states["controller_epoch"] == tree.get("/controller_epoch").value


def test_session_expiry(tree: Tree, cluster: LocalCluster, client: RawClient, zookeeper: RealZooKeeper) -> None:
    cluster.create_topic("expiry")
    assert client.produce("expiry", batch_of([b"before"])).error_code == ErrorCode.NONE
    pid, old = cluster.pid(1), tree.get("/brokers/ids/1")
    credentials = predecessor.load(cluster.data_dir / "broker-1" / "zookeeper.session")
    assert credentials is not None and credentials.session_id & (2**64 - 1) == old.owner & (2**64 - 1)
    assert predecessor.end_session(zookeeper.address, credentials, 60_000)
    found = eventually(
        lambda: new if (new := tree.find("/brokers/ids/1")) is not None and new.owner != old.owner else None,
        "the broker did not register again",
    )
    assert found.czxid > old.czxid and found.version == 1
    eventually(
        lambda: (node := tree.find("/controller")) is not None and node.owner == found.owner,
        "the broker did not become controller again",
    )
    cluster.create_topic("expiry-after")
    for topic in ("expiry", "expiry-after"):
        until_answered(client, topic, ErrorCode.NONE)
    assert client.read_all("expiry") == [(0, b"before"), (1, LARGE)]
    assert cluster.pid(1) == pid
    renewed = eventually(
        lambda: (
            now
            if (now := predecessor.load(cluster.data_dir / "broker-1" / "zookeeper.session")) != credentials
            else None
        ),
        "the new session was not noted",
    )
    assert renewed.session_id & (2**64 - 1) == found.owner & (2**64 - 1)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart(tree: Tree, cluster: LocalCluster, how: str) -> None:
    topic = f"restarted-after-{how}"
    cluster.create_topic(topic, partitions=3)
    produced = _produce(cluster, topic, [b"%d" % n for n in range(100)])
    old, identity = tree.get("/brokers/ids/1"), tree.get("/cluster/id")
    before = tree.get(f"/brokers/topics/{topic}").data
    {"stop": cluster.stop, "kill": cluster.kill}[how](1)
    if how == "stop":
        assert tree.find("/brokers/ids/1") is None and tree.find("/controller") is None
    cluster.start(1)
    new = tree.get("/brokers/ids/1")
    assert new.czxid > old.czxid and new.owner != old.owner
    assert tree.get("/cluster/id") == identity and tree.get(f"/brokers/topics/{topic}").data == before
    assert sorted(_consume(cluster, topic, 100)) == sorted(produced)
    state = tree.get(f"/brokers/topics/{topic}/partitions/0/state").value
    assert (state["leader"], state["isr"]) == (1, [1])


def _produce(cluster: LocalCluster, topic: str, values: list[bytes]) -> list[bytes]:
    done: list[bytes] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        done.append(message.value() or b"")

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=on_delivery)
    assert producer.flush(60) == 0
    return done


def _consume(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    consumer.subscribe([topic])
    found: list[bytes] = []

    def take() -> bool:
        for message in consumer.consume(100, 0.5):
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
        return len(found) >= count

    eventually(take, f"{topic} did not give its {count} records")
    consumer.close()
    return found
