"""`klamm table` and `klamm schema`: a table is created, filled and maintained; the schema is inferred and kept."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import klamm.spark as ks
from klamm.cli.app import app
from klamm.cli.output import Failure
from klamm.errors import KlammError
from klamm.spark.tables.sync import sync
from klamm.spark.tables.table_definition import checkpoint_of, load_definition
from klamm.testing import LocalCluster

TopicFactory = Callable[..., str]


def klamm(*arguments: object) -> Result:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def produce(cluster: LocalCluster, topic: str, first: int, last: int, **more: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(first, last):
        producer.produce(topic, json.dumps({"id": number, **more}).encode())
    producer.flush()


@pytest.fixture
def _shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the tests' session instead of one of their own."""

    @contextmanager
    def shared(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("klamm.cli.table.spark_session", shared)


@pytest.mark.usefixtures("_shared_session")
def test_a_table_is_made_from_a_sample_filled_and_widened(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, path, servers = topic("orders", partitions=2), tmp_path / "orders", cluster.bootstrap_servers
    produce(cluster, name, 0, 20, who={"name": "a"})
    done = klamm("schema", "infer", name, "--out", tmp_path / "orders.ddl", "-b", servers)
    assert "Inferred from 20 JSON objects" in done.stderr
    assert (tmp_path / "orders.ddl").read_text() == "id bigint, who struct<name: string>\n"
    done = klamm("table", "create", path, "--topic", name, "-b", servers)
    assert "id, who, key, _topic, _partition, _offset, _timestamp" in done.stdout
    assert ks.table(spark, path).count() == 0
    for count in (20, 0):
        assert f"{count} records into {path}" in klamm("table", "sync", path).stderr
        assert sorted(row.id for row in ks.table(spark, path).select("id").collect()) == [*range(20)]
    longer = "id long, who struct<name: string>, note string"
    done = klamm("table", "create", path, "--topic", name, "--schema", longer, "-b", servers)
    assert "added note" in done.stdout and load_definition(path).schema == longer
    produce(cluster, name, 20, 25, note="new")
    sync(spark, path, options={"maxOffsetsPerTrigger": 3}).awaitTermination()
    assert ks.table(spark, path).where("note = 'new'").count() == 5
    assert "files became" in klamm("table", "compact", path).stdout
    reported = klamm("table", "history", path, "-n", 3).stdout
    assert "OPTIMIZE" in reported and reported.count("\n") == 4
    assert "0 files were removed" in klamm("table", "vacuum", path).stderr
    assert (
        "files would be removed"
        in klamm("table", "vacuum", path, "--retention-hours", 0, "--force", "--dry-run").stderr
    )
    assert ks.table(spark, path).count() == 25
    shutil.rmtree(checkpoint_of(path))
    with pytest.raises(KlammError, match=r"checkpoint .* is missing"):
        sync(spark, path)


@pytest.mark.usefixtures("_shared_session")
def test_bad_records_are_counted_apart(cluster: LocalCluster, topic: TopicFactory, tmp_path: Path) -> None:
    name, path = topic("some-bad"), tmp_path / "shop"
    klamm("table", "create", path, "-t", name, "--schema", "id int", "-b", cluster.bootstrap_servers)
    for bad in (1, 3):
        produce(cluster, name, 0, 5)
        produce(cluster, name, 2**40, 2**40 + bad)
        reported = klamm("table", "sync", path).stderr
        assert f"5 records into {path}, {bad} bad ones into {path}_bad." in reported
    assert f"0 records into {path}.\n" in klamm("table", "sync", path).stderr


@pytest.mark.usefixtures("_shared_session")
def test_a_sync_continues_until_it_is_stopped(cluster: LocalCluster, topic: TopicFactory, tmp_path: Path) -> None:
    name, path, main = topic("on"), tmp_path / "on", threading.get_ident()
    klamm("table", "create", path, "-t", name, "--schema", "id long", "-b", cluster.bootstrap_servers)
    trouble: list[BaseException] = []

    def elsewhere() -> None:
        try:
            for first in (0, 5):
                produce(cluster, name, first, first + 5)
                wait_for_rows(cluster, path, first + 5)
        except BaseException as error:
            trouble.append(error)
        finally:
            signal.pthread_kill(main, signal.SIGTERM)

    thread = threading.Thread(target=elsewhere, daemon=True)
    thread.start()
    before = signal.getsignal(signal.SIGTERM)
    done = klamm("table", "sync", path, "--every", "200ms")
    thread.join()
    assert not trouble, trouble
    assert done.exit_code == 0 and signal.getsignal(signal.SIGTERM) == before
    assert "records into" in done.stderr and ids(path) == [*range(10)]
    assert f"0 records into {path}" in klamm("table", "sync", path).stderr, "it continues where it was stopped"


def test_the_sink_is_registered_once_a_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark warns of every time after the first."""
    ks.register_tables(spark)
    registered: list[object] = []
    monkeypatch.setattr(type(spark.dataSource), "register", lambda self, source: registered.append(source))
    ks.register_tables(spark)
    assert not registered


def wait_for_rows(cluster: LocalCluster, path: Path, count: int) -> None:
    cluster.wait_for(lambda: len(ids(path)) == count or None, timeout_s=300, what=f"{count} rows in the table")


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().column("id").to_pylist())


def test_raw_values(spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path) -> None:
    name, path = topic("raw"), tmp_path / "raw"
    produce(cluster, name, 0, 3)
    klamm(
        "table",
        "create",
        path,
        "-t",
        name,
        "-f",
        "raw",
        "-b",
        cluster.bootstrap_servers,
        "--partition-by-date",
        "_timestamp",
    )
    sync(spark, path).awaitTermination()
    found = ks.table(spark, path).orderBy("_offset").collect()
    assert [(bytes(row.value), row._offset, row._date == row._timestamp.date()) for row in found] == [
        (b'{"id": %d}' % number, number, True) for number in range(3)
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("table create {path} -t {topic} --schema 'id lon'", "'lon' is not a type"),
        ("table create {path} -t {topic} -f avro", "avro needs a schema"),
        ("table create {path} -t {topic} -f string --partition-by-date when", "no column 'when'"),
        ("table create {path} -t none-such", "There is no topic none-such"),
        ("table create {path} -t {topic}", "has no records to infer a schema from"),
        ("table sync {path}", "There is no table"),
        ("table compact {path}", "There is no table"),
        ("table vacuum {path} --retention-hours 1", "less than 168 h"),
        ("table history {path}", "There is no table"),
        ("schema infer none-such", "There is no topic none-such"),
    ],
)
def test_an_impossible_sync_fails_with_one_sentence(
    arguments: str, reason: str, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    import shlex

    words = shlex.split(arguments.format(path=tmp_path / "t", topic=topic()))
    servers = ["-b", cluster.bootstrap_servers] if words[1] in ("create", "infer") else []
    with pytest.raises((Failure, KlammError), match=reason):
        klamm(*words, *servers)


def test_a_table_that_exists_is_not_created_again(cluster: LocalCluster, topic: TopicFactory, tmp_path: Path) -> None:
    servers, name = cluster.bootstrap_servers, topic()
    for schema, reported in (("id long", "Created table"), ("id long", "nothing has changed")):
        done = klamm("table", "create", tmp_path / "t", "-t", name, "--schema", schema, "-b", servers)
        assert reported in done.stdout
    with pytest.raises(KlammError, match="'id' is long in the table and string in the rows"):
        klamm("table", "create", tmp_path / "t", "-t", name, "--schema", "id string", "-b", servers)
    with pytest.raises(KlammError, match="exists already, with topic"):
        klamm("table", "create", tmp_path / "t", "-t", "another", "--schema", "id long", "-b", servers)
