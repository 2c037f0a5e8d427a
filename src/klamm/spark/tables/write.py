"""`to_table`: writes a streaming DataFrame to a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import KlammError
from klamm.spark.dataframes import start
from klamm.spark.query.triggers import Trigger
from klamm.spark.source.checkpoint_files import SparkCheckpoint
from klamm.spark.tables import delta
from klamm.spark.tables.existing import may_append, refuse_new_query
from klamm.spark.tables.table_paths import check_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMATS: Final = ("delta", "parquet")
COMPACT_EVERY: Final = 50


def to_table(
    df: DataFrame,
    path: str | Path,
    *,
    checkpoint: str | Path,
    format: str = "delta",
    partition_by_date: str | bool | None = None,
    compact_every: int = COMPACT_EVERY,
    bad_records: str | Path | None = None,
    append_to_existing: bool = False,
    trigger: Trigger = None,
    mode: str = "append",
    name: str | None = None,
    **options: object,
) -> StreamingQuery:
    """Start a query that writes a streaming DataFrame to the table at `path`, exactly once; creates it if necessary.

    Rows with a text in `_error` go to the table `bad_records` (default: `<path>_bad`). `partition_by_date` names the
    timestamp whose day, in UTC, becomes the partition `_date`; True is the record's own, `_timestamp`. Every
    `compact_every` batches small files are merged; 0 is never. `format="parquet"` is Spark's own file sink: exactly
    once only for readers that use Spark, and wrong rows are not separated.

    With a new checkpoint, a Delta table that another query has written is refused, because records could be duplicated;
    `append_to_existing` appends anyway. A checkpoint that is older than the table is refused, because records could be
    lost.
    """
    if not df.isStreaming:
        raise KlammError(f'to_table() requires a streaming DataFrame; a batch is df.write.format("{delta.NAME}").')
    if format not in FORMATS:
        raise KlammError(f"{format!r} is not a format of tables: expected {' or '.join(FORMATS)}.")
    if mode not in ("append", "complete"):
        raise KlammError(f"Output mode {mode!r}: use append, or complete, which replaces the table in every batch.")
    date_column = "_timestamp" if partition_by_date is True else partition_by_date or None
    if format == "parquet":
        if bad_records is not None or mode != "append":
            raise KlammError("format='parquet' has no table of bad records, and appends only.")
        return start(_parquet(df, path, date_column).options(**_texts(options)), checkpoint, trigger, name)
    if "://" not in f"{path}{checkpoint}":
        check_apart(Path(path).absolute(), Path(checkpoint).absolute(), "The checkpoint")
    append_to_existing = append_to_existing or may_append(checkpoint) or mode == "complete"
    if not append_to_existing and "://" not in str(path):
        refuse_new_query(Path(path).absolute(), checkpoint)
    register_tables(df.sparkSession)
    given: dict[str, object] = {
        "path": Path(path).absolute() if "://" not in str(path) else path,
        "compactEvery": compact_every,
        "badRecords": bad_records,
        "partitionByDate": date_column,
        "appendToExisting": str(append_to_existing).lower(),
        **options,
    }
    texts = _texts(given)
    texts[delta.PLANNED_BATCH] = str(_planned_batch(df.sparkSession, checkpoint, texts))
    return start(df.writeStream.format(delta.NAME).outputMode(mode).options(**texts), checkpoint, trigger, name)


def _planned_batch(spark: SparkSession, checkpoint: str | Path, options: dict[str, str]) -> int:
    from klamm.spark.tables.commits import planned_batch

    tables = delta.parse_options(options)
    return planned_batch(SparkCheckpoint(spark, str(checkpoint)), tables.path, tables.bad_path)


def register_tables(spark: Any) -> None:
    """Register `format("klamm_delta")` with the session.

    Spark looks for such formats in the active session of the JVM's thread. A new Python thread has none, and neither
    has one whose call was interrupted by Ctrl-C.
    """
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(delta.NAME):
        spark.dataSource.register(delta.DeltaTableSource)


def _parquet(df: DataFrame, path: str | Path, date_column: str | None) -> Any:
    from pyspark.sql import functions as F

    if date_column is None:
        return df.writeStream.format("parquet").option("path", str(path))
    dated = df.withColumn("_date", F.to_date(F.col(date_column)))
    return dated.writeStream.format("parquet").option("path", str(path)).partitionBy("_date")


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}
