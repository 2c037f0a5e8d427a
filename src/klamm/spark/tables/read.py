"""Reads a table as a DataFrame: the files of one version, with Spark's own Parquet reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.errors import KlammError
from klamm.spark.tables.table_paths import local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


def open_table(path: str | Path, version: int | None = None) -> DeltaTable:
    """Open a table. Raises KlammError if the table or this version does not exist."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise KlammError("Tables need deltalake: pip install 'klamm[spark]'.") from None
    place = local_path(str(path))
    if not DeltaTable.is_deltatable(str(place)):
        raise KlammError(f"There is no table at {place}.")
    try:
        return DeltaTable(str(place), version=version)
    except DeltaError as error:
        raise KlammError(f"The table at {place} cannot be read: {error}.") from None


def file_names(found: DeltaTable) -> list[str]:
    return [str(name) for name in found.get_add_actions(flatten=True).column("path").to_pylist()]


def row_count(path: str | Path) -> int | None:
    """Return the number of rows from the table's log: 0 without a table, None if the log has no count."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(local_path(str(path)))):
        return 0
    rows = open_table(path).get_add_actions(flatten=True).column("num_records").to_pylist()
    return None if None in rows else sum(rows)


def table(spark: SparkSession, path: str | Path, version: int | None = None) -> DataFrame:
    """Return the rows of the table now or at `version`. Columns that older files lack are null."""
    from pyspark.sql.types import StructType

    found = open_table(path, version)
    schema = StructType.fromJson(json.loads(found.schema().to_json()))
    place = local_path(str(path))
    files = [str(place / name) for name in file_names(found)]
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(place))
    return reader.parquet(*files).select(*(f"`{name}`" for name in schema.names))
