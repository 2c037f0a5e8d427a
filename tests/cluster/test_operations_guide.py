"""The commands and the Python of README.md and docs/how-to/operations.md work, on three brokers in three racks."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from docgen.metric_table import METRICS
from docgen.metrics import exported_names
from klamm.cli.app import app
from klamm.cli.client import BOOTSTRAP_VARIABLE
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import TIMEOUT_S

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "operations.md").read_text()
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def words(command: str) -> list[str]:
    """Without `klamm` itself. Brokers have enough time to answer, even on a busy machine."""
    _, *arguments = shlex.split(command, comments=True)
    return [*arguments, "--timeout", str(TIMEOUT_S)] if arguments[:2] == ["cluster", "status"] else arguments


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    everywhere: dict[str, object] = {
        **CALM,
        "replica.selector.class": SELECTOR,
        "klamm.metrics.port": 0,
        "klamm.control.log.enable": True,
    }
    configs: dict[str | int, object] = {**everywhere} | {
        number: {"broker.rack": rack} for number, rack in ((1, "a"), (2, "b"), (3, "c"))
    }
    with LocalCluster(brokers=3, broker_configs=configs) as running:
        running.create_topic("orders", partitions=2, replication_factor=2)
        yield running


@pytest.mark.long
def test_commands(cluster: LocalCluster) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 20 and SELECTOR in GUIDE
    for command in commands:
        done = CliRunner().invoke(app, words(command), env={BOOTSTRAP_VARIABLE: cluster.bootstrap_servers})
        assert done.exit_code == 0, (command, done.output, done.exception)
    for partition, leader in ((0, 2), (1, 3)):
        cluster.wait_for(lambda p=partition: sorted(cluster.isr("orders", p)) == [2, 3], what="The move")  # type: ignore[misc]
        cluster.wait_for(lambda p=partition, to=leader: cluster.leader("orders", p) == to, what="The election")  # type: ignore[misc]


def test_the_readme_from_top_to_bottom(cluster: LocalCluster) -> None:
    """Without what starts a cluster, and without Spark, whose lines are for tests/spark."""
    use_it = (ROOT / "README.md").read_text().partition("## Use it\n")[2]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", use_it, re.MULTILINE | re.DOTALL)
    lines = [line for language, block in fences if not language for line in block.splitlines()]
    assert lines.pop(0).startswith("klamm up --brokers 3 ")
    commands = [
        line for line in lines if not line.startswith(("klamm sql ", "klamm pipeline ")) and "--view" not in line
    ]
    assert len(lines) == 12 and len(commands) == 9
    for line in commands:
        said, _, command = line.rpartition(" | ")
        arguments = words(command.replace("--seeds 200", "--seeds 2"))
        text = shlex.split(said)[1] + "\n" if said else None
        env = {BOOTSTRAP_VARIABLE: cluster.bootstrap_servers}
        done = CliRunner().invoke(app, arguments, input=text, env=env)
        assert done.exit_code == 0, (line, done.output, done.exception)


def test_python(cluster: LocalCluster) -> None:
    names: dict[str, Any] = {"servers": cluster.bootstrap_servers}
    (consume,) = blocks("python")
    exec(consume, names)
    names["consumer"].close()


def scrape(cluster: LocalCluster, broker_id: int) -> dict[str, set[str]]:
    """The labels of every exported name; without `quantile`, which all histograms have."""
    port = json.loads((cluster.data_dir / f"broker-{broker_id}.ready").read_text())["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, set[str]] = {}
    for line in lines:
        if sample := re.match(r"(\w+)(?:\{(.*)\})? ", line):
            labels = set(re.findall(r'(\w+)="', sample.group(2) or ""))
            found.setdefault(sample.group(1), set()).update(labels - {"quantile"})
    return found


def test_the_page_of_metrics_has_every_metric(cluster: LocalCluster) -> None:
    exported: dict[str, set[str]] = {}
    for broker_id in cluster.broker_ids:
        for name, labels in scrape(cluster, broker_id).items():
            exported.setdefault(name, set()).update(labels)
    described = {name: metric for metric in METRICS for name in exported_names(metric)}
    assert not exported.keys() - described.keys(), "describe these in docgen/metric_table.py, then run: make docs"
    missing = {name for name, metric in described.items() if not metric.when} - exported.keys()
    assert not missing, "no broker exports these: remove them from docgen/metric_table.py, then run: make docs"
    for name, labels in exported.items():
        assert labels == set(described[name].labels), f"the labels of {name} in docgen/metric_table.py are wrong"
