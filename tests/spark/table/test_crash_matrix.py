"""Drivers, executors, Python workers and a broker are killed while a topic becomes a table: all rows are there once.

The short form kills a driver, the quick long form also workers and a broker; `KLAMM_CRASH_MATRIX=long` kills at every
point, and executors too.
`make compat NAME=long_forms` runs the long form.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyspark
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import klamm.spark as ks
from klamm.testing import LocalCluster
from tests.support.calm import kill_at_once
from tests.support.table_files import table_files

TopicFactory = Callable[..., str]
HERE = Path(__file__).parent
DEADLINE_S = 600
PER_BATCH = 500
KILLED = -9
Crash = tuple[str, int, str]


class Matrix:
    """A topic, its table, and runs of the program that fills it."""

    def __init__(self, cluster: LocalCluster, topic: str, root: Path) -> None:
        self.cluster, self.topic, self.root = cluster, topic, root
        self.table, self.checkpoint = root / "orders", root / "checkpoint"
        self.produced = 0
        self._processes: list[subprocess.Popen[str]] = []

    def produce(self, count: int) -> None:
        """Every hundredth record is none of the table."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all"})
        for number in range(self.produced, self.produced + count):
            value = b"wrong" if number % 100 == 99 else b'{"id": %d}' % number
            producer.produce(self.topic, value, partition=number % 2)
        assert producer.flush(60) == 0
        self.produced += count

    def start(self, *crashes: Crash, master: str = "local[2,3]") -> subprocess.Popen[str]:
        planned = [[where, batch, what, str(self.mark(where, batch, what))] for where, batch, what in crashes]
        arguments = [master, self.cluster.bootstrap_servers, self.topic, str(self.table), str(self.checkpoint)]
        with (self.root / "stderr").open("a") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "crashing.py"), *arguments],
                env={**os.environ, "PYTHONPATH": str(HERE), "KLAMM_TEST_CRASHES": json.dumps(planned)},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> int:
        """The exit code; the directories that Spark keeps for the run's executors go."""
        out, _ = process.communicate(timeout=DEADLINE_S)
        for line in out.splitlines():
            if line.startswith("application app-"):
                shutil.rmtree(Path(str(pyspark.__path__[0]), "work", line.split()[1]), ignore_errors=True)
        return process.returncode

    def mark(self, where: str, batch: int, what: str) -> Path:
        return self.root / f"{where}-{batch}-{what}"

    def is_committed_in_spark(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def is_committed_in_delta(self, batch: int) -> bool:
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        if not DeltaTable.is_deltatable(str(self.table)):
            return False
        return DeltaTable(str(self.table)).transaction_version(query) == batch

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def matrix(cluster: LocalCluster, topic: TopicFactory, tmp_path: Path) -> Iterator[Matrix]:
    made = Matrix(cluster, topic("orders", partitions=2, replication_factor=3), tmp_path)
    yield made
    made.close()


def check_exactly_once(matrix: Matrix, spark: SparkSession) -> None:
    """By Spark, deltalake and DuckDB: the same rows, each once."""
    expected = sorted(number for number in range(matrix.produced) if number % 100 != 99)
    bad = matrix.table.with_name("orders_bad")
    by_spark = sorted(row.id for row in ks.table(spark, matrix.table).select("id").collect())
    rows = DeltaTable(str(matrix.table)).to_pyarrow_table()
    sql = "select id, _partition, _offset from read_parquet(?)"
    by_duckdb = duckdb.execute(sql, [table_files(matrix.table)]).fetchall()
    assert by_spark == expected
    assert sorted(rows.column("id").to_pylist()) == expected
    assert sorted(row[0] for row in by_duckdb) == expected
    assert len({(partition, offset) for _, partition, offset in by_duckdb}) == len(expected)
    wrong = DeltaTable(str(bad)).to_pyarrow_table()
    places = {*zip(wrong.column("_partition").to_pylist(), wrong.column("_offset").to_pylist(), strict=True)}
    assert len(places) == wrong.num_rows == matrix.produced // 100


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_nothing_is_lost_or_duplicated_when_the_driver_is_killed(matrix: Matrix, spark: SparkSession) -> None:
    matrix.produce(2 * PER_BATCH)
    kill_driver_after_commit(matrix, 1)
    assert matrix.finish(matrix.start()) == 0, (matrix.root / "stderr").read_text()[-3000:]
    check_exactly_once(matrix, spark)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_nothing_is_lost_or_duplicated_whichever_process_is_killed(matrix: Matrix, spark: SparkSession) -> None:
    if os.environ.get("KLAMM_CRASH_MATRIX") != "long":
        matrix.produce(4 * PER_BATCH)
        kill_driver_after_commit(matrix, 1)
        kill_workers_and_broker(matrix, ("before_files", 2, "worker"), ("after_files", 3, "worker"))
        check_exactly_once(matrix, spark)
        return
    matrix.produce(10 * PER_BATCH)
    assert matrix.finish(matrix.start(("before_files", 1, "driver"))) == KILLED
    assert not matrix.is_committed_in_delta(1)
    assert matrix.finish(matrix.start(("before_commit", 3, "driver"))) == KILLED
    assert matrix.is_committed_in_delta(2) and not matrix.is_committed_in_delta(3)
    assert len([*matrix.table.glob("*.parquet")]) > len(table_files(matrix.table))
    kill_driver_after_commit(matrix, 5)
    kill_workers_and_broker(matrix, ("before_files", 6, "worker"), ("after_files", 7, "worker"))
    check_exactly_once(matrix, spark)
    kill_executors(matrix, ("before_files", 10, "executor"), ("after_files", 11, "executor"))
    check_exactly_once(matrix, spark)


def kill_driver_after_commit(matrix: Matrix, batch: int) -> None:
    """After the commit of the table and before that of Spark."""
    assert matrix.finish(matrix.start(("after_commit", batch, "driver"))) == KILLED
    assert matrix.is_committed_in_delta(batch) and not matrix.is_committed_in_spark(batch)


def kill_workers_and_broker(matrix: Matrix, *workers: Crash) -> None:
    """Kill Python workers, before and after their files, and meanwhile a broker that leads a partition."""
    process = matrix.start(*workers)
    cluster = matrix.cluster
    cluster.wait_for(
        lambda: matrix.mark(*workers[0]).exists() or process.poll() is not None or None,
        timeout_s=DEADLINE_S,
        what="a killed worker",
    )
    leader = cluster.leader(matrix.topic, 0)
    kill_at_once(cluster, leader)
    try:
        assert matrix.finish(process) == 0, (matrix.root / "stderr").read_text()[-3000:]
    finally:
        cluster.start(leader)
    assert all(matrix.mark(*crash).exists() for crash in workers)


def kill_executors(matrix: Matrix, *executors: Crash) -> None:
    """On a cluster of two."""
    matrix.produce(4 * PER_BATCH)
    process = matrix.start(*executors, master="local-cluster[2,1,1024]")
    assert matrix.finish(process) == 0, (matrix.root / "stderr").read_text()[-3000:]
    assert all(matrix.mark(*crash).exists() for crash in executors)
