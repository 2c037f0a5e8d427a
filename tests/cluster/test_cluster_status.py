"""`klamm cluster status` on three brokers: one that stands still lags, and catches up when it continues."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.errors import ErrorCode
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import TIMEOUT_S, RawClient, eventually

CONFIGS = {**CALM, "klamm.metrics.port": 0}
OFFSETS_PARTITIONS = 4
SHORT_S = 1.0
"""For a broker that stands still, and is not to be waited for. It doubles if the others cannot answer in this time."""


@pytest.fixture
def cluster() -> Any:
    with LocalCluster(brokers=3, broker_configs=CONFIGS) as running:
        yield running


def ask(cluster: LocalCluster, *options: str, timeout_s: float = TIMEOUT_S) -> Any:
    """The brokers took any port for their metrics, and report which."""
    arguments = ["cluster", "status", "-b", f"127.0.0.1:{cluster.port(cluster.controller_id)}"]
    return CliRunner().invoke(app, [*arguments, "--timeout", str(timeout_s), *options])


def status(cluster: LocalCluster, *options: str, code: int = 0) -> str:
    done = ask(cluster, *options)
    assert done.exit_code == code, done.output
    return str(done.stdout)


def test_a_broker_that_stands_still_lags_and_catches_up(cluster: LocalCluster) -> None:
    controller = cluster.controller_id
    paused = next(broker for broker in cluster.broker_ids if broker != controller)

    def is_well() -> bool:
        found = json.loads(status(cluster, "--format", "json"))
        brokers = {broker["id"]: broker for broker in found["brokers"]}
        lags = [(b["answers"], b["unacknowledged_requests"], b["partitions_behind"]) for b in brokers.values()]
        epochs = {b["controller_epoch"] for b in brokers.values()}
        return lags == [(True, 0, 0)] * 3 and epochs == {found["controller_epoch"]} and None not in epochs

    timeouts_s = (min(SHORT_S * 2**attempt, TIMEOUT_S) for attempt in count())

    def is_behind() -> bool:
        done = ask(cluster, "--format", "json", timeout_s=next(timeouts_s))
        if done.exit_code != 0:  # others may not have answered in so short a time either
            return False
        found = json.loads(done.stdout)
        brokers = {broker["id"]: broker for broker in found["brokers"]}
        lag = brokers[paused]["unacknowledged_requests"] or 0
        return (
            lag > 0
            and brokers[paused]["oldest_request_ms"] > 0
            and not brokers[paused]["answers"]
            and brokers[paused]["partitions_behind"] is None
            and brokers[controller]["unacknowledged_requests"] == 0
            and (found["topics"], found["partitions"]) == (2, 5)
        )

    eventually(is_well, "the brokers never agree")
    cluster.pause(paused)
    try:
        assert RawClient(cluster.port(controller)).create_topic("new") == ErrorCode.NONE
        eventually(is_behind, "nobody sees that a broker stands still")
    finally:
        cluster.resume(paused)
    eventually(is_well, "the broker that stood still lags for ever")
    text = status(cluster)
    assert f"Controller  broker {controller}, epoch " in text
    assert "5 of 2 topics, 0 under-replicated, 0 under min ISR, 0 offline" in text
    without_metrics_the_views_are_compared(cluster)
    unknown = ["--metrics", "77=127.0.0.1:1", "-b", cluster.bootstrap_servers]
    done = CliRunner().invoke(app, ["cluster", "status", *unknown])
    assert str(done.exception).startswith("--metrics 77: there is no broker 77. There are: 1, ")
    what_a_stopped_broker_leaves_behind(cluster)


def without_metrics_the_views_are_compared(cluster: LocalCluster) -> None:
    nowhere = [word for broker_id in cluster.broker_ids for word in ("--metrics", f"{broker_id}=127.0.0.1:1")]
    brokers = json.loads(status(cluster, "-f", "json", *nowhere))["brokers"]
    assert [b["unacknowledged_requests"] for b in brokers] == [None] * 3
    assert all(b["answers"] and b["partitions_behind"] == 0 for b in brokers)


def what_a_stopped_broker_leaves_behind(cluster: LocalCluster) -> None:
    """Partitions are named, with what is wrong with them, and the broker that they miss."""
    kept = cluster.controller_id, cluster.leader("new")
    stopped = next(broker for broker in cluster.broker_ids if broker not in kept)
    others = [broker for broker in cluster.broker_ids if broker != stopped]
    cluster.create_topic("alone", partitions=3)
    cluster.create_topic("strict", partitions=25, replication_factor=3, config={"min.insync.replicas": 3})
    lost = next(partition for partition in range(3) if cluster.leader("alone", partition) == stopped)
    cluster.stop(stopped)

    def is_seen() -> dict[str, Any] | None:
        done = ask(cluster, "-f", "json", "-b", cluster.bootstrap_servers)
        found: dict[str, Any] = json.loads(done.stdout)
        counts = (found["offline_partitions"], found["under_min_isr_partitions"])
        is_whole = len(found["unwell_partitions"]) == 1 + 25 + OFFSETS_PARTITIONS
        return found if (done.exit_code, counts) == (3, (1, 25)) and is_whole else None

    found = eventually(is_seen, "the stopped broker is never missed")
    assert [broker["id"] for broker in found["missing_brokers"]] == [stopped]
    first, second = found["unwell_partitions"][:2]
    assert (first["topic"], first["partition"], first["leader"], first["isr"]) == ("alone", lost, -1, [stopped])
    assert first["states"][0] == "offline"
    assert (second["topic"], second["isr"], second["min_isr"]) == ("strict", others, 3)
    assert second["states"] == ["under min ISR", "under-replicated"]
    text = status(cluster, code=3)
    assert f"Missing     broker {stopped}, which has " in text
    assert f"alone-{lost} " in text and "and 10 more: --json has all of them" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-b", "127.0.0.1:1"], "No broker answers at 127.0.0.1:1."),
        (["-b", "nowhere"], "'nowhere' is not an address: expected host:port."),
        (["--metrics", "one=a:1"], "--metrics one: expected the number of a broker."),
        (["--metrics", "a:1"], "--metrics 'a:1' is not key=value."),
    ],
)
def test_questions_that_cannot_be_answered(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["cluster", "status", "--timeout", "1", *arguments])
    assert done.exit_code == 1 and sentence in str(done.exception)
