"""A topic as a Delta table: typed columns, bad records beside it, dates, added columns, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import klamm.spark as ks
from klamm.errors import KlammError
from klamm.spark.pipeline.diagnosis import failed_ranges
from klamm.spark.source.checkpoint_files import SparkCheckpoint
from klamm.spark.source.checkpoint_locations import CheckpointError
from klamm.spark.tables.existing import allow_append
from klamm.spark.tables.maintenance import compact, history, vacuum
from klamm.testing import LocalCluster
from tests.support.remote_checkpoints import mounted
from tests.support.table_files import table_files

TopicFactory = Callable[..., str]
NEW_YEAR_MS = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000


def produce(cluster: LocalCluster, topic: str, values: list[bytes], timestamp_ms: int = NEW_YEAR_MS) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=b"%d" % number, partition=number % 2, timestamp=timestamp_ms)
    producer.flush()


def orders(first: int, last: int, **more: object) -> list[bytes]:
    return [json.dumps({"id": number, "amount": number / 2, **more}).encode() for number in range(first, last)]


class Sync:
    """One topic into one table, as often as asked, from where it was."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, topic: str, root: Path) -> None:
        self.spark, self.cluster, self.topic = spark, cluster, topic
        self.path, self.checkpoint = root / "the lake" / "orders", root / "checkpoint"

    def frame(self, schema: str = "id long, amount double") -> DataFrame:
        servers = self.cluster.bootstrap_servers
        return ks.topic(
            self.spark,
            self.topic,
            bootstrap_servers=servers,
            format="json",
            schema=schema,
            startingOffsets="earliest",
        )

    def run(self, schema: str = "id long, amount double", **arguments: Any) -> None:
        query = ks.to_table(
            self.frame(schema), self.path, checkpoint=self.checkpoint, trigger="available_now", **arguments
        )
        query.awaitTermination()

    def run_format(self) -> None:
        """Use the sink without `to_table`, which looks at the checkpoint before Spark does."""
        ks.register_tables(self.spark)
        given = {"path": str(self.path), "checkpointLocation": str(self.checkpoint)}
        writer = self.frame().writeStream.format("klamm_delta").options(**given).trigger(availableNow=True)
        writer.start().awaitTermination()


@pytest.fixture
def sync(spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path) -> Sync:
    return Sync(spark, cluster, topic("orders", partitions=2, config={"retention.ms": -1}), tmp_path)


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().column("id").to_pylist())


def test_a_topic_becomes_a_table_that_all_readers_read_alike(sync: Sync, spark: SparkSession) -> None:
    produce(sync.cluster, sync.topic, orders(0, 50))
    sync.run()
    produce(sync.cluster, sync.topic, orders(50, 100), NEW_YEAR_MS + DAY_MS)
    sync.run()
    sync.run()
    by_spark = sorted(tuple(row) for row in ks.table(spark, sync.path).collect())
    found = DeltaTable(str(sync.path))
    rows = found.to_pyarrow_table()
    assert rows.column_names == ["id", "amount", "key", "_topic", "_partition", "_offset", "_timestamp"]
    assert len(by_spark) == 100
    by_deltalake = sorted(zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True))
    by_duckdb = duckdb.execute("select * from read_parquet(?)", [table_files(sync.path)]).fetchall()
    plain = [(row[0], row[1], row[3], row[4], row[5]) for row in by_deltalake]
    assert plain == sorted((row[0], row[1], row[3], row[4], row[5]) for row in by_duckdb)
    assert plain == [(row[0], row[1], row[3], row[4], row[5]) for row in by_spark]
    assert plain[7] == (7, 3.5, sync.topic, 1, 3)
    assert {row[6] for row in by_deltalake} == {datetime(2025, 1, day, tzinfo=UTC) for day in (1, 2)}
    assert len({(row[4], row[5]) for row in by_deltalake}) == 100


def test_bad_records_go_to_a_table_of_their_own_with_the_reason(sync: Sync, spark: SparkSession) -> None:
    produce(sync.cluster, sync.topic, [*orders(0, 3), b'{"id": "three"}', b"rubbish"])
    sync.run(bad_records=sync.path.parent / "wrong")
    assert ids(sync.path) == [0, 1, 2]
    assert "_error" not in ks.table(spark, sync.path).columns
    bad = ks.table(spark, sync.path.parent / "wrong").orderBy("_error").collect()
    assert [(row._error, bytes(row._raw), row._topic, row._partition, row._offset) for row in bad] == [
        ("field 'id': expected bigint, not \"three\"", b'{"id": "three"}', sync.topic, 1, 1),
        ("not JSON: Expecting value at position 0", b"rubbish", sync.topic, 0, 2),
    ]


def test_rows_that_break_the_schema_are_bad_records(sync: Sync, spark: SparkSession) -> None:
    """A missing or null `not null` field, a name that differs in case only, and a number beyond its type."""
    values = [
        b'{"id": 1, "amount": 1.5}',
        b'{"amount": 2}',
        b'{"id": null}',
        b'{"ID": 3}',
        b'{"id": 4, "amount": 1e39}',
    ]
    produce(sync.cluster, sync.topic, values)
    sync.run("id long NOT NULL, amount float", bad_records=sync.path.parent / "wrong")
    assert ids(sync.path) == [1]
    bad = ks.table(spark, sync.path.parent / "wrong").collect()
    assert {bytes(row._raw): row._error for row in bad} == {
        values[1]: "field 'id': it is missing, and must not be null",
        values[2]: "field 'id': it is null, and must not be null",
        values[3]: "field 'id': it is missing, and must not be null",
        values[4]: "field 'amount': expected float, not 1e39",
    }


@pytest.mark.long
def test_few_rows_of_many_partitions_become_few_files(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """500 partitions with five rows each had become 1,000 files."""
    sync = Sync(spark, cluster, topic("wide", partitions=500, config={"retention.ms": -1}), tmp_path)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, value in enumerate(orders(0, 2_500)):
        producer.produce(sync.topic, value, partition=number % 500)
    assert producer.flush(120) == 0
    sync.run()
    assert ids(sync.path) == list(range(2_500))
    assert len(table_files(sync.path)) <= 2 * spark.sparkContext.defaultParallelism


@pytest.mark.long
def test_dates_added_columns_compaction_and_vacuum(sync: Sync, spark: SparkSession) -> None:
    for day in range(4):
        produce(sync.cluster, sync.topic, orders(day * 10, day * 10 + 10), NEW_YEAR_MS + (day % 2) * DAY_MS)
        sync.run(partition_by_date=True)
    produce(sync.cluster, sync.topic, orders(40, 50, note="new"), NEW_YEAR_MS)
    sync.run("id long, amount double, note string", partition_by_date=True)
    rows = ks.table(spark, sync.path)
    assert rows.columns == ["id", "amount", "key", "_topic", "_partition", "_offset", "_timestamp", "_date", "note"]
    assert sorted(row.id for row in rows.where("note = 'new' and _date = date '2025-01-01'").collect()) == [
        *range(40, 50)
    ]
    assert rows.where("note is null").count() == 40
    assert {path.name for path in sync.path.glob("_date=*")} == {"_date=2025-01-01", "_date=2025-01-02"}
    before = len(table_files(sync.path))
    assert before == 5, "two partitions with few records are one file"
    compacted = compact(sync.path)
    assert (compacted.removed, compacted.added) == (before, 2)
    assert ids(sync.path) == [*range(50)]
    orphan = sync.path / "_date=2025-01-01" / "part-orphan.parquet"
    orphan.write_bytes(b"left by a killed task")
    assert vacuum(sync.path) == []
    with pytest.raises(KlammError, match="less than 168 h"):
        vacuum(sync.path, retention_hours=0)
    removed = vacuum(sync.path, retention_hours=0, force=True)
    assert len(removed) == compacted.removed + 1
    assert not orphan.exists()
    assert ids(sync.path) == [*range(50)]
    operations = [entry["operation"] for entry in history(sync.path)]
    assert operations[-1] == "CREATE TABLE"
    assert {"WRITE", "ADD COLUMN", "OPTIMIZE", "VACUUM END"} <= set(operations)
    # The batches of before are still known: nothing comes twice.
    produce(sync.cluster, sync.topic, orders(50, 51))
    sync.run("id long, amount double, note string", partition_by_date=True, compact_every=1)
    assert ids(sync.path) == [*range(51)]


@pytest.mark.long
def test_rows_that_a_table_cannot_store_are_refused(sync: Sync) -> None:
    produce(sync.cluster, sync.topic, orders(0, 4))
    sync.run()
    produce(sync.cluster, sync.topic, orders(4, 8))
    with pytest.raises(StreamingQueryException, match="'amount' is double in the table and string in the rows"):
        sync.run("id long, amount string")
    with pytest.raises(StreamingQueryException, match="partitioned by nothing"):
        sync.run(partition_by_date=True)
    with pytest.raises((StreamingQueryException, PySparkException), match="no column 'when'"):
        sync.run(partition_by_date="when")
    with pytest.raises(KlammError, match="'csv' is not a format of tables"):
        sync.run(format="csv")
    sync.run()
    assert ids(sync.path) == [*range(8)]
    assert {str(file) for file in sync.path.glob("*.parquet")} == {*table_files(sync.path)}


@pytest.mark.long
def test_a_checkpoint_that_does_not_fit_the_table_is_refused(sync: Sync, tmp_path: Path) -> None:
    """Put back from a copy that is one batch older, and deleted."""
    produce(sync.cluster, sync.topic, orders(0, 4))
    sync.run()
    shutil.copytree(sync.checkpoint, tmp_path / "copy")
    produce(sync.cluster, sync.topic, orders(4, 8))
    sync.run()
    newest = sync.checkpoint.rename(tmp_path / "newest")
    (tmp_path / "copy").rename(sync.checkpoint)
    produce(sync.cluster, sync.topic, orders(8, 12))
    for _ in range(2):
        with pytest.raises(CheckpointError, match=rf"The table {sync.path} has batch 1 .* ends with batch 0"):
            sync.run()
    reported = rf"CheckpointError: The table {sync.path} has batch 1 .* with other records"
    with pytest.raises(StreamingQueryException, match=reported):
        sync.run_format()
    assert ids(sync.path) == [*range(8)]
    shutil.rmtree(sync.checkpoint)
    with pytest.raises(KlammError, match=r"is missing or new.* append_to_existing"):
        sync.run()
    newest.rename(sync.checkpoint)
    sync.run()
    assert ids(sync.path) == [*range(12)]
    shutil.rmtree(sync.checkpoint)
    allow_append(sync.checkpoint)  # as `klamm pipeline reset` does
    sync.run()
    assert ids(sync.path) == sorted([*range(12)] * 2)


def test_aggregates_replace_the_table_in_mode_complete(sync: Sync, spark: SparkSession) -> None:
    produce(sync.cluster, sync.topic, orders(0, 10))
    counted = sync.frame().groupBy("_partition").count()
    for more in (10, 14):
        query = ks.to_table(counted, sync.path, checkpoint=sync.checkpoint, trigger="available_now", mode="complete")
        query.awaitTermination()
        assert sorted(tuple(row) for row in ks.table(spark, sync.path).collect()) == [(0, more / 2), (1, more / 2)]
        produce(sync.cluster, sync.topic, orders(0, 4))


def test_a_batch_and_parquet(sync: Sync, spark: SparkSession, tmp_path: Path) -> None:
    produce(sync.cluster, sync.topic, [*orders(0, 4), b"wrong"])
    query = ks.to_table(
        sync.frame(), tmp_path / "files", format="parquet", checkpoint=tmp_path / "c", trigger="available_now"
    )
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "files")).where("_error is null").count() == 4
    ks.register_tables(spark)
    spark.range(5).write.format("klamm_delta").mode("append").save(str(tmp_path / "batch"))
    spark.range(5, 7).write.format("klamm_delta").mode("append").save(str(tmp_path / "batch"))
    assert ids(tmp_path / "batch") == [*range(7)]
    spark.range(2).write.format("klamm_delta").mode("overwrite").save(str(tmp_path / "batch"))
    assert ids(tmp_path / "batch") == [0, 1]
    assert ks.table(spark, tmp_path / "batch", version=0).count() == 5
    with pytest.raises(KlammError, match="There is no table"):
        ks.table(spark, tmp_path / "nothing")


def test_an_older_remote_checkpoint_is_refused_and_a_repeated_batch_is_not(sync: Sync, tmp_path: Path) -> None:
    remote = mounted(sync.spark, local := tmp_path / "remote")

    def run() -> None:
        query = ks.to_table(sync.frame(), sync.path, checkpoint=remote, trigger="available_now")
        query.awaitTermination()

    produce(sync.cluster, sync.topic, orders(0, 2))
    run()
    shutil.copytree(local, older := tmp_path / "older")
    produce(sync.cluster, sync.topic, orders(2, 4))
    run()
    assert ids(sync.path) == [0, 1, 2, 3]
    found = failed_ranges(SparkCheckpoint(sync.spark, remote))
    assert found is not None and [(r.start, r.end) for r in found[0]] == [(1, 2), (1, 2)], "for a poison record"

    (local / "commits" / "1").unlink()
    run()
    assert ids(sync.path) == [0, 1, 2, 3], "Spark repeats the batch: it does not know of its commit"

    shutil.rmtree(local)
    shutil.copytree(older, local)
    produce(sync.cluster, sync.topic, orders(4, 6))
    for first in (6, 8, 10):
        with pytest.raises(CheckpointError, match="has batch 1 of this query, and the checkpoint ends with batch 0"):
            run()
        assert not (local / "offsets" / "1").exists(), "the next start would take this batch for the table's"
        produce(sync.cluster, sync.topic, orders(first, first + 2))
    assert ids(sync.path) == [0, 1, 2, 3]
