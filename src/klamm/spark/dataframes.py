"""Topics as DataFrames and DataFrames into topics, in one call each. The full interface is `format("klamm")`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.errors import KlammError
from klamm.spark.decode.value_schema import load
from klamm.spark.query.triggers import Trigger, with_trigger
from klamm.spark.sink.write_options import BATCH_OPTION, is_exactly_once
from klamm.spark.source.checkpoint_files import SparkCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


def topic(
    spark: SparkSession,
    name: str,
    *,
    bootstrap_servers: str,
    format: str = "raw",
    schema: StructType | str | None = None,
    schema_file: str | Path | None = None,
    message: str | None = None,
    streaming: bool = True,
    **options: object,
) -> DataFrame:
    """Return a topic, or several separated by commas, as a DataFrame.

    With `format` json, avro, protobuf or string the values are typed columns of `schema`; a schema in a file is read
    here, on the driver. `options` are those of `format("klamm")`: `startingOffsets="earliest"`.
    """
    given: dict[str, Any] = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": name, **options}
    given |= value_options(format, schema, schema_file, message)
    reader: Any = spark.readStream if streaming else spark.read
    frame: DataFrame = reader.format("klamm").options(**given).load()
    return frame


def value_options(
    format: str, schema: StructType | str | None, schema_file: str | Path | None = None, message: str | None = None
) -> dict[str, str]:
    """Return the options of `format("klamm")` for typed values, with the file's content in place of its name."""
    if format == "raw" and schema is None and schema_file is None:
        return {}
    text = schema if schema is None or isinstance(schema, str) else schema.json()
    loaded = load(format, schema=text, file=schema_file, message=message)
    given = {"valueFormat": format, "valueSchema": loaded.text, "valueMessage": loaded.message}
    return {name: value for name, value in given.items() if value}


def to_topic(
    df: DataFrame,
    topic: str | None = None,
    *,
    bootstrap_servers: str,
    checkpoint: str | Path,
    trigger: Trigger = None,
    mode: str = "append",
    name: str | None = None,
    **options: object,
) -> StreamingQuery:
    """Start a query that writes a streaming DataFrame to `topic`, or each row to the topic in its column `topic`.

    Columns are `value` and optionally `key`, `partition`, `headers`. At least once: a batch that fails half-way is
    written again. With `guarantee="exactly_once"` a batch is one unit, and readers with `isolation.level`
    read_committed see each row once. A checkpoint that is older than the topic is refused then, because rows could be
    lost. `options` are those of `format("klamm")`.
    """
    if not df.isStreaming:
        raise KlammError('to_topic() requires a streaming DataFrame; write a batch with df.write.format("klamm").')
    given: dict[str, Any] = {"kafka.bootstrap.servers": bootstrap_servers, **options}
    if topic is not None:
        given["topic"] = topic
    texts = _texts(given)
    if is_exactly_once(texts):
        from klamm.spark.sink.transactional_writer import refuse_older_checkpoint

        refuse_speculation(df.sparkSession)
        refuse_older_checkpoint(texts, SparkCheckpoint(df.sparkSession, str(checkpoint)))
    if mode != "update":
        return start(df.writeStream.format("klamm").outputMode(mode).options(**texts), checkpoint, trigger, name)

    def append(frame: DataFrame, batch_id: int) -> None:
        # For exactly_once: the batch of a stream has a name that its repetition has too.
        identity = {"checkpointLocation": str(checkpoint), BATCH_OPTION: str(batch_id)}
        frame.write.format("klamm").mode("append").options(**texts, **identity).save()

    # Spark refuses output mode update for every Python sink; changed rows are appended like any others.
    return start(df.writeStream.outputMode("update").foreachBatch(append), checkpoint, trigger, name)


def start(writer: Any, checkpoint: str | Path, trigger: Trigger, name: str | None) -> StreamingQuery:
    writer = with_trigger(writer.option("checkpointLocation", str(checkpoint)), trigger)
    if name is not None:
        writer = writer.queryName(name)
    query: StreamingQuery = writer.start()
    return query


def refuse_speculation(spark: SparkSession) -> None:
    """Refuse to start a second attempt of a task while the first one runs: its transaction would stay open."""
    if str(spark.conf.get("spark.speculation", "false")).strip().lower() == "true":
        raise KlammError(
            "guarantee=exactly_once needs spark.speculation=false: a speculative attempt of a task would leave an open "
            "transaction, and readers would wait for its timeout."
        )


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
