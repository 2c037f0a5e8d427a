"""Topics into Spark: `python -m bench.spark_read [--quick]`. One broker, 6 partitions, 2 cores of Spark, best of 3.

Rows/s and MB/s of keys and values, by Fetch and straight from the log, for records of 100 bytes and of 1 KiB; what one
micro-batch costs; and the decoder alone, without Spark. The broker runs on the same cores as Spark.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import report
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.spark.client import ClusterClient
from klamm.spark.client_connection import BrokerSocket
from klamm.spark.options import parse_read_options
from klamm.spark.source import KlammDataSource
from klamm.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, ROUNDS, BATCH_BYTES, IN_FLIGHT = 6, 3, 128 * 1024, 8
MIB = 1 << 20
KEY = b"key-%08d"
GOAL = {("direct", 100): "3.0", ("fetch", 100): "2.0"}


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: float
    unit: str
    goal: str = ""

    def cells(self) -> tuple[str, ...]:
        return self.what, report.number(self.value), self.unit, self.goal


def fill(cluster: LocalCluster, topic: str, value_bytes: int, rows: int) -> int:
    """Writes at least that many rows, evenly over the partitions; returns how many."""
    cluster.create_topic(topic, partitions=PARTITIONS)
    each = BATCH_BYTES // value_bytes
    now_ms = int(time.time() * 1000)
    batch = build_batch([Record(timestamp=now_ms + i, key=KEY % i, value=b"x" * value_bytes) for i in range(each)])
    turns = -(-rows // (each * PARTITIONS))
    with ClusterClient(cluster.bootstrap_servers) as client:
        for index in range(PARTITIONS):
            _, host, port = client.leader_address(TopicPartition(topic, index))
            broker = BrokerSocket(host, port, client_id="bench", timeout_ms=60_000)
            _produce(broker, topic, index, batch, turns)
            broker.close()
    return turns * each * PARTITIONS


def _produce(broker: BrokerSocket, topic: str, index: int, batch: bytes, turns: int) -> None:
    part = PartitionProduceData(index=index, records=batch)
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[part])]
    )
    for turn in range(turns + IN_FLIGHT):
        if turn < turns:
            broker.send(request, 9)
        if turn >= IN_FLIGHT or turn >= turns:
            _check(broker)
    while broker.in_flight:
        _check(broker)


def _check(broker: BrokerSocket) -> None:
    if broker.in_flight:
        answer = broker.receive()
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def reading(spark: SparkSession, cluster: LocalCluster, topic: str, mode: str) -> DataFrame:
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    return reader.option("subscribe", topic).option("readMode", mode).load()


def seconds_of_noop(df: DataFrame) -> float:
    begun = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def decoder_row(cluster: LocalCluster, topic: str, rows: int, mode: str, value_bytes: int) -> Row:
    """One process, no Spark: what Fetch or the files and the kernels give."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "readMode": mode}
    parse_read_options(options, streaming=False)
    source = KlammDataSource(options)
    reader = source.reader(source.schema())
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        count = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))  # type: ignore[union-attr]
        best = min(best, time.perf_counter() - begun)
        assert count == rows, f"{count} rows of {rows} were read"
    return Row(f"{mode}, {value_bytes} B, without Spark, 1 core", rows / best / 1e6, "M rows/s")


def read_rows(spark: SparkSession, cluster: LocalCluster, value_bytes: int, rows: int) -> Iterator[Row]:
    topic = f"bench-{value_bytes}"
    rows = fill(cluster, topic, value_bytes, rows)
    size = rows * (value_bytes + len(KEY % 0)) / MIB
    for mode in ("fetch", "direct"):
        yield decoder_row(cluster, topic, rows, mode, value_bytes)
        df = reading(spark, cluster, topic, mode)
        assert df.count() == rows
        best = min(seconds_of_noop(df) for _ in range(ROUNDS))
        goal = GOAL.get((mode, value_bytes), "")
        yield Row(f"{mode}, {value_bytes} B, into Spark (noop)", rows / best / 1e6, "M rows/s", goal)
        yield Row(f"{mode}, {value_bytes} B, into Spark (noop)", size / best, "MB/s")
    counted = min(
        _seconds(lambda: reading(spark, cluster, topic, "fetch").groupBy("key").count().count()) for _ in "12"
    )
    yield Row(f"fetch, {value_bytes} B, groupBy(key).count()", rows / counted / 1e6, "M rows/s")


def _seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def micro_batch_row(spark: SparkSession, cluster: LocalCluster, batches: int) -> Row:
    """The median of small batches of one partition, one after the other, into the noop sink."""
    topic = "bench-small"
    cluster.create_topic(topic, partitions=1)
    batch = build_batch([Record(timestamp=int(time.time() * 1000), value=b"x" * 100) for _ in range(100)])
    with ClusterClient(cluster.bootstrap_servers) as client:
        _, host, port = client.leader_address(TopicPartition(topic, 0))
    broker = BrokerSocket(host, port, client_id="bench", timeout_ms=60_000)
    _produce(broker, topic, 0, batch, batches)
    stream = spark.readStream.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    stream = (
        stream.option("subscribe", topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100")
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            stream.load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        times = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    broker.close()
    return Row("Micro-batch of 100 rows, 1 partition, noop", statistics.median(times[len(times) // 3 :]), "ms", "120")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    quick: bool = parser.parse_args().quick
    scale = 10 if quick else 1
    load_at_start = report.load_average()
    from klamm.spark.session import session

    spark = session("local[2,3]", conf={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch, LocalCluster(brokers=1, data_dir=Path(scratch)) as cluster:
        rows += read_rows(spark, cluster, 100, 12_000_000 // scale)
        rows += read_rows(spark, cluster, 1024, 2_000_000 // scale)
        rows.append(micro_batch_row(spark, cluster, 60))
    spark.stop()
    found = report.table(("", "klamm", "unit", "goal"), [row.cells() for row in rows])
    print(found)
    if not quick:
        note = f"Machine: {report.machine()}. {report.load_note(load_at_start)}"
        report.write_section("spark-read", f"## Spark: reading (`python -m bench.spark_read`)\n\n{note}\n\n{found}")


if __name__ == "__main__":
    main()
