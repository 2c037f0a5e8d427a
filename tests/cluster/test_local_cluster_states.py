"""LocalCluster after faults of its brokers: its answers and its error messages."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from klamm.cli import produce
from klamm.cli.app import app
from klamm.errors import ErrorCode, KlammError
from klamm.local.processes import ChildProcess
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient

# Long enough that nobody counts as dead because the machine let it wait, and still some tests wait for the end of one.
KLAMM_CLUSTER = {
    "brokers": 3,
    "broker_configs": {"zookeeper.session.timeout.ms": 6000, "replica.lag.time.max.ms": 40_000},
}


def refused(ask: Callable[[], object], sentence: str) -> None:
    with pytest.raises(KlammError) as raised:
        ask()
    assert str(raised.value).splitlines()[0] == sentence


def test_the_leader_right_after_a_kill_is_one_that_lives(klamm_cluster: LocalCluster) -> None:
    cluster = klamm_cluster
    cluster.create_topic("moving", replication_factor=3)
    victim = cluster.leader("moving")
    cluster.kill(victim)
    assert cluster.leader("moving") != victim
    cluster.start(victim)


def test_a_missing_object_is_reported_at_once(klamm_cluster: LocalCluster) -> None:
    cluster = klamm_cluster
    cluster.create_topic("one")
    refused(lambda: cluster.leader("none"), "none-0 has no leader: there is no topic none.")
    cluster._admin._next_lookup_s = 0.0
    refused(lambda: cluster.isr("one", 1), "one-1 is not known: topic one has 1 partitions, counted from 0.")
    cluster._admin._next_lookup_s = 0.0
    refused(lambda: cluster.isr("no/name"), "no/name-0 is not known: 'no/name' is not a topic's name.")
    for number in range(5):  # the next client that asks finds a topic that another client created
        name = f"new-{number}"
        assert RawClient(cluster.port(cluster.controller_id)).create_topic(name) == ErrorCode.NONE
        assert cluster.leader(name) in cluster.broker_ids


def test_a_topic_whose_deletion_waits_for_a_broker(
    klamm_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = klamm_cluster
    cluster.create_topic("dying", replication_factor=3)
    absent = next(each for each in cluster.broker_ids if each != cluster.controller_id)
    cluster.stop(absent)
    cluster.wait_for(lambda: absent not in cluster.live_brokers, what="Two brokers")
    cluster.delete_topic("dying")
    cluster.wait_for(lambda: cluster._admin._partition("dying", 0) is None, what="Nobody who knows the topic")
    refused(lambda: cluster.leader("dying"), "dying-0 has no leader: topic dying is being deleted.")
    why = "Topic 'dying' already exists: it is marked for deletion, and its deletion waits for broker"
    refused(
        lambda: cluster.create_topic("dying"),
        f"Topic dying was not created: TOPIC_ALREADY_EXISTS ({why} {absent} to return).",
    )
    monkeypatch.setattr(produce, "TIMEOUT_S", 0.2)
    done = CliRunner().invoke(app, ["produce", "dying", "-b", cluster.bootstrap_servers], input="x\n")
    reported = f"Topic dying cannot be written to: TOPIC_ALREADY_EXISTS: {why} {absent} to return."
    assert str(done.exception) == reported
    cluster.start(absent)
    cluster.wait_for(lambda: _is_created(cluster, "dying"), what="The topic once more")


def _is_created(cluster: LocalCluster, name: str) -> bool:
    """By us, or for the producer, which may still ask."""
    try:
        cluster.create_topic(name)
    except KlammError as error:
        assert "TOPIC_ALREADY_EXISTS" in str(error)
        return "marked for deletion" not in str(error)
    return True


def test_a_start_that_fails_leaves_no_process(klamm_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, pids = klamm_cluster, list[int]()

    def never_ready(process: ChildProcess, deadline: float) -> None:
        pids.append(process.pid)
        raise KlammError("It did not become ready in time.")

    cluster.stop(1)
    with monkeypatch.context() as patch:
        patch.setattr(ChildProcess, "wait_ready", never_ready)
        refused(lambda: cluster.start(1), "It did not become ready in time.")
    assert not cluster.is_running(1)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    cluster.start(1)


@pytest.mark.long
def test_a_start_beside_a_paused_broker(klamm_cluster: LocalCluster) -> None:
    cluster = klamm_cluster
    cluster.kill(2)
    cluster.pause(3)
    cluster.start(2)
    assert cluster.is_running(2)
    cluster.resume(3)
    cluster.wait_for(lambda: cluster.live_brokers == {1, 2, 3}, what="Three brokers")


def test_wrong_states_are_named(klamm_cluster: LocalCluster) -> None:
    cluster = klamm_cluster
    cluster.create_topic("asked")
    refused(lambda: cluster.resume(2), "Broker 2 is not paused.")
    refused(lambda: cluster.start(2), "Broker 2 is running already.")
    cluster.pause(2)
    refused(lambda: cluster.start(2), "Broker 2 is paused: use resume().")
    cluster.pause(3)
    cluster.kill(1)
    for ask in (cluster.stop, cluster.kill, cluster.pause, cluster.resume, cluster.expire_session):
        refused(lambda ask=ask: ask(1), "Broker 1 is not running.")  # type: ignore[misc]
    why = "brokers 2 and 3 are paused and broker 1 is not running"
    refused(lambda: cluster.leader("asked"), f"asked-0 has no leader: {why}.")
    cluster.kill(2)
    cluster.kill(3)
    refused(lambda: cluster.isr("asked"), "asked-0 is not known: brokers 1, 2 and 3 are not running.")
    refused(lambda: cluster.controller_id, "There is no controller: brokers 1, 2 and 3 are not running.")
    cluster.stop_zookeeper()
    refused(cluster.stop_zookeeper, "ZooKeeper is not running.")
    refused(lambda: cluster.start(1), "Broker 1 cannot start: ZooKeeper is not running; use start_zookeeper() first.")
