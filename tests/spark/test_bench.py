"""The bench of Spark at a tiny scale, without the connector: it runs and gives figures that can be true."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bench.clusters import KlammCluster
from bench.spark import reading
from bench.spark.__main__ import PARTS, text
from bench.spark.figures import Figure, Goal
from bench.spark.sparks import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_reads_each_way(spark: SparkSession, tmp_path: Path) -> None:
    with KlammCluster(1) as cluster:
        bench = Bench(spark, cluster, tmp_path, rounds=1, scale=3000, has_connector=False)
        found = list(islice(reading.figures(bench), 5))
    assert [figure.name for figure in found[1::2]] == ["Read 100 B, fetch", "Read 100 B, direct"]
    assert all(figure.value > 0 and figure.ratio is None for figure in found)


def test_the_section_lists_goals_and_missing_rows() -> None:
    figures = [
        Figure("fast", "M rows/s", [3.0, 4.0, 2.9], [1.0, 1.0], Goal(least=2.0, ratio=3.5)),
        Figure("slow", "ms", [130.0], goal=Goal(most=120)),
    ]
    written = text(figures, ["memory: broken"], 0.1)
    assert "3.00  | 37% / 0% | M rows/s | >= 2 met, >= 3.5x **missed** |" in written
    assert "<= 120 **missed**" in written and "Not measured: memory: broken." in written
    assert set(PARTS) == {"read", "write", "stream", "memory"}
