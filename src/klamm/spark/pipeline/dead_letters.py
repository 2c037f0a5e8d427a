"""The dead letters of a view: a Delta table of the records on which it fails, each with the reason.

The table is also the list of records that the query skips when it repeats the batch: at any time, a record is either in
the table or in the query. Rows carry the id of the query, so a reset pipeline retries every record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from klamm.model import TopicPartition
from klamm.spark.pipeline.pipeline_model import PipelineSpec, Source, View, dead_letters_of
from klamm.spark.pipeline.poison import PoisonRecord
from klamm.spark.tables.table_paths import local_path as table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("_error", pa.string()),
        ("_sink", pa.string()),
        ("_query_id", pa.string()),
    ]
)

Location = tuple[TopicPartition, int]


class DeadLetters:
    """The dead-letter table of one view."""

    def __init__(self, spec: PipelineSpec, view: View) -> None:
        self.path: Path = table_path(dead_letters_of(spec, view))

    def locations(self, query_id: str) -> set[Location]:
        """Return the records that this query skips."""
        from deltalake import DeltaTable

        if not query_id or not DeltaTable.is_deltatable(str(self.path)):
            return set()
        rows = DeltaTable(str(self.path)).to_pyarrow_table(
            columns=["_topic", "_partition", "_offset"], filters=[("_query_id", "=", query_id)]
        )
        return {(TopicPartition(row["_topic"], row["_partition"]), row["_offset"]) for row in rows.to_pylist()}

    def add(self, rows: pa.Table) -> None:
        """Append rows of SCHEMA; they are on disk when this returns."""
        from klamm.spark.tables.commits import BatchOfFiles, commit
        from klamm.spark.tables.parquet_files import ParquetFiles

        files = ParquetFiles(self.path, None)
        self.path.mkdir(parents=True, exist_ok=True)
        for batch in rows.combine_chunks().to_batches():
            files.write(batch)
        commit(self.path, BatchOfFiles(SCHEMA, files.close(), is_partitioned=False))


def letters(
    spark: SparkSession, brokers: Mapping[str, str], records: Sequence[PoisonRecord], *, sink: str, query_id: str
) -> pa.Table:
    """Return the rows of failing records: key, value and timestamp are read again from the topics.

    `brokers` are the read options with their addresses and settings of security.
    """
    reasons = {(record.at.tp, record.at.start): record.reason for record in records}
    rows: list[dict[str, Any]] = []
    for tp in sorted({tp for tp, _ in reasons}):
        offsets = [offset for other, offset in reasons if other == tp]
        for row in _read(spark, brokers, tp, offsets).to_pylist():
            found = {f"_{name}": row[name] for name in ("topic", "partition", "offset", "timestamp")}
            found |= {"key": row["key"], "value": row["value"], "_error": reasons[(tp, row["offset"])]}
            rows.append({**found, "_sink": sink, "_query_id": query_id})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _read(spark: SparkSession, brokers: Mapping[str, str], tp: TopicPartition, offsets: list[int]) -> pa.Table:
    from pyspark.sql import functions as F

    options = {
        **brokers,
        "assign": json.dumps({tp.topic: [tp.partition]}),
        "startingOffsets": json.dumps({tp.topic: {str(tp.partition): min(offsets)}}),
        "endingOffsets": json.dumps({tp.topic: {str(tp.partition): max(offsets) + 1}}),
        "failOnDataLoss": "false",
    }
    frame = spark.read.format("klamm").options(**options).load().where(F.col("offset").isin(offsets))
    return frame.select("topic", "partition", "offset", "timestamp", "key", "value").toArrow()


def is_none_of(source: Source, locations: Iterable[Location]) -> Any:
    """Return the condition that excludes these records from a source."""
    from pyspark.sql import functions as F

    topic, partition, offset = (F.col(name) for name in source.location_columns)
    offsets: defaultdict[TopicPartition, list[int]] = defaultdict(list)
    for tp, number in sorted(locations):
        offsets[tp].append(number)
    conditions = [
        ~((topic == tp.topic) & (partition == tp.partition) & offset.isin(numbers)) for tp, numbers in offsets.items()
    ]
    return reduce(lambda one, other: one & other, conditions, F.lit(True))
