"""A broker that was killed, or whose directories were copied: whose session is ended, and whose is not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from klamm.errors import ErrorCode
from klamm.local.broker_sessions import expire_session
from klamm.testing import LocalCluster
from tests.support.broker_process import BrokerProcess, refuse_to_start, write_properties
from tests.support.calm import CALM
from tests.support.raw_client import TIMEOUT_S, RawClient, batch_of, eventually

SESSION = "zookeeper.session"


def broker_config(cluster: LocalCluster, path: Path, *log_dirs: Path, session_timeout_ms: int = 4000) -> Path:
    config = {
        "broker.id": 1,
        "log.dirs": ",".join(map(str, log_dirs)),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "zookeeper.connect": cluster.zookeeper_connect,
        "zookeeper.session.timeout.ms": session_timeout_ms,
        "zookeeper.connection.timeout.ms": 60_000,
    }
    return write_properties(path, config)


@pytest.mark.long
def test_a_copied_directory_does_not_end_the_session_of_the_living(tmp_path: Path) -> None:
    """The copy waits without success for the session to end by itself, and is refused."""
    with LocalCluster(broker_configs=CALM) as cluster:
        cluster.create_topic("t")
        original = cluster.data_dir / "broker-1"
        shutil.copytree(original, tmp_path / "copy")
        said = refuse_to_start(broker_config(cluster, tmp_path / "copy.properties", tmp_path / "copy"))
        assert "Broker 1 cannot register" in said.splitlines()[-1]
        assert said.count("s for that session to end") == 1
        assert "expired" not in cluster.logs(1).read_text()
        assert RawClient(cluster.port(1)).produce("t", batch_of([b"x"])).error_code == ErrorCode.NONE
        cluster.create_topic("later")


def test_a_copy_of_a_dead_brokers_directory_waits_for_its_session(tmp_path: Path) -> None:
    with LocalCluster(broker_configs=CALM) as cluster:
        cluster.create_topic("t")
        assert RawClient(cluster.port(1)).produce("t", batch_of([b"x"])).error_code == ErrorCode.NONE
        cluster.kill(1)
        shutil.copytree(cluster.data_dir / "broker-1", tmp_path / "copy")
        broker = BrokerProcess(
            broker_config(cluster, tmp_path / "copy.properties", tmp_path / "copy", session_timeout_ms=40_000)
        )
        with broker.launched():
            eventually(lambda: "s for that session to end" in broker.log, "it never finds that it is registered")
            assert expire_session(cluster.zookeeper_connect, [cluster.data_dir / "broker-1"], TIMEOUT_S)
            broker.await_ready()
            assert broker.log.count("s for that session to end") == 1
            assert broker.client().read_all("t") == [(0, b"x")]
            assert broker.stop() == 0


def test_the_session_is_found_in_any_directory(tmp_path: Path) -> None:
    """The directory that comes first now could not be used, or was not there, when the last run began."""
    first, second = tmp_path / "first", tmp_path / "second"
    with LocalCluster() as cluster:
        cluster.stop(1)
        # No session ends by itself here, also on a machine that lets nobody run for seconds.
        one = broker_config(cluster, tmp_path / "one.properties", second, session_timeout_ms=40_000)
        with BrokerProcess(one) as broker:
            broker.stop(signal.SIGKILL)
        config = broker_config(cluster, tmp_path / "two.properties", first, second, session_timeout_ms=40_000)
        with BrokerProcess(config) as broker:
            assert "last run was ended" in broker.log and "waits for" not in broker.log
            assert json.loads((first / SESSION).read_text())["pid"] == broker.process.pid
            broker.stop(signal.SIGKILL)
        (first / SESSION).unlink()
        with BrokerProcess(config) as broker:
            assert "last run was ended" in broker.log and "waits for" not in broker.log
            assert broker.stop() == 0
            assert not os.path.exists(first / SESSION) and not os.path.exists(second / SESSION), broker.log
