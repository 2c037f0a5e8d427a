"""Somebody who reaches ZooKeeper deletes or overwrites znodes of a running cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.cluster import look
from klamm.cli.cluster_problems import zookeeper_of
from klamm.errors import ErrorCode, KlammError
from klamm.model import TopicPartition
from klamm.testing import LocalCluster
from klamm.zk.model import paths
from klamm.zk.model.znodes import LostRecords, decode_topic, encode_lost_records
from tests.support.raw_client import TIMEOUT_S, RawClient, batch_of, eventually


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as started:
        started.create_topic("t")
        yield started


@pytest.fixture(scope="module")
def zookeeper(cluster: LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start(TIMEOUT_S)
    yield client
    client.stop()
    client.close()


def problems(cluster: LocalCluster) -> list[str]:
    status = look([("127.0.0.1", cluster.port(1))], {}, TIMEOUT_S)
    assert status is not None
    return status.problems


def test_a_login_goes_to_the_zookeeper_of_the_file_only(cluster: LocalCluster, tmp_path: Path) -> None:
    """A false broker could report an address of its own, and would receive the password of the brokers."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{unused.getsockname()[1]}"
        file = tmp_path / "broker.properties"
        file.write_text(f"zookeeper.connect={hosts}\nklamm.zookeeper.digest=broker:secret\n")
        status = look([("127.0.0.1", cluster.port(1))], {}, 2.0, zookeeper_of(file))
    assert status is not None and status.unchecked is not None and f"ZooKeeper at {hosts}" in status.unchecked
    file.write_text("klamm.zookeeper.digest=broker:secret\n")
    with pytest.raises(KlammError, match=r"has neither zookeeper\.connect nor klamm\.zookeeper\.embedded\.port"):
        zookeeper_of(file)


def registration(zookeeper: KazooClient) -> int | None:
    try:
        return int(zookeeper.get(paths.broker_path(1))[1].czxid)
    except NoNodeError:
        return None


def leads(broker: RawClient) -> bool:
    return broker.produce("t", batch_of([b"x"])).error_code == ErrorCode.NONE


def test_a_deleted_registration(cluster: LocalCluster, zookeeper: KazooClient) -> None:
    broker, before = RawClient(cluster.port(1)), registration(zookeeper)
    zookeeper.delete(paths.broker_path(1))
    again = eventually(lambda: registration(zookeeper), "the broker did not register again")
    assert before is not None and again > before
    eventually(lambda: leads(broker), "the broker does not lead its partition again")
    eventually(
        lambda: "znode /brokers/ids/1 was deleted: registered again" in cluster.logs(1).read_text(), "nobody said so"
    )


def test_a_loss_that_a_broker_reported(cluster: LocalCluster, zookeeper: KazooClient) -> None:
    """Nobody damages anything here: a leader writes this znode, and an operator confirms it."""
    topic_id = decode_topic("t", zookeeper.get(paths.topic_path("t"))[0]).topic_id
    assert topic_id is not None
    lost = LostRecords(TopicPartition("t", 0), topic_id, 15, 20, broker_id=1)
    zookeeper.create(paths.lost_records_path("t", 0, 15, 20), encode_lost_records(lost), makepath=True)
    (problem,) = problems(cluster)
    assert problem.startswith("t-0: acknowledged records are lost on all replicas, offsets 15 to 19,")
    zookeeper.set(paths.lost_records_path("t", 0, 15, 20), b"garbage")
    (problem,) = problems(cluster)
    assert problem.startswith("znode /klamm/lost_records/t-0-15-20: ") and "delete the znode" in problem
    zookeeper.set(paths.lost_records_path("t", 0, 15, 20), encode_lost_records(lost))
    arguments = ["partition", "confirm-loss", "--topic", "t", "--partition", "0", "-b", cluster.bootstrap_servers]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and done.stdout == "Confirmed: t-0, offsets 15 to 19.\n", done.output
    assert problems(cluster) == []


def test_garbage_in_the_controller_epoch(cluster: LocalCluster, zookeeper: KazooClient) -> None:
    epoch = int(zookeeper.get(paths.CONTROLLER_EPOCH)[0])
    assert problems(cluster) == []
    zookeeper.set(paths.CONTROLLER_EPOCH, b"garbage")
    zookeeper.delete(paths.CONTROLLER)
    eventually(lambda: "no controller can be elected" in cluster.logs(1).read_text(), "the log does not say so")
    (problem,) = problems(cluster)
    assert problem.startswith("znode /controller_epoch: ") and "Set /controller_epoch to a number" in problem
    assert leads(RawClient(cluster.port(1))), "clients are served meanwhile"
    zookeeper.set(paths.CONTROLLER_EPOCH, str(epoch).encode())
    eventually(lambda: zookeeper.exists(paths.CONTROLLER) is not None, "nobody was elected after the repair")
    assert int(zookeeper.get(paths.CONTROLLER_EPOCH)[0]) == epoch + 1
    cluster.create_topic("after")


def test_garbage_in_the_controller_znode(cluster: LocalCluster, zookeeper: KazooClient) -> None:
    epoch = int(zookeeper.get(paths.CONTROLLER_EPOCH)[0])
    zookeeper.set(paths.CONTROLLER, b"garbage")
    (problem,) = problems(cluster)
    assert problem.startswith("znode /controller: ") and "Delete /controller" in problem
    zookeeper.delete(paths.CONTROLLER)
    eventually(lambda: int(zookeeper.get(paths.CONTROLLER_EPOCH)[0]) == epoch + 1, "nobody was elected")
    eventually(lambda: problems(cluster) == [], "the problem stays")


def test_garbage_in_the_znodes_of_a_topic_and_of_a_broker(cluster: LocalCluster, zookeeper: KazooClient) -> None:
    """The status names them, although all partitions are healthy."""
    damaged = [paths.topic_path("t"), paths.partition_state_path("t", 0), paths.config_entity_path("topics", "t")]
    before = {path: zookeeper.get(path)[0] for path in damaged}
    for path in damaged:
        zookeeper.set(path, b"garbage")
    zookeeper.create(paths.broker_path(9), b"garbage")
    zookeeper.create(paths.topic_path("unknown"), b"garbage")
    found = problems(cluster)
    for path in (*damaged, paths.broker_path(9), paths.topic_path("unknown")):
        assert [text for text in found if text.startswith(f"znode {path}: b'garbage' is not JSON. ")], (path, found)
    assert len(found) == 5 and leads(RawClient(cluster.port(1)))
    for path, data in before.items():
        zookeeper.set(path, data)
    zookeeper.delete(paths.broker_path(9))
    zookeeper.delete(paths.topic_path("unknown"))
    eventually(lambda: problems(cluster) == [], "the problems stay")


@pytest.mark.parametrize(("is_deleted", "problem"), [(False, "it was emptied"), (True, "it was deleted and created")])
def test_an_emptied_block_of_producer_ids_is_named(
    cluster: LocalCluster, zookeeper: KazooClient, *, is_deleted: bool, problem: str
) -> None:
    RawClient(cluster.port(1)).new_producer()
    before = zookeeper.get(paths.PRODUCER_ID_BLOCK)[0]
    if is_deleted:
        zookeeper.delete(paths.PRODUCER_ID_BLOCK)
        zookeeper.create(paths.PRODUCER_ID_BLOCK)
    else:
        zookeeper.set(paths.PRODUCER_ID_BLOCK, b"")
    (found,) = problems(cluster)
    assert found.startswith(f"znode {paths.PRODUCER_ID_BLOCK}: {problem}") and "a higher block is safe" in found
    zookeeper.set(paths.PRODUCER_ID_BLOCK, before)
    assert problems(cluster) == []


def test_invalid_settings_are_named_and_delete_nothing(cluster: LocalCluster, zookeeper: KazooClient) -> None:
    """Another tool wrote them. The default of retention.ms could delete what the topic was to keep."""
    damaged = {
        paths.config_entity_path("topics", "t"): b'{"version":1,"config":{"retention.ms":"abc"}}',
        paths.config_entity_path("brokers", "1"): b'{"version":1,"config":{"log.retention.ms":"soon"}}',
        paths.config_entity_path("users", "alice"): b'{"version":1,"config":{"producer_byte_rate":"much"}}',
        paths.config_entity_path("users", "bob"): b'{"version":1,"config":{"SCRAM-SHA-256":"secret"}}',
        paths.config_entity_path("users", "alice/clients/c"): b"garbage",
        paths.config_entity_path("clients", "c"): b"[]",
        paths.config_entity_path("ips", "10.0.0.1"): b"garbage",
        "/kafka-acl/Topic/t": b"garbage",
        "/kafka-acl-extended/prefixed/Group/g": b'{"version":1,"acls":[{}]}',
    }
    before = {path: zookeeper.get(path)[0] if zookeeper.exists(path) else None for path in damaged}
    for path, data in damaged.items():
        zookeeper.ensure_path(path)
        zookeeper.set(path, data)
    change = zookeeper.create(paths.config_change_path(), b'{"version":2,"entity_path":"topics/t"}', sequence=True)
    found = problems(cluster)
    assert sorted(text.split(": ")[0] for text in found) == sorted(f"znode {path}" for path in damaged), found
    assert not [text for text in found if "secret" in text]
    (of_topic,) = (text for text in found if "topics/t:" in text)
    assert "retention.ms cannot be 'abc'" in of_topic and "uses retention.ms=-1" in of_topic
    assert "`klamm topic alter t --config retention.ms=...`" in of_topic
    rule = "topic t uses retention.ms=-1 until retention.ms is valid: the default could delete records"
    eventually(lambda: rule in cluster.logs(1).read_text(), "the broker did not log it")
    for path in [change, *reversed(damaged)]:
        if before.get(path) is None:
            zookeeper.delete(path, recursive=True)
        else:
            zookeeper.set(path, before[path])
    eventually(lambda: problems(cluster) == [], "the problems stay")


def test_a_broker_that_starts_beside_a_damaged_topic(tmp_path: Path) -> None:
    """It cannot know the topic, but the status names the znodes."""
    state = paths.partition_state_path("stateless", 0)
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        for topic in ("unassigned", "stateless"):
            cluster.create_topic(topic)
        cluster.stop(1)
        zookeeper = KazooClient(cluster.zookeeper_connect)
        zookeeper.start(TIMEOUT_S)
        zookeeper.set(paths.topic_path("unassigned"), b"garbage")
        zookeeper.set(state, b"garbage")
        zookeeper.stop()
        zookeeper.close()
        cluster.start(1)
        found = problems(cluster)
    damaged = [state, paths.topic_path("unassigned")]
    assert sorted(text.split(": ")[0] for text in found) == [f"znode {path}" for path in damaged]
