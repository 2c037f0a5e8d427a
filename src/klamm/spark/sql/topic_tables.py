"""Topics as tables of a SQL query: `TopicTables.query` reads only the topics that the query names.

The columns of a table are the fields of its JSON values, typed by a sample of the newest records, then `key`, `value`
(both as text), `_topic`, `_partition`, `_offset` and `_timestamp`. If a value itself has a field `key` or `value`, the
record's column is called `_key` or `_value`.

Records of open and aborted transactions are not read, unless the options name another isolation level.

``delta.`path` `` is a Delta table, read by the files of its newest version. Spark without Delta's jar does not support
it. Reading the directory as Parquet would include files of older versions, so that is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.client.cluster_client import READ_COMMITTED, READ_UNCOMMITTED
from klamm.errors import KlammError
from klamm.spark.source.option_names import with_committed_reads
from klamm.spark.sql.table_names import Relation, SqlTextError, relations, renamed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

SAMPLE: Final = 1000
_RECORD: Final = {"_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp"}


class TopicTables:
    """The tables of a session. `topics` lists the topics for every query; schemas are cached for the session."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap_servers: str,
        topics: Callable[[], Iterable[str]],
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._options = with_committed_reads({"kafka.bootstrap.servers": bootstrap_servers, **(options or {})})
        level = next(v for k, v in self._options.items() if k.lower() == "kafka.isolation.level")
        self._isolation = READ_COMMITTED if level.lower() == "read_committed" else READ_UNCOMMITTED
        self._topics = topics
        self._schemas: dict[str, StructType | None] = {}

    def query(self, sql: str) -> DataFrame:
        """Return the result, not yet computed. An unknown topic is refused before Spark sees the query."""
        try:
            found = relations(sql)
        except SqlTextError as error:
            raise KlammError(f"Line {error.line} of the query: {error}") from None
        refuse_files_of_tables(found)
        for topic in self._named(found):
            self._table(topic).createOrReplaceTempView(f"`{topic.replace('`', '``')}`")
        return self._spark.sql(renamed(sql, self._delta_views(found)))

    def _delta_views(self, found: list[Relation]) -> dict[tuple[str, ...], str]:
        """Create views of the Delta tables that the query names, in their current version."""
        from klamm.spark.tables.read import table

        views: dict[tuple[str, ...], str] = {}
        for relation in found:
            if relation.is_delta:
                path = relation.parts[1]
                views[relation.parts] = f"delta_{hashlib.sha256(path.encode()).hexdigest()[:16]}"
                table(self._spark, path).createOrReplaceTempView(views[relation.parts])
        return views

    def _named(self, found: list[Relation]) -> list[str]:
        wanted = [relation for relation in found if not (relation.is_file or relation.is_delta)]
        if not wanted:
            return []
        known = set(self._topics())
        names = [relation.name for relation in wanted if self._is_topic(relation, known)]
        refuse_same_names(names)
        return names

    def _is_topic(self, relation: Relation, known: set[str]) -> bool:
        if len(relation.parts) == 1 and relation.name in known:
            return True
        if len(relation.parts) == 1 and self._is_view(relation.name):
            return False
        raise KlammError(unknown_topic(relation, known))

    def _is_view(self, name: str) -> bool:
        """Whether the user has created a temporary view of this name."""
        return bool(self._spark.catalog.tableExists(f"`{name.replace('`', '``')}`"))

    def _table(self, topic: str) -> DataFrame:
        from pyspark.sql import functions as F

        raw = self._spark.read.format("klamm").options(subscribe=topic, **self._options).load()
        schema = self._schema(topic)
        fields = schema.names if schema is not None else []
        taken = {name.lower() for name in fields}
        columns: list[Column] = []
        if schema is not None:
            parsed = F.from_json(F.col("value").cast("string"), schema)
            columns += [parsed.getField(name).alias(name) for name in fields]
        columns += [
            F.col(name).cast("string").alias(name if name not in taken else f"_{name}") for name in ("key", "value")
        ]
        columns += [F.col(column).alias(name) for name, column in _RECORD.items() if name not in taken]
        return raw.select(*columns)

    def _schema(self, topic: str) -> StructType | None:
        """Return None for a topic whose sampled values contain no JSON object."""
        from pyspark.sql.types import StructType

        if topic not in self._schemas:
            from klamm.spark.decode.schema_inference import infer_json

            try:
                found = infer_json(self._sampled(topic)).schema
            except KlammError:
                return None
            self._schemas[topic] = StructType([found[name] for name in distinct_fields(found)])
        return self._schemas[topic]

    def _sampled(self, topic: str) -> Iterator[bytes | None]:
        starting = self._sample_offsets(topic)
        if starting is None:
            return iter(())
        # The newest offsets may all belong to aborted transactions.
        return iter(self._sample(topic, starting) or self._sample(topic, "earliest"))

    def _sample(self, topic: str, starting: str) -> list[bytes | None]:
        options = {**self._options, "subscribe": topic, "startingOffsets": starting}
        sample = self._spark.read.format("klamm").options(**options).load().select("value").limit(2 * SAMPLE)
        values: list[bytes | None] = sample.toArrow().column(0).to_pylist()
        return values

    def _sample_offsets(self, topic: str) -> str | None:
        """Return offsets before the newest records of every partition; None for an empty topic."""
        from klamm.model import TopicPartition
        from klamm.spark.source.client_options import driver_client

        given = {k.removeprefix("kafka."): v for k, v in self._options.items() if k.startswith("kafka.")}
        with driver_client(given["bootstrap.servers"], given) as client:
            tps = [TopicPartition(topic, index) for index in client.topics([topic]).get(topic, [])]
            first, last = client.earliest(tps), client.latest(tps, self._isolation)
        if not any(last[tp] > first[tp] for tp in tps):
            return None
        share = max(1, SAMPLE // len(tps))
        return json.dumps({topic: {str(tp.partition): max(first[tp], last[tp] - share) for tp in tps}})


def distinct_fields(schema: StructType) -> list[str]:
    """Return column names; of names that differ in case only, SQL accepts one: the first one stays."""
    names: dict[str, str] = {}
    for field in schema.fields:
        names.setdefault(field.name.lower(), field.name)
    return list(names.values())


def refuse_same_names(topics: Iterable[str]) -> None:
    """Topics may differ in case only; tables of one query may not, and Spark would read one of them twice."""
    seen: dict[str, str] = {}
    for topic in topics:
        if (other := seen.setdefault(topic.lower(), topic)) != topic:
            raise KlammError(f"The topics {other!r} and {topic!r} differ in case only: SQL does not distinguish them.")


def refuse_files_of_tables(found: Iterable[Relation]) -> None:
    """A directory of a Delta table also holds files that are no longer, or not yet, part of it."""
    for relation in found:
        is_parquet = relation.is_file and relation.parts[0].lower() == "parquet"
        if is_parquet and (table := _delta_table_of(relation.parts[1])) is not None:
            raise KlammError(
                f"{table} is a Delta table, and parquet.`{relation.parts[1]}` would also read files that it has "
                f"removed: use delta.`{table}`."
            )


def _delta_table_of(text: str) -> Path | None:
    """Return the Delta table that contains this directory or pattern; a single file may be read."""
    text = text.removeprefix("file://")
    path = Path(text)
    if "://" in text or path.is_file():
        return None
    return next((place for place in (path, *path.parents) if (place / "_delta_log").is_dir()), None)


def unknown_topic(relation: Relation, known: Iterable[str]) -> str:
    """Return the message for a name that is not a topic."""
    from klamm.spark.suggestion import suggestion

    names = [name for name in known if not name.startswith("__")]
    if len(relation.parts) > 1 and relation.name in set(known):
        return f"Quote a topic name with a dot in backticks: `{relation.name}`."
    longer = sorted(name for name in names if name.startswith((f"{relation.name}-", f"{relation.name}.")))
    if longer:
        return f"There is no topic {relation.name!r}. Quote a name like `{longer[0]}` in backticks."
    return f"There is no topic {relation.name!r}.{suggestion(relation.name, names)}"


def as_text(frame: DataFrame) -> DataFrame:
    """Convert every column to text, nested ones to JSON: for tables and CSV."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    columns = []
    for position, field in enumerate(frame.schema.fields):
        column = F.col(f"c{position}")
        nested = isinstance(field.dataType, StructType | ArrayType | MapType | VariantType)
        columns.append((F.to_json(column) if nested else column.cast("string")).alias(f"c{position}"))
    # Two columns of a result may share a name, so they are numbered.
    return frame.toDF(*(f"c{position}" for position in range(len(columns)))).select(*columns)


def as_json(frame: DataFrame) -> DataFrame:
    """Return one column with a JSON object per row; null fields are included."""
    from pyspark.sql import functions as F

    return frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
