"""LocalCluster itself: real processes that start, stop, die, pause and come back where they were."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.testing import LocalCluster
from tests.support.long_form import short_for

KLAMM_CLUSTER = {"broker_configs": {"num.partitions": 2}}


def test_fixtures_and_settings(klamm_cluster: LocalCluster, klamm_topic: str) -> None:
    assert klamm_cluster.leader(klamm_topic) == klamm_cluster.broker_ids[0]
    assert klamm_cluster.isr(klamm_topic) == [1]
    assert klamm_cluster.controller_id == 1
    assert klamm_cluster.logs(1).exists()
    assert "num.partitions=2" in (klamm_cluster.data_dir / "broker-1.properties").read_text()


def test_a_refused_topic_names_the_reason(klamm_cluster: LocalCluster, klamm_topic: str) -> None:
    with pytest.raises(KlammError, match="TOPIC_ALREADY_EXISTS"):
        klamm_cluster.create_topic(klamm_topic)
    with pytest.raises(KlammError, match="INVALID_REPLICATION_FACTOR"):
        klamm_cluster.create_topic("x", replication_factor=2)
    with pytest.raises(KlammError, match="INVALID_CONFIG"):
        klamm_cluster.create_topic("x", config={"retention.ms": "soon"})


def test_stop_and_kill_keep_the_port_and_the_topics(klamm_cluster: LocalCluster) -> None:
    cluster = klamm_cluster
    cluster.create_topic("kept", partitions=3)
    servers, first = cluster.bootstrap_servers, cluster.pid(1)
    for end in (cluster.stop, cluster.kill):
        end(1)
        assert not cluster.is_running(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", cluster.port(1)), 10)
        cluster.start(1)
        assert cluster.bootstrap_servers == servers and cluster.leader("kept", 2) == 1
    assert cluster.pid(1) != first


def test_a_paused_broker_continues_where_it_was(klamm_cluster: LocalCluster) -> None:
    klamm_cluster.create_topic("paused")
    pid = klamm_cluster.pid(1)
    for _ in range(2):
        klamm_cluster.pause(1)
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    asked: list[Callable[[], object]] = [
        lambda: klamm_cluster.create_topic("unheard"),
        lambda: klamm_cluster.leader("paused"),
        lambda: klamm_cluster.isr("paused"),
        lambda: klamm_cluster.controller_id,
    ]
    for ask in asked:
        with pytest.raises(KlammError, match=r": broker 1 is paused\.$"):
            ask()
    klamm_cluster.resume(1)
    assert klamm_cluster.leader("paused") == 1 and klamm_cluster.pid(1) == pid


def test_a_start_that_fails_shows_the_log_and_leaves_nothing() -> None:
    cluster = LocalCluster(broker_configs={"log.dirs": "/proc/no/such/place"})
    with pytest.raises(KlammError, match=r"(?s)Broker 1 ended with code 1 while starting.*broker-1.log"):
        cluster.start_all()
    assert not cluster.data_dir.exists()


def test_data_in_a_given_directory_survives_the_cluster(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("kept", config={"retention.ms": 3_600_000})
        pid = cluster.pid(1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with LocalCluster(data_dir=tmp_path) as cluster:
        assert cluster.leader("kept") == 1


def test_async_with() -> None:
    async def use() -> str:
        async with LocalCluster() as cluster:
            return cluster.bootstrap_servers

    assert asyncio.run(use()).startswith("127.0.0.1:")


def test_wait_for_returns_the_first_result_and_names_the_missing_condition(klamm_cluster: LocalCluster) -> None:
    results = iter([None, False, 0])
    assert klamm_cluster.wait_for(lambda: next(results)) == 0
    with pytest.raises(KlammError, match=r"(?s)A second controller: did not happen in time.*broker-1.log"):
        klamm_cluster.wait_for(lambda: klamm_cluster.controller_id == 2, 0.05, what="A second controller")


@pytest.mark.parametrize("victim", short_for(["Broker 2"], ["Broker 2", "ZooKeeper"]))
def test_wait_for_ends_early_when_a_process_has_ended_by_itself(victim: str) -> None:
    with LocalCluster(brokers=2) as cluster:
        child = cluster._supervisor.broker(2) if victim == "Broker 2" else cluster._supervisor.zookeeper
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(KlammError, match=f"(?s)Rain: did not happen: {victim} has exited on its own"):
            cluster.wait_for(lambda: False, 3_600, what="Rain")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_zookeeper_returns_with_its_data(klamm_cluster: LocalCluster, kill: bool) -> None:
    topic, address = klamm_cluster.unique_topic_name(), klamm_cluster.zookeeper_connect
    klamm_cluster.create_topic(topic)
    klamm_cluster.restart_zookeeper(kill=kill)
    assert klamm_cluster.zookeeper_connect == address
    with pytest.raises(KlammError, match="TOPIC_ALREADY_EXISTS"):
        klamm_cluster.create_topic(topic)
    klamm_cluster.create_topic(klamm_cluster.unique_topic_name())


@pytest.mark.parametrize("paused", [False, True], ids=["awake", "paused"])
def test_a_broker_whose_session_expired_comes_back_with_another(paused: bool) -> None:
    with LocalCluster(brokers=3) as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3)
        controller = cluster.controller_id
        pid, noted = cluster.pid(controller), cluster.data_dir / f"broker-{controller}" / "zookeeper.session"
        before = noted.read_text()
        if paused:
            cluster.pause(controller)
        cluster.expire_session(controller)
        if paused:
            cluster.wait_for(lambda: cluster.controller_id != controller, what="Another controller")
            cluster.wait_for(lambda: controller not in cluster.live_brokers, what="Two brokers")
            cluster.resume(controller)
        cluster.wait_for(lambda: noted.read_text() != before, what="Another session")
        cluster.wait_for(
            lambda: all(sorted(cluster.isr("t", p)) == [1, 2, 3] for p in range(3)), what="All replicas in sync"
        )
        assert cluster.pid(controller) == pid


def test_sessions_of_a_stopped_broker_and_of_an_external_zookeeper_do_not_expire(klamm_cluster: LocalCluster) -> None:
    klamm_cluster.stop(1)
    with pytest.raises(KlammError, match="Broker 1 is not running"):
        klamm_cluster.expire_session(1)
    klamm_cluster.start(1)
    with (
        LocalCluster(zookeeper=klamm_cluster.zookeeper_connect + "/other") as other,
        pytest.raises(KlammError, match="uses an external ZooKeeper"),
    ):
        other.restart_zookeeper()
