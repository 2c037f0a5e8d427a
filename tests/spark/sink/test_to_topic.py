"""DataFrames into topics through Spark: batches, streams, errors on the driver, the lag of a group."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import klamm.spark as ks
from klamm.errors import KlammError
from klamm.testing import LocalCluster

TopicFactory = Callable[..., str]


def rows(spark: SparkSession, cluster: LocalCluster, topic: str) -> list[tuple[str | None, str | None]]:
    frame = ks.topic(spark, topic, bootstrap_servers=cluster.bootstrap_servers, streaming=False)
    return sorted(map(tuple, frame.selectExpr("string(key)", "string(value)").collect()))


def test_a_batch_is_appended(spark: SparkSession, cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    made = spark.range(1000).selectExpr("string(id) as key", "concat('v', id) as value", f"'{name}' as topic", "id")
    writer = made.write.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    writer.mode("append").save()
    assert rows(spark, cluster, name) == sorted((str(number), f"v{number}") for number in range(1000))
    with pytest.raises(PySparkException, match="Save mode overwrite is not allowed for topics"):
        writer.mode("overwrite").save()
    with pytest.raises(PySparkException, match="Required attribute 'value' not found"):
        missing = made.drop("value").write.format("klamm").mode("append")
        missing.option("kafka.bootstrap.servers", cluster.bootstrap_servers).save()
    with pytest.raises(PySparkException, match="null topic"):
        nulls = made.selectExpr("value", "nullif(topic, topic) as topic").write.format("klamm").mode("append")
        nulls.option("kafka.bootstrap.servers", cluster.bootstrap_servers).save()


def test_a_stream_goes_from_topic_to_topic_and_its_lag_is_a_groups(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic("in", partitions=2), topic("out", partitions=2)
    servers = cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    for number in range(200):
        producer.produce(source, json.dumps({"id": number}).encode(), key=b"k%d" % number)
    producer.flush()
    read = ks.topic(
        spark, source, bootstrap_servers=servers, format="json", schema="id long", startingOffsets="earliest"
    )
    query = ks.to_topic(
        read.selectExpr("key", "string(id * 2) as value"),
        target,
        bootstrap_servers=servers,
        checkpoint=tmp_path / "checkpoint",
        name="doubling",
    )
    group = cluster.unique_topic_name("group")
    listener = ks.commit_group_offsets(query, group, bootstrap_servers=servers)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        producer.produce(source, b'{"id": 200}', key=b"last")
        producer.flush()
        partitions = [TopicPartition(source, number) for number in range(2)]
        cluster.wait_for(
            lambda: sum(tp.offset for tp in consumer.committed(partitions, timeout=120)) == 201 or None,
            timeout_s=300,
            what=f"offsets of the query in {group}",
        )
    finally:
        consumer.close()
        query.stop()
        spark.streams.removeListener(listener)
    found = rows(spark, cluster, target)
    assert found == sorted([(f"k{number}", str(number * 2)) for number in range(200)] + [("last", "400")])


def test_aggregates_in_mode_update_and_wrong_options(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic("in"), topic("out")
    servers = cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    for number in range(30):
        producer.produce(source, b"x", key=b"%d" % (number % 3))
    producer.flush()
    counted = ks.topic(spark, source, bootstrap_servers=servers, startingOffsets="earliest").groupBy("key").count()
    query = ks.to_topic(
        counted.selectExpr("key", "string(count) as value"),
        target,
        bootstrap_servers=servers,
        checkpoint=tmp_path / "counts",
        trigger="available_now",
        mode="update",
    )
    query.awaitTermination()
    assert rows(spark, cluster, target) == [("0", "10"), ("1", "10"), ("2", "10")]
    with pytest.raises(KlammError, match="requires a streaming DataFrame"):
        ks.to_topic(spark.range(1), target, bootstrap_servers=servers, checkpoint=tmp_path / "no")
    with pytest.raises(AnalysisException, match="'guarantee' is at_least_once or exactly_once, not 'exactly'"):
        made = spark.range(1).selectExpr("string(id) as value").write.format("klamm").mode("append")
        made.options(**{"kafka.bootstrap.servers": servers, "topic": target, "guarantee": "exactly"}).save()
