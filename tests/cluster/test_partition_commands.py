"""`klamm partition` on three brokers: moves that end, that wait, that are cancelled; elections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.testing import LocalCluster
from tests.support.calm import CALM


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, broker_configs=CALM) as running:
        yield running


def wait_for_isr(cluster: LocalCluster, topic: str, partition: int, members: list[int]) -> None:
    """The controller has decided it, and notifies the brokers."""
    cluster.wait_for(lambda: sorted(cluster.isr(topic, partition)) == members, what=f"{topic}-{partition} on {members}")


def klamm(cluster: LocalCluster, *arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["partition", *arguments, "-b", cluster.bootstrap_servers])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def move(cluster: LocalCluster, topic: str, partition: int, replicas: str, *more: str, code: int = 0) -> Any:
    target = ("--topic", topic, "--partition", str(partition), "--replicas", replicas)
    return klamm(cluster, "reassign", *target, *more, code=code)


def test_moves_that_end_and_elections(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create_topic("orders", partitions=2, replication_factor=2)
    done = move(cluster, "orders", 0, "3,1", "--wait")
    assert done.stdout == "Partition orders-0 moves to 3,1.\nAll moves have finished.\n"
    wait_for_isr(cluster, "orders", 0, [1, 3])
    path = tmp_path / "moves.json"
    moves = [{"topic": "orders", "partition": p, "replicas": [1, 2, 3]} for p in (0, 1)]
    path.write_text(json.dumps({"version": 1, "partitions": moves}))
    klamm(cluster, "reassign", "--file", str(path), "--wait")
    for partition in (0, 1):
        wait_for_isr(cluster, "orders", partition, [1, 2, 3])
    klamm(cluster, "elect", "--preferred", "--topic", "orders")
    assert [cluster.leader("orders", p) for p in (0, 1)] == [1, 1]
    assert "No partition needs an election." in klamm(cluster, "elect", "--preferred").stderr
    unneeded = klamm(cluster, "elect", "--unclean", "--topic", "orders", "--partition", "1")
    assert unneeded.stderr == "Partition orders-1 needs no election.\n"
    assert "Nothing is being moved." in klamm(cluster, "reassign", "--list").stderr


def test_requests_that_the_controller_refuses(cluster: LocalCluster) -> None:
    cluster.create_topic("refused", partitions=1, replication_factor=1)
    reported = move(cluster, "refused", 0, "1,9", "--wait", code=1).stderr
    assert "Partition refused-0 is not moved: INVALID_REPLICA_ASSIGNMENT: " in reported and "9." in reported
    assert "UNKNOWN_TOPIC_OR_PARTITION" in move(cluster, "refused", 7, "1", code=1).stderr
    cancelled = klamm(cluster, "reassign", "--cancel", "--topic", "refused", "--partition", "0", code=1)
    assert "NO_REASSIGNMENT_IN_PROGRESS" in cancelled.stderr
    for asked in (("elect", "--preferred"), ("reassign", "--list"), ("reassign", "--cancel")):
        missing = klamm(cluster, *asked, "--topic", "missing", code=1)
        assert str(missing.exception) == "There is no topic missing."
    missing = klamm(cluster, "reassign", "--list", "--topic", "refused", "--partition", "7", code=1)
    assert str(missing.exception) == "Topic refused has no partition 7."


def test_a_move_that_cannot_end_is_listed_and_cancelled(cluster: LocalCluster) -> None:
    controller = cluster.controller_id
    paused, home = (broker for broker in cluster.broker_ids if broker != controller)
    cluster.create_topic("slow", partitions=1, replication_factor=1)
    move(cluster, "slow", 0, str(home), "--wait")
    servers = ",".join(f"127.0.0.1:{cluster.port(broker)}" for broker in (controller, home))

    def ask(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["partition", *arguments, "-b", servers])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    cluster.pause(paused)
    try:
        slow = ("--topic", "slow", "--partition", "0")
        late = ask("reassign", *slow, "--replicas", str(paused), "--wait", "--timeout", "0", code=1)
        assert str(late.exception) == "After 0 s still in progress: slow-0. They continue."
        (row,) = ask("reassign", "--list", "--topic", "slow").stdout.splitlines()[1:]
        assert row.split() == ["slow", "0", f"{paused},{home}", str(paused), str(home)]
        assert ask("reassign", "--cancel", "--topic", "slow").stdout == f"Partition slow-0 moves back to {home}.\n"
        assert "Nothing is being moved." in ask("reassign", "--list").stderr
        assert "Nothing is being moved." in ask("reassign", "--cancel", "--topic", "slow").stderr
    finally:
        cluster.resume(paused)
    wait_for_isr(cluster, "slow", 0, [home])


def test_a_preferred_replica_that_is_not_there_cannot_be_elected(cluster: LocalCluster) -> None:
    cluster.create_topic("absent", partitions=1, replication_factor=1)
    controller = cluster.controller_id
    gone, other = (broker for broker in cluster.broker_ids if broker != controller)
    move(cluster, "absent", 0, f"{gone},{other}", "--wait")
    cluster.stop(gone)
    try:
        servers = f"127.0.0.1:{cluster.port(controller)}"
        done = CliRunner().invoke(
            app, ["partition", "elect", "--preferred", "--topic", "absent", "--partition", "0", "-b", servers]
        )
        assert done.exit_code == 1
        reported = "Partition absent-0: the election of its preferred replica failed: PREFERRED_LEADER_NOT_AVAILABLE"
        assert str(done.exception).startswith(reported)
    finally:
        cluster.start(gone)
