"""`klamm top`, `klamm cluster why` and `klamm cluster metadata` on a cluster whose leader is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.output import Failure
from klamm.errors import ErrorCode
from klamm.testing import LocalCluster
from tests.support.calm import CALM, kill_at_once
from tests.support.raw_client import RawClient
from tests.support.relayed_cluster import relayed_cluster
from tests.support.relays import Relays


@pytest.fixture(scope="module")
def relayed() -> Iterator[tuple[LocalCluster, Relays]]:
    """The controller reaches the brokers through relays; clients, and brokers otherwise, reach them directly."""
    settings = {**CALM, "klamm.control.log.enable": True, "klamm.metrics.port": 0}
    with relayed_cluster(2, {**settings, "control.plane.listener.name": "CLIENT"}) as (running, relays):
        running.create_topic("orders", partitions=2, replication_factor=2)
        yield running, relays


@pytest.fixture(scope="module")
def cluster(relayed: tuple[LocalCluster, Relays]) -> LocalCluster:
    return relayed[0]


@pytest.fixture(scope="module")
def relays(relayed: tuple[LocalCluster, Relays]) -> Relays:
    return relayed[1]


def klamm(cluster: LocalCluster, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*arguments, "-b", cluster.bootstrap_servers])
    if isinstance(done.exception, Failure):
        return 1, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def parsed(cluster: LocalCluster, *arguments: str) -> Any:
    code, output = klamm(cluster, *arguments, "--json")
    assert code == 0, output
    return json.loads(output)


def test_top(cluster: LocalCluster, relays: Relays) -> None:
    code, output = klamm(cluster, "top", "--count", "2", "--interval", "0.2", "--json")
    assert code == 0
    first, second = map(json.loads, output.splitlines())
    assert [it["cpu_ms"] for it in first["activity"]] == [None, None], "rates need two readings"
    for each in second["activity"]:
        assert each["cpu_ms"] >= 0 and each["requests"] > 0 and each["resources"]["memory_bytes"] > 1_000_000
        assert 0 < each["resources"]["disk_usable"] < each["resources"]["disk_total"]
        assert set(each["resources"]["loop_idle"]) == {"broker", "control"}
    assert [it["listeners"] for it in second["status"]["brokers"]] == [
        [f"PLAINTEXT://{server}", f"CLIENT://127.0.0.1:{port}"]
        for server, port in zip(cluster.bootstrap_servers.split(","), relays.ports.values(), strict=True)
    ]
    code, text = klamm(cluster, "top", "--count", "1")
    assert code == 0 and "controller" in text and "MEMORY" in text and " MB" in text


def all_know(cluster: LocalCluster) -> bool:
    codes = [klamm(cluster, "cluster", "metadata", "--broker", str(broker))[0] for broker in cluster.broker_ids]
    return codes == [0, 0]


def test_a_broker_that_knows_all(cluster: LocalCluster) -> None:
    cluster.wait_for(lambda: all_know(cluster), what="Brokers that know what the controller knows")
    found = parsed(cluster, "cluster", "metadata", "--broker", "2", "--all")
    assert found["broker"] == 2
    assert [it["differs"] for it in found["partitions"] if it["topic"] == "orders"] == [False, False]
    assert "There is no live broker 9" in klamm(cluster, "cluster", "metadata", "--broker", "9")[1]


def test_a_broker_that_the_controller_does_not_reach(cluster: LocalCluster, relays: Relays) -> None:
    """It answers its clients, with old knowledge: the command shows what it does not know, and its exit code is 3."""
    controller = cluster.controller_id
    unreached = next(broker for broker in cluster.broker_ids if broker != controller)
    question = ("cluster", "metadata", "--broker", str(unreached))
    relays.cut(unreached, with_new=True)
    try:
        assert RawClient(cluster.port(controller)).create_topic("unheard") == ErrorCode.NONE
        cluster.wait_for(lambda: klamm(cluster, *question)[0] == 3, what="A controller that knows the topic")
        code, text = klamm(cluster, *question)
        (row,) = [line.split() for line in text.splitlines() if line.startswith("unheard-0")]
        assert code == 3 and row[1] == "unknown" and "leader" in row and "orders-0" not in text
        code, text = klamm(cluster, *question, "--json")
        (belief,) = json.loads(text)["partitions"]
        assert code == 3 and (belief["topic"], belief["broker"], belief["differs"]) == ("unheard", None, True)
        informed = ("cluster", "metadata", "--broker", str(controller))
        cluster.wait_for(lambda: klamm(cluster, *informed)[0] == 0, what="A controller whose broker knows the topic")
    finally:
        relays.release()
    cluster.wait_for(lambda: all_know(cluster), what="The broker has caught up")


def test_why_waits_for_the_record_of_a_new_topic(cluster: LocalCluster) -> None:
    """Brokers write the control log behind the changes, so a question right after one comes before its record."""
    for _ in range(5):
        topic = cluster.unique_topic_name("new")
        cluster.create_topic(topic)
        code, output = klamm(cluster, "cluster", "why", topic, "0")
        assert code == 0, output


def test_why(cluster: LocalCluster) -> None:
    """The creation, and then the death of the leader."""
    why = ("cluster", "why", "orders", "0")
    cluster.wait_for(lambda: klamm(cluster, *why)[0] == 0, what="The creation in the control log")
    (creation,) = parsed(cluster, *why)
    assert [step["kind"] for step in creation["steps"]][:4] == ["cause", "event", "znode", "decision"]
    reported = klamm(cluster, "cluster", "why", "orders", "7")[1]
    assert reported == "The control log has no change of orders-7: the partitions of orders are 0 to 1."
    reported = klamm(cluster, "cluster", "why", "oders", "0")[1]
    assert reported == "The control log has no change of oders-0. There is no topic oders."
    leader = cluster.leader("orders", 0)
    assert leader is not None
    kill_at_once(cluster, leader)
    try:

        def is_elected() -> bool:
            code, output = klamm(cluster, *why, "--json")
            return code == 0 and bool(creation["change"] != json.loads(output)[0]["change"])

        cluster.wait_for(is_elected, what="A new leader in the control log")
        code, text = klamm(cluster, "cluster", "why", "orders", "0", "--last", "2")
        assert code == 0 and text.count(" ms  ") > 8 and f"broker {leader}" in text
        last = parsed(cluster, "cluster", "why", "orders", "0")[0]
        assert last["change"]["previous_leader"] == leader != last["change"]["leader"]
    finally:
        cluster.start(leader)
