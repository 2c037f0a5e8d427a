"""What docs/operations.md shows works: its commands and its Python, on three brokers in three racks."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.client import BOOTSTRAP_VARIABLE
from klamm.testing import LocalCluster

GUIDE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    configs: dict[str | int, object] = {"replica.selector.class": SELECTOR, "klamm.metrics.port": 0}
    configs |= {number: {"broker.rack": rack} for number, rack in ((1, "a"), (2, "b"), (3, "c"))}
    with LocalCluster(brokers=3, broker_configs=configs) as running:
        running.create_topic("orders", partitions=2, replication_factor=2)
        yield running


def test_commands(cluster: LocalCluster) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 7 and SELECTOR in GUIDE
    for command in commands:
        _, *arguments = shlex.split(command)
        done = CliRunner().invoke(app, arguments, env={BOOTSTRAP_VARIABLE: cluster.bootstrap_servers})
        assert done.exit_code == 0, (command, done.output, done.exception)


def test_python(cluster: LocalCluster) -> None:
    names: dict[str, Any] = {"servers": cluster.bootstrap_servers, "time": time}
    move, elect, consume = blocks("python")
    try:
        exec(move, names)
        assert [sorted(cluster.isr("orders", partition)) for partition in (0, 1)] == [[2, 3], [2, 3]]
        exec(elect, names)
        cluster.wait_for(lambda: [cluster.leader("orders", p) for p in (0, 1)] == [2, 3], what="The preferred leaders")
        exec(consume, names)
        names["consumer"].close()
    finally:
        if "admin" in names:
            names["admin"].close()
