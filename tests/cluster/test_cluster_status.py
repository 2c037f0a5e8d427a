"""`klamm cluster status` on three brokers: one that stands still lags, and has caught up when it goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.errors import ErrorCode
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient, eventually

CONFIGS = {"klamm.metrics.port": 0, "zookeeper.session.timeout.ms": 60_000}


@pytest.fixture
def cluster() -> Any:
    with LocalCluster(brokers=3, broker_configs=CONFIGS) as running:
        yield running


def status(cluster: LocalCluster, *options: str) -> str:
    arguments = ["cluster", "status", "--timeout", "1", "-b", f"127.0.0.1:{cluster.port(cluster.controller_id)}"]
    for broker_id in cluster.broker_ids:
        ready = json.loads((cluster.data_dir / f"broker-{broker_id}.ready").read_text())
        arguments += ["--metrics", f"{broker_id}=127.0.0.1:{ready['metrics_port']}"]
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_broker_that_stands_still_lags_and_catches_up(cluster: LocalCluster) -> None:
    controller = cluster.controller_id
    paused = next(broker for broker in cluster.broker_ids if broker != controller)

    def seen() -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        found = json.loads(status(cluster, "--format", "json"))
        return found, {broker["id"]: broker for broker in found["brokers"]}

    def is_well() -> bool:
        found, brokers = seen()
        lags = [(b["answers"], b["unacknowledged_requests"], b["partitions_behind"]) for b in brokers.values()]
        epochs = {b["controller_epoch"] for b in brokers.values()}
        return lags == [(True, 0, 0)] * 3 and epochs == {found["controller_epoch"]} and None not in epochs

    def is_behind() -> bool:
        found, brokers = seen()
        lag = brokers[paused]["unacknowledged_requests"] or 0
        return (
            lag > 0
            and brokers[paused]["oldest_request_ms"] > 0
            and not brokers[paused]["answers"]
            and brokers[paused]["partitions_behind"] is None
            and brokers[controller]["unacknowledged_requests"] == 0
            and (found["topics"], found["partitions"]) == (1, 1)
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
    assert "1 of 1 topics, 0 under-replicated, 0 offline" in text


def test_without_metrics_the_brokers_views_are_compared(cluster: LocalCluster) -> None:
    done = CliRunner().invoke(app, ["cluster", "status", "-b", cluster.bootstrap_servers, "-f", "json"])
    brokers = json.loads(done.stdout)["brokers"]
    assert [b["unacknowledged_requests"] for b in brokers] == [None] * 3
    assert all(b["answers"] and b["partitions_behind"] == 0 for b in brokers)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-b", "127.0.0.1:1"], "No broker answers at 127.0.0.1:1."),
        (["-b", "nowhere"], "'nowhere' is not an address: expected host:port."),
        (["--metrics", "one=a:1"], "--metrics one: expected the number of a broker."),
        (["--metrics", "a:1"], "--metrics 'a:1' is not key=value."),
    ],
)
def test_what_cannot_be_asked(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["cluster", "status", "--timeout", "1", *arguments])
    assert done.exit_code == 1 and sentence in str(done.exception)
