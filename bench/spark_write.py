"""Spark into topics and tables: `python -m bench.spark_write [--quick]`. One broker, 6 partitions, 2 cores, best of 3.

Rows/s of a topic of 100-byte values into Parquet and Delta, of JSON values into typed Delta columns, of rows into a
topic, and from topic to topic; and what one small micro-batch into a Python sink costs. The broker, Spark and its
Python workers share the same cores.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import klamm.spark as ks
from bench import report
from bench.spark_read import PARTITIONS, Row, fill, reading
from klamm.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROUNDS = 3
JSON_SCHEMA = "id long, amount double, name string, at timestamp"


class Bench:
    def __init__(self, spark: SparkSession, cluster: LocalCluster, scratch: Path, scale: int) -> None:
        self.spark, self.cluster, self.scratch, self.scale = spark, cluster, scratch, scale
        self.servers = cluster.bootstrap_servers

    def rows(self) -> Iterator[Row]:
        raw = fill(self.cluster, "raw", 100, 3_000_000 // self.scale)
        read = reading(self.spark, self.cluster, "raw", "fetch")
        yield self.row("topic of 100 B into Parquet", raw, lambda place: read.write.parquet(place))
        yield self.row("topic of 100 B into Delta", raw, lambda place: self.to_delta("raw", place))
        json_rows = 1_000_000 // self.scale
        self.cluster.create_topic("json", partitions=PARTITIONS)
        self.write_json("json", json_rows)
        self.cluster.create_topic("more", partitions=PARTITIONS)
        yield self.row("rows of Spark into a topic", json_rows, lambda _: self.write_json("more", json_rows))
        yield self.row(
            "topic of JSON into typed Delta", json_rows, lambda place: self.to_delta("json", place, JSON_SCHEMA)
        )
        self.cluster.create_topic("copy", partitions=PARTITIONS)
        yield self.row("topic of JSON into a topic", json_rows, self.copy)
        yield self.small_batches("Micro-batch of 100 rows into Delta", lambda place: self.small_delta(place))
        yield self.small_batches("Micro-batch of 100 rows into a topic", lambda place: self.small_topic(place))

    def row(self, what: str, rows: int, run: Callable[[str], None]) -> Row:
        times = []
        for number in range(ROUNDS):
            place = self.scratch / f"place-{number}"
            begun = time.perf_counter()
            run(str(place))
            times.append(time.perf_counter() - begun)
            shutil.rmtree(place, ignore_errors=True)
        return Row(what, rows / min(times) / 1e6, "M rows/s")

    def to_delta(self, topic: str, place: str, schema: str | None = None) -> None:
        frame = ks.topic(
            self.spark,
            topic,
            bootstrap_servers=self.servers,
            format="raw" if schema is None else "json",
            schema=schema,
            startingOffsets="earliest",
        )
        ks.to_table(
            frame, f"{place}/table", checkpoint=f"{place}/checkpoint", trigger="available_now"
        ).awaitTermination()

    def write_json(self, topic: str, rows: int) -> None:
        value = "to_json(struct(id, id / 2 as amount, concat('user ', id) as name, timestamp_seconds(id) as at))"
        made = self.spark.range(rows).selectExpr("string(id) as key", f"{value} as value")
        options = {"kafka.bootstrap.servers": self.servers, "topic": topic}
        made.write.format("klamm").mode("append").options(**options).save()

    def copy(self, place: str) -> None:
        frame = ks.topic(self.spark, "json", bootstrap_servers=self.servers, startingOffsets="earliest")
        query = ks.to_topic(
            frame.select("key", "value"),
            "copy",
            bootstrap_servers=self.servers,
            checkpoint=f"{place}/checkpoint",
            trigger="available_now",
        )
        query.awaitTermination()

    def small_batches(self, what: str, start: Callable[[str], StreamingQuery]) -> Row:
        place = self.scratch / "small"
        query = start(str(place))
        query.awaitTermination()
        reports = query.recentProgress
        times = [report["durationMs"]["triggerExecution"] for report in reports if report["numInputRows"]]
        shutil.rmtree(place, ignore_errors=True)
        return Row(what, statistics.median(times[len(times) // 3 :]), "ms", "120")

    def small_delta(self, place: str) -> StreamingQuery:
        frame = self.small_frame()
        return ks.to_table(frame, f"{place}/table", checkpoint=f"{place}/c", trigger="available_now", compact_every=0)

    def small_topic(self, place: str) -> StreamingQuery:
        frame = self.small_frame().select("key", "value")
        return ks.to_topic(
            frame, "copy", bootstrap_servers=self.servers, checkpoint=f"{place}/c", trigger="available_now"
        )

    def small_frame(self) -> DataFrame:
        """One partition of the JSON topic, a hundred rows a batch, sixty batches."""
        ends = {"assign": '{"json":[0]}', "maxOffsetsPerTrigger": "100", "startingOffsets": self.near_the_end()}
        reader = self.spark.readStream.format("klamm").option("kafka.bootstrap.servers", self.servers)
        return reader.options(**ends).load()

    def near_the_end(self) -> str:
        from klamm.model import TopicPartition
        from klamm.spark.client import ClusterClient

        with ClusterClient(self.servers) as client:
            tp = TopicPartition("json", 0)
            last = client.latest([tp])[tp]
        return f'{{"json":{{"0":{max(0, last - 6000)}}}}}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    quick: bool = parser.parse_args().quick
    load_at_start = report.load_average()
    spark = ks.session("local[2,3]", conf={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory() as scratch, LocalCluster(brokers=1, data_dir=Path(scratch, "data")) as cluster:
        rows = []
        for row in Bench(spark, cluster, Path(scratch), 10 if quick else 1).rows():
            rows.append(row)
            print(*row.cells(), flush=True)
    spark.stop()
    found = report.table(("", "klamm", "unit", "goal"), [row.cells() for row in rows])
    print(found)
    if not quick:
        note = f"Machine: {report.machine()}. {report.load_note(load_at_start)}"
        report.write_section("spark-write", f"## Spark: writing (`python -m bench.spark_write`)\n\n{note}\n\n{found}")


if __name__ == "__main__":
    main()
