"""Brings a defined table up to date with its topic, once or continuously."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.spark.dataframes import topic
from klamm.spark.query.triggers import Trigger
from klamm.spark.source.option_names import with_committed_reads
from klamm.spark.tables.table_definition import TableDefinition, checkpoint_of, load_definition
from klamm.spark.tables.write import COMPACT_EVERY, to_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_RENAMED = {"topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_timestamp"}


def sync(
    spark: SparkSession,
    path: Path,
    *,
    bootstrap_servers: str | None = None,
    trigger: Trigger = "available_now",
    compact_every: int = COMPACT_EVERY,
    append_to_existing: bool = False,
    options: Mapping[str, object] | None = None,
) -> StreamingQuery:
    """Start the query that continues where the last sync of this table ended. `options` are read options.

    Without its checkpoint a query would start over with another id: refused unless `append_to_existing`.
    """
    definition = load_definition(path)
    frame = _frame(spark, definition, bootstrap_servers or definition.bootstrap_servers, options or {})
    return to_table(
        frame,
        path,
        checkpoint=checkpoint_of(path),
        partition_by_date=definition.partition_by_date,
        bad_records=definition.bad_records,
        compact_every=compact_every,
        append_to_existing=append_to_existing,
        trigger=trigger,
        name=f"sync of {path.name}",
    )


def _frame(spark: SparkSession, definition: TableDefinition, servers: str, options: Mapping[str, object]) -> DataFrame:
    given = with_committed_reads({"startingOffsets": definition.starting_offsets, **options})
    read = topic(
        spark,
        definition.topic,
        bootstrap_servers=servers,
        format=definition.format,
        schema=definition.schema,
        message=definition.message,
        **given,  # type: ignore[arg-type]
    )
    if definition.format != "raw":
        return read
    from pyspark.sql import functions as F

    columns = [F.col(name).alias(_RENAMED.get(name, name)) for name in ("value", "key", *_RENAMED)]
    return read.select(*columns)
