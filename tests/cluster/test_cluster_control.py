"""`klamm cluster status` on a cluster that has lost its controller, and then its ZooKeeper."""

from __future__ import annotations

from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.testing import LocalCluster
from tests.support.raw_client import TIMEOUT_S, eventually


def test_nothing_can_be_decided_without_a_controller_and_without_zookeeper() -> None:
    with LocalCluster(brokers=2, broker_configs={"zookeeper.session.timeout.ms": 60_000}) as cluster:
        controller = cluster.controller_id
        (other,) = (broker for broker in cluster.broker_ids if broker != controller)

        def status(timeout_s: float = TIMEOUT_S) -> tuple[int, list[str]]:
            """The exit code, and the lines about the controller and ZooKeeper."""
            servers = f"127.0.0.1:{cluster.port(other)}"
            done = CliRunner().invoke(app, ["cluster", "status", "--timeout", str(timeout_s), "-b", servers])
            return done.exit_code, done.stdout.splitlines()[1:3]

        well = (0, [f"Controller  broker {controller}", "ZooKeeper   answers"])
        eventually(lambda: status() == well, "the cluster is never well")
        cluster.kill(controller)
        effect = "no elections or topic changes until one is elected"
        dead = f"Controller  broker {controller}, which does not answer ({effect})"
        assert status() == (4, [dead, "ZooKeeper   answers"])
        cluster.stop_zookeeper()
        lost = "ZooKeeper   does not answer (no elections or topic changes until it does)"
        eventually(lambda: status(timeout_s=1.0) == (4, [dead, lost]), "nobody misses ZooKeeper")
        cluster.kill(other)
