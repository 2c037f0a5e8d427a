"""LocalCluster itself: real processes that start, stop, die, pause and come back where they were."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.testing import LocalCluster

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


def test_a_paused_broker_goes_on_where_it_was(klamm_cluster: LocalCluster) -> None:
    klamm_cluster.create_topic("paused")
    pid = klamm_cluster.pid(1)
    klamm_cluster.pause(1)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
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
