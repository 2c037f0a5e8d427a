"""The SparkSession that klamm makes has the settings it says it sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from klamm.spark.cluster.session import WHY, settings


def test_the_session_runs_and_has_the_settings(spark: SparkSession) -> None:
    assert spark.range(10).selectExpr("sum(id)").first() == (45,)
    for name, value in settings("local[2,3]").items():
        assert spark.conf.get(name) == value, name


def test_python_functions_run_over_sockets_in_our_directory(spark: SparkSession) -> None:
    doubled = spark.range(4).mapInArrow(lambda batches: batches, "id long").collect()
    assert [row.id for row in doubled] == [0, 1, 2, 3]
    assert os.stat(settings()["spark.python.unix.domain.socket.dir"]).st_mode & 0o777 == 0o700


def test_python_workers_load_pyspark_with_its_bytecode(spark: SparkSession) -> None:
    """Spark's zip file has none: every process compiled PySpark again."""

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    import pyspark

    assert [row.file for row in spark.range(1, numPartitions=1).mapInArrow(where, "file string").collect()] == [
        pyspark.__file__
    ]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_tasks_on_a_local_master_are_tried_again(master: str, expected: str) -> None:
    assert settings(master)["spark.master"] == expected


def test_a_cluster_gets_nothing_that_holds_for_one_machine_only() -> None:
    assert not {"spark.driver.host", "spark.python.unix.domain.socket.dir"} & settings("spark://host:7077").keys()
    assert settings("local-cluster[2,1,1024]")["spark.sql.shuffle.partitions"] == "2"


def test_every_setting_has_its_reason() -> None:
    assert settings("local[2]").keys() <= WHY.keys()
