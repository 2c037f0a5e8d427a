"""`klamm perf` on a cluster: bounds, honest reports, exit codes; and completion of topic names in the shell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.client import BOOTSTRAP_VARIABLE
from klamm.testing import LocalCluster
from tests.support.raw_client import eventually

WAIT_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        running.create_topic("perf-a", partitions=3)
        running.create_topic("perf-b", partitions=1)
        yield running


def run(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["perf", *words], env={BOOTSTRAP_VARIABLE: cluster.bootstrap_servers})
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.output


def report(cluster: LocalCluster, *words: str, code: int = 0) -> dict[str, Any]:
    found = json.loads(run(cluster, *words, "--json", code=code))
    assert isinstance(found, dict)
    return found


def test_every_record_is_counted(cluster: LocalCluster) -> None:
    sent = report(cluster, "produce", "perf-a", "--records", "700", "--size", "50")
    assert (sent["records"], sent["bytes"], sent["failed"], sent["problem"]) == (700, 35_000, 0, None)
    assert 0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99"] <= sent["latency_ms"]["max"]
    read = report(cluster, "consume", "perf-a")
    assert (read["records"], read["bytes"], read["failed"], read["interrupted"]) == (700, 35_000, 0, False)
    assert read["first_record_ms"] > 0
    assert report(cluster, "consume", "perf-a", "--records", "300")["records"] == 300
    short = report(cluster, "consume", "perf-a", "--records", "701", code=1)
    assert (short["records"], short["failed"]) == (700, 1) and "1 records before --records" in short["problem"]


def test_a_run_ends_after_its_time_and_keeps_its_rate(cluster: LocalCluster) -> None:
    def has_sent() -> dict[str, Any] | None:
        """Nothing is sent by a run whose process stands still from its first moment to its last."""
        sent = report(cluster, "produce", "perf-b", "--seconds", "1", "--rate", "100", "--acks", "1")
        return sent if sent["records"] else None

    sent = eventually(has_sent, "nothing is sent")
    assert 1 <= sent["records"] <= 101 and sent["failed"] == 0
    text = run(cluster, "produce", "perf-b", "--records", "5", "-z", "gzip")
    assert text.startswith("5 records acknowledged") and "p99.9" in text and "\x1b" not in text


def test_an_acknowledgement_does_not_wait_for_the_next_record(cluster: LocalCluster) -> None:
    """The callback of a record runs when the next one is sent, seconds after the acknowledgement."""
    found = report(cluster, "latency", "perf-b", "--records", "2", "--rate", "0.25")
    assert found["acknowledgement_ms"]["max"] < 4_000


def test_latency_ignores_other_records(cluster: LocalCluster) -> None:
    found = report(cluster, "latency", "perf-b", "--records", "20", "--rate", "200")
    assert (found["records"], found["failed"]) == (20, 0)
    assert found["end_to_end_ms"]["p50"] > 0 and found["acknowledgement_ms"]["max"] > 0


def test_a_missing_topic_is_not_created(cluster: LocalCluster) -> None:
    for command in ("produce", "consume", "latency"):
        run(cluster, command, "perf-missing", code=1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert "perf-missing" not in admin.list_topics(timeout=WAIT_S).topics


def test_records_that_are_too_large_fail_and_are_reported(cluster: LocalCluster) -> None:
    cluster.create_topic("perf-small", partitions=1, config={"max.message.bytes": "1000"})
    found = report(cluster, "produce", "perf-small", "--records", "3", "--size", "5000", code=1)
    assert (found["records"], found["failed"]) == (0, 3)
    assert found["problem"] and found["latency_ms"]["p50"] is None


def test_the_shell_completes_topics(cluster: LocalCluster) -> None:
    klamm = Path(sys.executable).parent / "klamm"

    def complete(line: str, servers: str) -> list[str]:
        env = {
            **os.environ,
            BOOTSTRAP_VARIABLE: servers,
            "_KLAMM_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        done = subprocess.run([klamm], env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.stderr == ""
        return done.stdout.split()

    eventually(  # a completion waits for the cluster for a moment only
        lambda: complete("klamm perf produce perf-", cluster.bootstrap_servers)[:2] == ["perf-a", "perf-b"],
        "no topics are suggested",
    )
    assert "latency" in complete("klamm perf ", cluster.bootstrap_servers)
    assert complete("klamm topic describe perf-", "127.0.0.1:1") == [], "without a cluster nothing is suggested"
    asked = f"{shlex.quote(str(klamm))} --show-completion; exit $?"  # the command asks which shell started it
    script = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert script.returncode == 0 and "_KLAMM_COMPLETE" in script.stdout
