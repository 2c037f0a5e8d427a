"""Streaming queries through Spark on real brokers: restarts, a leader that dies, rows exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from klamm.testing import LocalCluster
from tests.support.calm import kill_at_once
from tests.support.topics import create_again

TopicFactory = Callable[..., str]
LIMIT_S = 300


class Collected:
    """The rows of each micro-batch; one that is run again takes its own place."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [(r.partition, r.offset) for r in df.select("partition", "offset").collect()]

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def start(
    spark: SparkSession, cluster: LocalCluster, topic: str, checkpoint: Path, sink: Collected, **options: object
) -> StreamingQuery:
    reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    available_now = bool(options.pop("available_now", False))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def producer(cluster: LocalCluster) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})


def send(to: Producer, topic: str, count: int, partitions: int) -> None:
    for i in range(count):
        to.produce(topic, b"v%d" % i, partition=i % partitions)
    assert to.flush(LIMIT_S) == 0


def wait_for(query: StreamingQuery, condition: Callable[[], Any], problem: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        failure = query.exception()
        assert failure is None, failure
        assert time.monotonic() < deadline, problem
        time.sleep(0.05)


def places(count: int, partitions: int) -> list[tuple[int, int]]:
    return sorted((p, o) for p in range(partitions) for o in range(count // partitions))


def test_restarts_continue_where_the_query_was(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, sink, to = topic(partitions=2), Collected(), producer(cluster)
    for turn in range(1, 3):
        send(to, name, 100, 2)
        query = start(spark, cluster, name, tmp_path / "ck", sink, available_now=True, maxOffsetsPerTrigger=60)
        assert query.awaitTermination(LIMIT_S)
        assert sink.rows == places(100 * turn, 2)
    assert len(sink.batches) >= 4 and max(map(len, sink.batches.values())) <= 60


def test_a_leader_that_dies_fails_no_query(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, sink, to = topic(partitions=3, replication_factor=3), Collected(), producer(cluster)
    send(to, name, 3000, 3)
    query = start(spark, cluster, name, tmp_path / "ck", sink, maxOffsetsPerTrigger=700)
    wait_for(query, lambda: sink.rows, "no batch ran")
    victim = cluster.leader(name, 0)
    kill_at_once(cluster, victim)
    try:
        send(to, name, 3000, 3)
        wait_for(query, lambda: len(sink.rows) >= 6000, "the rows after the failover did not come")
    finally:
        cluster.start(victim)
        query.stop()
    assert sink.rows == places(6000, 3)


def test_lost_records_end_the_query_with_their_range(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, sink, to = topic(), Collected(), producer(cluster)
    send(to, name, 10, 1)
    assert start(spark, cluster, name, tmp_path / "ck", sink, available_now=True).awaitTermination(LIMIT_S)
    send(to, name, 10, 1)
    _delete_records(cluster, name, 15)
    with pytest.raises(StreamingQueryException, match="the offsets 10 to 14 are gone"):
        start(spark, cluster, name, tmp_path / "ck", sink, available_now=True).awaitTermination(LIMIT_S)
    query = start(spark, cluster, name, tmp_path / "ck", sink, available_now=True, failOnDataLoss=False)
    assert query.awaitTermination(LIMIT_S)
    assert sink.rows == [(0, o) for o in (*range(10), *range(15, 20))]


def test_a_topic_created_again_between_two_runs_ends_the_query(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, sink, to = topic(), Collected(), producer(cluster)
    send(to, name, 10, 1)
    assert start(spark, cluster, name, tmp_path / "ck", sink, available_now=True).awaitTermination(LIMIT_S)
    cluster.delete_topic(name)
    create_again(cluster, name)
    send(producer(cluster), name, 25, 1)
    with pytest.raises(StreamingQueryException, match=f"{name}-0.*the topic was deleted and created again"):
        start(spark, cluster, name, tmp_path / "ck", sink, available_now=True).awaitTermination(LIMIT_S)
    sink = Collected()
    query = start(spark, cluster, name, tmp_path / "ck", sink, available_now=True, failOnDataLoss=False)
    assert query.awaitTermination(LIMIT_S)
    assert sink.rows == places(25, 1)


def _delete_records(cluster: LocalCluster, topic: str, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(LIMIT_S)
