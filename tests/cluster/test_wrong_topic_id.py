"""A replica whose `partition.metadata` is of another topic, as `klamm cluster status` shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

from klamm.model import encode_topic_id
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import eventually


def status(cluster: LocalCluster) -> str:
    command = [sys.executable, "-m", "klamm.cli.main", "cluster", "status", "-b", cluster.bootstrap_servers]
    done = subprocess.run(command, env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_replica_the_file_and_the_remedy_are_named() -> None:
    with LocalCluster(brokers=2, broker_configs={**CALM, "klamm.metrics.port": 0}) as cluster:
        cluster.create_topic("orders", replication_factor=2)
        cluster.stop(2)
        (metadata,) = cluster.data_dir.glob("broker-2/**/orders-0/partition.metadata")
        metadata.write_text(f"version: 0\ntopic_id: {encode_topic_id(uuid.uuid4())}\n")
        cluster.start(2)

        def problem() -> str | None:
            return next((line for line in status(cluster).splitlines() if "inconsistent topic id" in line), None)

        row = eventually(problem, "cluster status does not name the replica")
        assert row.split()[:2] == ["2", "orders-0"]
        assert "partition.metadata" in row and "move the partition's directory away" in row
        assert f"{metadata} has topic id" in cluster.logs(2).read_text()


def test_without_metrics_the_setting_is_named() -> None:
    with LocalCluster(broker_configs={**CALM, "klamm.metrics.port": -1}) as cluster:
        reported = " ".join(status(cluster).split())
        assert "No metrics of broker 1: damaged logs and replicas of another topic are not shown." in reported
        assert "Set klamm.metrics.port" in reported
