"""Spark on a secured cluster: source, sink of both guarantees, SQL; secrets stay out of plans and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import klamm.spark as ks
from klamm.spark.sql.topic_tables import TopicTables
from klamm.testing import LocalCluster
from tests.support.calm import CALM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    with LocalCluster(2, tls=True, sasl="SCRAM-SHA-512", acls=True, broker_configs=CALM) as made:
        for name in ("plain", "exact"):
            made.create_topic(name, 2, 2)
        yield made


def options(cluster: LocalCluster, user: str | None = None) -> dict[str, str]:
    return {f"kafka.{name}": str(value) for name, value in cluster.client_config(user, "java").items()}


def passwords(cluster: LocalCluster) -> list[str]:
    return list(json.loads((cluster.data_dir / "security" / "users.json").read_text())["users"].values())


def test_batches_there_and_back(spark: SparkSession, secured: LocalCluster) -> None:
    rows = spark.createDataFrame([(str(n), json.dumps({"n": n})) for n in range(50)], "key string, value string")
    rows.write.format("klamm").mode("append").options(**options(secured), topic="plain").save()
    read = spark.read.format("klamm").options(**options(secured), subscribe="plain").load()
    assert read.count() == 50
    plan = read._jdf.queryExecution().toString()
    assert not [word for word in passwords(secured) if word in plan]
    tables = TopicTables(
        spark, secured.bootstrap_servers, lambda: ["plain"], {**options(secured), "includeHeaders": "false"}
    )
    assert tables.query("select sum(n) as total from plain").collect()[0].total == sum(range(50))


def test_a_stream_exactly_once(spark: SparkSession, secured: LocalCluster, tmp_path: Path) -> None:
    stream = spark.readStream.format("klamm").options(
        **options(secured), subscribe="plain", startingOffsets="earliest", commitGroup="spark"
    )
    given = {name: value for name, value in options(secured).items() if name != "kafka.bootstrap.servers"}
    query = ks.to_topic(
        stream.load().select("key", "value"),
        "exact",
        bootstrap_servers=secured.bootstrap_servers,
        checkpoint=str(tmp_path / "checkpoint"),
        guarantee="exactly_once",
        trigger="available_now",
        **given,
    )
    query.awaitTermination()
    read = spark.read.format("klamm").options(
        **options(secured), subscribe="exact", **{"kafka.isolation.level": "read_committed"}
    )
    assert read.load().count() == 50
    kept = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not [path for path in kept for word in passwords(secured) if word.encode() in path.read_bytes()]


def test_a_wrong_password_is_reported_without_it(spark: SparkSession, secured: LocalCluster) -> None:
    given = options(secured)
    given["kafka.sasl.jaas.config"] = given["kafka.sasl.jaas.config"].replace(
        "password=", 'password="s3cret-but-wrong" x='
    )
    with pytest.raises(Exception, match=r"(?i)authentic") as refused:
        spark.read.format("klamm").options(**given, subscribe="plain").load().count()
    assert "s3cret" not in str(refused.value)
