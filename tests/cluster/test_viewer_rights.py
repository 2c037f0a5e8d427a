"""The viewer and `klamm trace` on a cluster with an authorizer: users see what their rights allow, or a reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from klamm.testing import LocalCluster
from tests.support.raw_client import eventually

CONFIGS = {"klamm.control.log.enable": True, "klamm.metrics.port": 0}
TRACES = "__klamm_request_log"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, sasl="SCRAM-SHA-256", acls=True, broker_configs=CONFIGS) as running:
        running.create_topic("orders", 2, 1)
        yield running


def properties(cluster: LocalCluster, user: str | None) -> Path:
    path = cluster.write_client_properties(user, cluster.data_dir / f"{user or 'admin'}.properties")
    assert path is not None
    return path


def klamm(cluster: LocalCluster, user: str | None, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "KLAMM_COMMAND_CONFIG": str(properties(cluster, user)),
        "KLAMM_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
    }
    command = [sys.executable, "-m", "klamm.cli.main", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def done(cluster: LocalCluster, user: str | None, *arguments: str) -> tuple[int, str, str]:
    running = klamm(cluster, user, *arguments)
    output, notes = running.communicate(timeout=120)
    return running.returncode, output, notes


@contextmanager
def viewer(cluster: LocalCluster, user: str | None) -> Iterator[str]:
    running = klamm(cluster, user, "dashboard", "--port", "0")
    assert running.stdout is not None
    try:
        found = re.search(r"http://\S+", running.stdout.readline())
        assert found is not None
        yield found[0].rstrip("/")
    finally:
        running.terminate()
        running.communicate(timeout=60)


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/{path}", timeout=60) as answer:
        return json.load(answer)


def state_of_records(address: str) -> str | None:
    """The first reported problem of the stream of the control log."""
    with urllib.request.urlopen(f"{address}/api/records", timeout=60) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                problem: str | None = json.loads(line[6:])["problem"]
                return problem
    return None


def status_of_answering(address: str) -> Any:
    """The viewer waits for a broker for seconds only, and its page asks again."""
    status = get(address, "api/status")
    return status if status["brokers"] and status["brokers"][0]["answers"] else None


def is_refused(address: str, path: str) -> bool:
    problem = get(address, f"api/cluster/{path}")["problem"] or ""
    return "not authorized" in problem.lower() or "AUTHORIZATION_FAILED" in problem


def apis_of_traces(address: str) -> set[str]:
    return {trace["api"] for trace in get(address, "api/traces")["traces"]}


def test_a_user_without_rights_gets_sentences(cluster: LocalCluster) -> None:
    with viewer(cluster, "alice") as address:
        status = eventually(lambda: status_of_answering(address), "the broker does not answer in time")
        assert (status["topics"], status["unwell_partitions"]) == (0, []), "topics that alice may not describe"
        assert status["brokers"][0]["listeners"] == []
        assert any("The user lacks Describe on all topics" in problem for problem in status["problems"])
        assert status["missing_rights"][0] == {
            "operation": "Describe",
            "resourceType": "Topic",
            "resourceName": "*",
        }
        assert get(address, "api/cluster/topics")["topics"] == []
        for page, hidden in (("topics", "topics"), ("groups", "groups"), ("transactions", "transactional ids")):
            lacks = f"The user lacks Describe on all {hidden}: {hidden} without this right are not shown."
            assert lacks in get(address, f"api/cluster/{page}")["problems"]
        for path in ("topic?name=orders", "records?topic=orders", "group?name=billing"):
            eventually(lambda path=path: is_refused(address, path), f"no problem of {path}")  # type: ignore[misc]
        assert get(address, "api/cluster/groups")["groups"] == []
        assert get(address, "api/cluster/transactions")["transactions"] == []
        assert get(address, "api/traces")["traces"] == []
        eventually(lambda: TRACES in (get(address, "api/traces")["problem"] or ""), "no problem of the traces")
        eventually(lambda: "control log" in (state_of_records(address) or ""), "no problem of the control log")


def test_trace_without_rights_changes_nothing_and_reports_why(cluster: LocalCluster) -> None:
    code, output, notes = done(cluster, "alice", "trace", "--on", "1", "--count", "1")
    assert code == 1 and not output
    assert f"{TRACES} cannot be read: TOPIC_AUTHORIZATION_FAILED" in notes and "Traceback" not in notes
    assert samples(cluster) == {"0"}


def samples(cluster: LocalCluster) -> set[str]:
    """Whether the broker traces requests."""
    code, shown, notes = done(cluster, None, "config", "describe", "--broker", "1", "--all", "--json")
    assert code == 0, notes
    rows = json.loads(shown)
    return {row["value"] for row in rows if row["key"] == "klamm.request.trace.sample"}


@pytest.mark.long
def test_traces_need_the_right_to_read_the_topic(cluster: LocalCluster) -> None:
    """The memory of a broker does not know principals, so a secured broker serves traces by the topic only."""
    tracing = klamm(cluster, None, "trace", "--on", "1", "--api", "Produce", "--topic", "orders", "--count", "1")
    producer = Producer(cluster.client_config())
    while tracing.poll() is None:
        producer.produce("orders", value=b"a secret")
        assert producer.flush(60) == 0
    output, notes = tracing.communicate(timeout=60)
    assert tracing.returncode == 0, notes
    assert "Produce v" in output and "a secret" not in output
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://{cluster.metrics_address(1)}/traces", timeout=60)
    code, output, notes = done(cluster, "alice", "trace", "--exit-at-end")
    assert code == 1 and not output and "Traceback" not in notes and TRACES in notes
    with viewer(cluster, None) as address:
        eventually(lambda: apis_of_traces(address) == {"Produce"}, "the viewer does not show the traces")
    with viewer(cluster, "alice") as address:
        assert get(address, "api/traces")["traces"] == []
    rights = ("--operation", "Read", "--operation", "Describe", "--topic", TRACES)
    code, _, notes = done(cluster, None, "acl", "add", "--allow-principal", "User:alice", *rights)
    assert code == 0, notes

    def alice_reads() -> bool:
        code, output, _ = done(cluster, "alice", "trace", "--exit-at-end", "--json")
        return code == 0 and {json.loads(line)["api"] for line in output.splitlines()} == {"Produce"}

    eventually(alice_reads, "alice cannot read traces")
    code, output, notes = done(cluster, "alice", "trace", "--on", "1", "--count", "1")
    assert code == 1 and not output and "CLUSTER_AUTHORIZATION_FAILED" in notes, "reading is not switching on"
    eventually(lambda: samples(cluster) == {"0"}, "the broker still traces requests")
    with viewer(cluster, "alice") as address:
        eventually(lambda: apis_of_traces(address) == {"Produce"}, "alice does not see the traces")


def test_a_viewer_without_rights_keeps_no_connections(cluster: LocalCluster) -> None:
    """The page asks every few seconds, for hours."""
    running = klamm(cluster, "alice", "dashboard", "--port", "0")
    assert running.stdout is not None
    try:
        found = re.search(r"http://\S+", running.stdout.readline())
        assert found is not None
        counts = []
        for _ in range(12):
            get(found[0].rstrip("/"), "api/traces")
            counts.append(len(os.listdir(f"/proc/{running.pid}/fd")))
        # A connection that the client has closed stays open here until the viewer gets to run.
        eventually(
            lambda: len(os.listdir(f"/proc/{running.pid}/fd")) <= counts[2] + 1, f"connections stay open: {counts}"
        )
    finally:
        running.terminate()
        running.communicate(timeout=60)
