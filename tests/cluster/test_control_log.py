"""Three brokers with a control log: a topic is created, its leader dies, and the log records both."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.model import CONTROL_LOG_TOPIC
from klamm.testing import LocalCluster
from tests.support.calm import CALM, kill_at_once

WAIT_S = 60.0
BROKERS = {1, 2, 3}
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, broker_configs={**CALM, "klamm.control.log.enable": True}) as running:
        yield running


class ControlLogReader:
    """Reads the control log from its beginning and keeps what it has read, once where it was written twice."""

    def __init__(self, cluster: LocalCluster) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "control-log", "log_level": 0}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(CONTROL_LOG_TOPIC, 0, 0)])
        self.rows: Rows = []
        self._seen: set[tuple[object, ...]] = set()

    def until(self, condition: Callable[[Rows], bool], what: str) -> Rows:
        deadline = time.monotonic() + WAIT_S
        while not condition(self.rows):
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_S} s among {len(self.rows)} records"
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self._keep(json.loads(message.value() or b""))
        return self.rows

    def _keep(self, row: dict[str, Any]) -> None:
        identity = row["broker_id"], row["loop"], row["sequence"], row["at_ms"]
        if identity not in self._seen:
            self._seen.add(identity)
            self.rows.append(row)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[ControlLogReader]:
    reading = ControlLogReader(cluster)
    yield reading
    reading.close()


def of_kind(rows: Rows, kind: str, **fields: object) -> Rows:
    return [r for r in rows if r["kind"] == kind and all(r[name] == value for name, value in fields.items())]


def about(rows: Rows, topic: str, leader_epoch: int | None = None) -> Rows:
    """Those whose list of partitions names the topic, with at least that leader epoch."""
    return [
        row
        for row in rows
        if any(
            listed["topic"] == topic and (leader_epoch is None or listed["leader_epoch"] >= leader_epoch)
            for listed in row["partitions"]
        )
    ]


def test_a_topics_creation_from_the_request_to_every_brokers_metadata(
    cluster: LocalCluster, reader: ControlLogReader
) -> None:
    topic = cluster.unique_topic_name("created")
    cluster.create_topic(topic, partitions=3, replication_factor=3)

    def is_complete(rows: Rows) -> bool:
        acked = [
            about(of_kind(rows, "request_acknowledged", api=api), topic) for api in ("LeaderAndIsr", "UpdateMetadata")
        ]
        applied = about(of_kind(rows, "metadata_applied"), topic)
        return (
            all({r["target"] for r in these} == BROKERS for these in acked)
            and {r["broker_id"] for r in applied} == BROKERS
        )

    rows = reader.until(is_complete, "the creation is recorded")
    (queued,) = of_kind(rows, "event_queued", event="CreateTopics", topics=[topic])
    controller, number = queued["broker_id"], queued["number"]
    assert queued["cause"] == "request" and controller in BROKERS
    (started,) = of_kind(rows, "event_started", broker_id=controller, number=number)
    (done,) = of_kind(rows, "event_done", broker_id=controller, number=number)
    assert done["outcome"] == "done"
    assert queued["monotonic_ms"] <= started["monotonic_ms"] <= done["monotonic_ms"]
    assert {r["controller_epoch"] for r in (queued, started, done)} == {queued["controller_epoch"]}
    elections = of_kind(rows, "election", topic=topic, strategy="initial")
    assert sorted(r["partition"] for r in elections) == [0, 1, 2]
    assert {r["leader"] for r in elections} == BROKERS and {r["number"] for r in elections} == {number}
    for kind in ("request_queued", "request_sent", "request_acknowledged"):
        created = about(of_kind(rows, kind, api="LeaderAndIsr", broker_id=controller), topic)
        assert {r["target"] for r in created} == BROKERS, kind
        assert {(r["event"], r["state_name"]) for r in created} == {("CreateTopics", "TopicChange")}, kind
        if kind == "request_queued":
            assert {r["event_number"] for r in created} == {number}
            continue
        # The offsets topic is created meanwhile: a request that waits is merged with a later one (decision 0023).
        assert all(number in r["event_numbers"] and r["event_number"] == r["event_numbers"][-1] for r in created), kind
    roles = reader.until(lambda rows: len(of_kind(rows, "role_changed", topic=topic)) >= 9, "the roles are recorded")
    assert len(of_kind(roles, "role_changed", topic=topic, role="leader")) == 3
    sent = about(of_kind(roles, "request_sent", api="LeaderAndIsr"), topic)
    assert {(r["target"], r["correlation_id"]) for r in sent} == {
        (r["broker_id"], r["correlation_id"]) for r in of_kind(roles, "role_changed", topic=topic)
    }
    acked = about(of_kind(roles, "request_acknowledged", api="UpdateMetadata"), topic)
    assert {(r["target"], r["correlation_id"]) for r in acked} == {
        (r["broker_id"], r["correlation_id"]) for r in about(of_kind(roles, "metadata_applied"), topic)
    }


def test_a_leaders_death_and_how_long_the_news_took(cluster: LocalCluster, reader: ControlLogReader) -> None:
    topic = cluster.unique_topic_name("orphaned")
    cluster.create_topic(topic, partitions=3, replication_factor=3)
    controller = cluster.controller_id
    partition = next(p for p in range(3) if cluster.leader(topic, p) != controller)
    victim = cluster.leader(topic, partition)
    alive = BROKERS - {victim}
    kill_at_once(cluster, victim)

    def elected(rows: Rows) -> Rows:
        return of_kind(rows, "election", topic=topic, partition=partition, strategy="offline")

    def is_complete(rows: Rows) -> bool:
        if not elected(rows):
            return False
        applied = about(of_kind(rows, "metadata_applied"), topic, elected(rows)[0]["leader_epoch"])
        return {r["broker_id"] for r in applied} >= alive

    rows = reader.until(is_complete, "the election is recorded")
    (election,) = elected(rows)
    assert election["broker_id"] == controller and election["event"] == "BrokerChange"
    assert election["leader"] in alive and set(election["isr"]) == alive and not election["unclean"]
    assert election["previous_leader"] == victim and victim in election["previous_isr"]
    (cause,) = of_kind(rows, "event_queued", broker_id=controller, number=election["number"])
    assert cause["cause"] == "watch"
    for broker in alive:
        applied = of_kind(rows, "metadata_applied", broker_id=broker)
        counts = [r["update_count"] for r in sorted(applied, key=lambda r: int(r["sequence"]))]
        assert counts == list(range(1, len(counts) + 1)), "every update of every broker is recorded, in order"
        reported = about(applied, topic, election["leader_epoch"])[0]
        assert reported["controller_epoch"] == election["controller_epoch"]
        key = {"controller_epoch": reported["controller_epoch"], "correlation_id": reported["correlation_id"]}
        sent = of_kind(rows, "request_sent", target=broker, **key)
        assert [election["number"] in r["event_numbers"] for r in sent] == [True], "request and effect join on a key"
        assert 0 <= reported["at_ms"] - election["at_ms"] < WAIT_S * 1000
    cluster.start(victim)


def test_a_controller_that_stops_has_written_its_last_decisions(
    cluster: LocalCluster, reader: ControlLogReader
) -> None:
    """A controlled shutdown of the controller moves its leaders, that of the control log too, and the broker ends."""
    topic = cluster.unique_topic_name("moved")
    cluster.create_topic(topic, partitions=3, replication_factor=3)  # every broker leads one of them
    stopped = cluster.controller_id
    cluster.stop(stopped)
    try:
        moved = {"topic": topic, "previous_leader": stopped, "broker_id": stopped}
        reader.until(lambda rows: bool(of_kind(rows, "election", **moved)), "The move of a leader")
    finally:
        cluster.start(stopped)


def test_the_log_records_itself_once_per_change(cluster: LocalCluster, reader: ControlLogReader) -> None:
    marker = cluster.unique_topic_name("marker")
    cluster.create_topic(marker)
    rows = reader.until(
        lambda rows: {r["broker_id"] for r in about(of_kind(rows, "metadata_applied"), marker)} == BROKERS, "a marker"
    )
    assert [CONTROL_LOG_TOPIC] not in [r["topics"] for r in of_kind(rows, "event_queued")]
    changes = [r for kind in ("election", "leader_change", "isr_change") for r in of_kind(rows, kind)]
    own = [r["partition_epoch"] for r in changes if r["topic"] == CONTROL_LOG_TOPIC]
    assert len(own) == len(set(own)) and 0 in own
