"""ZooKeeper goes away and comes back: data is served all the time, and the broker can be stopped at any moment."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.errors import ErrorCode
from klamm.local.ports import ReservedPort
from klamm.local.processes import ChildProcess
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient, batch_of, eventually


class ZooKeeper:
    """The embedded server as a process of its own that can be killed and started on the same port."""

    def __init__(self, directory: Path, port: int) -> None:
        arguments = ["--data-dir", str(directory), "--port", str(port)]
        self._child = ChildProcess(
            "ZooKeeper", "klamm.zk.server.main", arguments, directory.with_suffix(".log"), lambda: accepts(port)
        )
        self.kill = self._child.kill
        self.pause = self._child.pause
        self.resume = self._child.resume

    def start(self) -> None:
        self._child.spawn()
        self._child.wait_ready(time.monotonic() + 60)

    def stop(self) -> None:
        self._child.stop(60)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def zookeeper(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[ZooKeeper, LocalCluster]]:
    """The parameter are settings of the broker."""
    with ReservedPort() as port:
        zookeeper = ZooKeeper(tmp_path / "zookeeper", port.number)
        zookeeper.start()
        configs = getattr(request, "param", {})
        with LocalCluster(zookeeper=f"127.0.0.1:{port.number}", broker_configs=configs) as cluster:
            yield zookeeper, cluster
        zookeeper.stop()


def catch(client: RawClient) -> object:
    """The result of a request that would wait for ten minutes."""
    try:
        return client.create_topic("never", timeout_ms=600_000)
    except OSError as error:
        return error


def test_outage(zookeeper: tuple[ZooKeeper, LocalCluster]) -> None:
    server, cluster = zookeeper
    client = RawClient(cluster.port(1))
    cluster.create_topic("t")
    assert client.produce("t", batch_of([b"0"])).error_code == ErrorCode.NONE
    server.kill()
    assert client.create_topic("during", timeout_ms=100) == ErrorCode.REQUEST_TIMED_OUT
    assert client.produce("t", batch_of([b"1"])).error_code == ErrorCode.NONE
    assert client.read_all("t") == [(0, b"0"), (1, b"1")]
    server.start()
    eventually(lambda: client.create_topic("after", timeout_ms=10_000) in (0, 36), "topics can no longer be created")
    assert client.produce("t", batch_of([b"2"])).error_code == ErrorCode.NONE


@pytest.mark.long
def test_a_stop_during_the_outage(zookeeper: tuple[ZooKeeper, LocalCluster]) -> None:
    """The controller is in the middle of an event that ZooKeeper never answers."""
    server, cluster = zookeeper
    refused: list[object] = []
    client = RawClient(cluster.port(1))
    cluster.create_topic("t")
    assert client.produce("t", batch_of([b"0"])).error_code == ErrorCode.NONE
    server.kill()
    asking = threading.Thread(target=lambda: refused.append(catch(client)))
    asking.start()
    assert client.create_topic("behind-it", timeout_ms=100) == ErrorCode.REQUEST_TIMED_OUT
    cluster.stop(1)
    asking.join()
    assert isinstance(refused[0], OSError)
    assert (cluster.data_dir / "broker-1" / ".kafka_cleanshutdown").exists()
    assert "Traceback" not in cluster.logs(1).read_text()
    server.start()
    cluster.start(1)
    assert client.read_all("t") == [(0, b"0")]
    cluster.create_topic("later")


# A silence is noticed after two thirds of the session.
@pytest.mark.parametrize("zookeeper", [{"zookeeper.session.timeout.ms": 6000}], indirect=True)
@pytest.mark.long
def test_a_stop_while_zookeeper_stands_still(zookeeper: tuple[ZooKeeper, LocalCluster]) -> None:
    """The connection is open, so that only its silence says that nobody is there."""
    server, cluster = zookeeper
    client = RawClient(cluster.port(1))
    cluster.create_topic("t")
    assert client.produce("t", batch_of([b"0"])).error_code == ErrorCode.NONE
    server.pause()
    assert client.create_topic("waiting", timeout_ms=100) == ErrorCode.REQUEST_TIMED_OUT
    cluster.stop(1)
    log = cluster.logs(1).read_text()
    assert "this broker is the controller and ZooKeeper is unreachable" in log and "Traceback" not in log
    assert (cluster.data_dir / "broker-1" / "zookeeper.session").exists(), "nobody confirmed the end of the session"
    server.resume()
    cluster.start(1)
    assert client.read_all("t") == [(0, b"0")]


@pytest.mark.long
def test_all_of_three_brokers_stop_during_the_outage() -> None:
    """Those that are not the controller ask one that cannot decide anything."""
    with LocalCluster(brokers=3) as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3)
        controller = cluster.controller_id
        cluster.stop_zookeeper(kill=True)
        for broker_id in sorted(cluster.broker_ids, key=lambda each: each == controller):
            cluster.stop(broker_id)
            assert "leaves without a controlled shutdown: " in cluster.logs(broker_id).read_text()
