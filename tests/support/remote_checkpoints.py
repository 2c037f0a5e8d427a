"""Checkpoints that only Spark reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mounted(spark: SparkSession, directory: Path) -> str:
    """Create the directory, and return its location for Spark: klamm's Python cannot read it, as with `hdfs://`."""
    directory.mkdir()
    name = "-".join(directory.parts[-2:]).replace("_", "-")
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    settings.set(f"fs.viewfs.mounttable.{name}.link./ck", directory.as_uri())
    return f"viewfs://{name}/ck"
