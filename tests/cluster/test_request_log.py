"""Three brokers with request traces: what a produce and a long poll waited for, and who completed them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from klamm.model import REQUEST_LOG_TOPIC
from klamm.testing import LocalCluster
from tests.support.calm import CALM

WAIT_S = 90.0
Rows = list[dict[str, Any]]
TRACE = "klamm.request.trace."
DYNAMIC_BROKER = 2
PHASES = ("request_queue_ms", "local_ms", "remote_ms", "response_order_ms", "response_queue_ms", "send_ms")
SECRET = b"nobody may read this in a trace"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, broker_configs={**CALM, "klamm.metrics.port": 0}) as running:
        yield running


def alter(cluster: LocalCluster, brokers: Iterable[int] = (), **settings: object) -> None:
    """Set the keys of traces, or delete those that are None, on each broker, as any client can."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for broker in brokers or cluster.broker_ids:
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        for name, value in settings.items():
            key = TRACE + name.replace("_", ".")
            operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            resource.add_incremental_config(ConfigEntry(key, str(value), incremental_operation=operation))
        admin.incremental_alter_configs([resource])[resource].result(timeout=60)


def reset(cluster: LocalCluster) -> None:
    alter(cluster, sample=None, topic_enable=None, apis=None, client_ids=None, topics=None, slower_than_ms=None)


class RequestLogReader:
    """Reads the topic from its beginning, as any consumer can, and keeps the rows."""

    def __init__(self, cluster: LocalCluster) -> None:
        settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "request-log",
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(REQUEST_LOG_TOPIC, 0, 0)])
        self.rows: Rows = []

    def until(self, condition: Callable[[Rows], object], what: str) -> Rows:
        deadline = time.monotonic() + WAIT_S
        while not condition(self.rows):
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_S} s among {len(self.rows)} records"
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    assert SECRET not in (message.value() or b"")
                    self.rows.append(json.loads(message.value() or b""))
        return self.rows

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[RequestLogReader]:
    reading = RequestLogReader(cluster)
    yield reading
    reading.close()
    reset(cluster)


def of(rows: Rows, api: str, **fields: object) -> Rows:
    return [row for row in rows if row["api"] == api and all(row[name] == value for name, value in fields.items())]


def test_a_produce_and_a_long_poll_with_what_completed_them(cluster: LocalCluster, reader: RequestLogReader) -> None:
    topic = cluster.unique_topic_name("traced")
    cluster.create_topic(topic, partitions=1, replication_factor=3)
    leader = cluster.leader(topic, 0)
    alter(cluster, sample=1, topic_enable="true", client_ids="writer,poller")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "client.id": "poller",
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 120_000,
        }
    )
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "writer", "acks": "all"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + WAIT_S
    found: Rows = []

    def has_both(rows: Rows) -> bool:
        nonlocal found
        produces = [it for it in of(rows, "Produce", topic=topic) if it["waits"]]
        polls = [it for it in of(rows, "Fetch", topic=topic) if it["waits"] and it["waits"][0]["by"] is not None]
        found = [*produces[:1], *polls[:1]]
        return bool(produces and polls)

    while not has_both(reader.rows):
        assert time.monotonic() < deadline
        producer.produce(topic, value=SECRET)
        assert producer.flush(60) == 0
        consumer.poll(0.2)
        reader.until(lambda rows: True, "")
        rows_before = len(reader.rows)
        reader.until(lambda rows, n=rows_before: len(rows) > n, "a trace arrives")  # type: ignore[misc]
    consumer.close()
    produced, polled = found
    (wait,) = produced["waits"]
    assert (wait["purgatory"], wait["outcome"], wait["key"]) == ("Produce", "completed", f"{topic}-0")
    assert wait["by"]["api"] == "Fetch" and wait["by"]["broker_id"] in set(cluster.broker_ids) - {leader}
    assert wait["by"]["client_id"] == f"broker-{wait['by']['broker_id']}-fetcher"
    (wait,) = polled["waits"]
    assert (wait["purgatory"], wait["outcome"], wait["key"]) == ("Fetch", "completed", f"{topic}-0")
    assert wait["by"]["api"] == "Fetch", "a consumer sees records when the followers have them"
    for row in found:
        assert row["broker_id"] == leader and (row["partition"], row["partition_count"]) == (0, 1)
        assert (row["plane"], row["listener"], row["outcome"], row["error"]) == (
            "data",
            "PLAINTEXT",
            "answered",
            "NONE",
        )
        assert abs(sum(row[phase] for phase in PHASES) - row["total_ms"]) < 0.1
        assert wait["duration_ms"] > 0 and row["remote_ms"] > 0
    assert {row["client_id"] for row in reader.rows} <= {"writer", "poller"}, "others are not kept"


def test_traces_in_memory_are_served_beside_the_metrics(cluster: LocalCluster, reader: RequestLogReader) -> None:
    alter(cluster, sample=1, apis="ApiVersions,Metadata", client_ids="asker")
    AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "asker"}).list_topics(timeout=60)

    def served() -> Rows:
        rows: Rows = []
        for broker in cluster.broker_ids:
            with urllib.request.urlopen(f"http://{cluster.metrics_address(broker)}/traces") as answer:
                rows += [json.loads(line) for line in answer.read().splitlines()]
        return rows

    deadline = time.monotonic() + WAIT_S
    while not of(served(), "Metadata", client_id="asker"):
        assert time.monotonic() < deadline
        AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "asker"}).list_topics(timeout=60)
    assert {row["api"] for row in served() if row["client_id"] == "asker"} <= {"ApiVersions", "Metadata"}


def klamm(cluster: LocalCluster, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "klamm.cli.main", "trace", "-b", cluster.bootstrap_servers, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def setting(cluster: LocalCluster, broker: int, key: str) -> str | None:
    """The value of a key of traces at one broker, if it is set there."""
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entry = admin.describe_configs([resource])[resource].result(timeout=60)[TRACE + key]
    return entry.value if entry.source == DYNAMIC_BROKER else None


def test_the_command_switches_tracing_on_and_off_again(cluster: LocalCluster) -> None:
    topic = cluster.unique_topic_name("watched")
    cluster.create_topic(topic, partitions=1, replication_factor=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "watched", "acks": "all"})
    before = {
        broker: (setting(cluster, broker, "sample"), setting(cluster, broker, "apis")) for broker in cluster.broker_ids
    }
    command = klamm(cluster, "--on", "1", "--api", "Produce", "--topic", topic, "--count", "2")
    while command.poll() is None:
        producer.produce(topic, value=SECRET)
        assert producer.flush(60) == 0
        time.sleep(0.05)
    output, notes = command.communicate(timeout=60)
    assert command.returncode == 0, notes
    assert "Tracing one request in 1 on all brokers" in notes
    assert output.count("Produce v") == 2 and f"{topic}-0" in output and "client watched" in output
    assert "Produce purgatory" in output and f"{topic}-0, completed by Fetch of broker" in output
    assert "\x1b" not in output, "colours are for terminals"
    assert SECRET.decode() not in output
    for broker in cluster.broker_ids:
        assert (setting(cluster, broker, "sample"), setting(cluster, broker, "apis")) == before[broker]
    kept = klamm(cluster, "--exit-at-end", "--json", "--client-id", "watch*", "--topic", topic)
    output, notes = kept.communicate(timeout=120)
    rows = [json.loads(line) for line in output.splitlines()]
    assert len(rows) >= 2 and {row["api"] for row in rows} == {"Produce"}, notes
    none = klamm(cluster, "--exit-at-end", "--slower-than", "3600000")
    assert none.communicate(timeout=120)[0] == ""


def test_a_command_that_is_ended_restores_the_settings(cluster: LocalCluster) -> None:
    reset(cluster)
    alter(cluster, [2], slower_than_ms=7)
    command = klamm(cluster, "--on", "1", "--api", "Heartbeat")
    assert command.stderr is not None
    assert "Tracing" in command.stderr.readline()
    second = klamm(cluster, "--on", "5")
    assert "another klamm trace --on (sample=1, apis=Heartbeat, " in second.communicate(timeout=60)[1]
    assert second.returncode == 1
    command.terminate()
    _, errors = command.communicate(timeout=60)
    assert command.returncode == 0, errors
    for broker in cluster.broker_ids:
        assert setting(cluster, broker, "slower.than.ms") == ("7.0" if broker == 2 else None)
        assert setting(cluster, broker, "client.ids") is None
