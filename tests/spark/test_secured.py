"""Spark on a secured cluster: source, sink of both guarantees, SQL, commands; secrets stay out of plans and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import klamm.spark as ks
from klamm.cli.app import app
from klamm.spark.sql.topic_tables import TopicTables
from klamm.testing import LocalCluster
from tests.support.calm import CALM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    with LocalCluster(2, tls=True, sasl="SCRAM-SHA-512", acls=True, broker_configs=CALM) as made:
        for name in ("plain", "given", "exact", "piped"):
            made.create_topic(name, 2, 2)
        yield made


def options(cluster: LocalCluster, user: str | None = None) -> dict[str, str]:
    return {f"kafka.{name}": str(value) for name, value in cluster.client_config(user, "java").items()}


def passwords(cluster: LocalCluster) -> list[str]:
    return list(json.loads((cluster.data_dir / "security" / "users.json").read_text())["users"].values())


def write_rows(spark: SparkSession, secured: LocalCluster, topic: str) -> None:
    rows = spark.createDataFrame([(str(n), json.dumps({"n": n})) for n in range(50)], "key string, value string")
    rows.write.format("klamm").mode("append").options(**options(secured), topic=topic).save()


def test_batches_there_and_back(spark: SparkSession, secured: LocalCluster) -> None:
    write_rows(spark, secured, "plain")
    read = spark.read.format("klamm").options(**options(secured), subscribe="plain").load()
    assert read.count() == 50
    plan = read._jdf.queryExecution().toString()
    assert not [word for word in passwords(secured) if word in plan]
    tables = TopicTables(
        spark, secured.bootstrap_servers, lambda: ["plain"], {**options(secured), "includeHeaders": "false"}
    )
    assert tables.query("select sum(n) as total from plain").collect()[0].total == sum(range(50))


@pytest.mark.long
def test_a_stream_exactly_once(spark: SparkSession, secured: LocalCluster, tmp_path: Path) -> None:
    write_rows(spark, secured, "given")
    stream = spark.readStream.format("klamm").options(
        **options(secured), subscribe="given", startingOffsets="earliest", commitGroup="spark"
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


PIPELINE = """
name: secured
checkpoint: ${CHECKPOINTS}/secured
sources:
  numbers: {topic: plain, schema: n long}
sinks:
  piped: {from: numbers, topic: piped}
"""


def test_commands_use_the_command_config(
    spark: SparkSession, secured: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pipeline run`, `sql` and `table sync`, in the session of the tests: a JVM per command would take long."""

    @contextmanager
    def shared(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    for command in ("pipeline", "sql", "table"):
        monkeypatch.setattr(f"klamm.cli.{command}.spark_session", shared)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))  # the JVM has another working directory
    file = secured.write_client_properties(path=tmp_path / "client.properties")
    outputs: list[str] = []

    def klamm(*arguments: str) -> str:
        security = ["--command-config", str(file), "-b", secured.bootstrap_servers]
        done = CliRunner().invoke(app, [*arguments, *security])
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        outputs.append(done.output)
        return done.output

    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    klamm("pipeline", "run", "pipeline.yaml", "--once")
    assert "50,1225" in klamm("sql", "select count(*) as c, sum(n) as s from piped", "-f", "csv")
    klamm("table", "create", "numbers", "--topic", "piped", "--schema", "n long")
    assert f"50 records into {tmp_path / 'numbers'}" in klamm("table", "sync", "numbers")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != file]
    shown = [*written, *(output.encode() for output in outputs)]
    assert any(tmp_path.glob("secured/**/offsets/*")), "the checkpoint is among the files"
    assert not [word for word in passwords(secured) for text in shown if word.encode() in text]


def test_a_wrong_password_is_reported_without_it(spark: SparkSession, secured: LocalCluster) -> None:
    given = options(secured)
    given["kafka.sasl.jaas.config"] = given["kafka.sasl.jaas.config"].replace(
        "password=", 'password="s3cret-but-wrong" x='
    )
    with pytest.raises(Exception, match=r"(?i)authentic") as refused:
        spark.read.format("klamm").options(**given, subscribe="plain").load().count()
    assert "s3cret" not in str(refused.value)
