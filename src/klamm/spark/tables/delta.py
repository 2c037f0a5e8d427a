"""`format("klamm_delta")`: a streaming or batch sink that writes a Delta table, and its bad records to a second one.

A row whose column `_error` is set goes to the table of bad records, with the reason, the bytes and the origin of the
record; all others go to the table, without `_error` and `_raw`. Both tables are committed for a batch, each exactly
once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from klamm.errors import KlammError
from klamm.spark.source.worker import prepare
from klamm.spark.tables.parquet_files import DATE_COLUMN, DataFile, ParquetFiles, remove
from klamm.spark.tables.table_paths import check_apart, default_bad_path, local_path

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from klamm.spark.tables.commits import BatchOfFiles

NAME: Final = "klamm_delta"
ERROR: Final = "_error"
RAW: Final = "_raw"
PLANNED_BATCH: Final = "klamm.planned.batch"
"""Set by `to_table`, which reads the checkpoint through Spark: the newest batch there when the query starts."""
BAD_COLUMNS: Final = ("_topic", "_partition", "_offset", "_timestamp", "key", ERROR, RAW)
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """`date_column` is the timestamp or date whose day partitions the table. `checkpoint` is that of the query.

    `planned_batch` is the newest batch that the checkpoint had when the query started; None if it was not read.
    """

    path: Path
    bad_path: Path
    date_column: str | None
    compact_every: int
    append_to_existing: bool = False
    checkpoint: str | None = None
    planned_batch: int | None = None
    trust_batch_numbers: bool = False


def parse_options(options: Mapping[str, str]) -> TableOptions:
    """Parse the options. Raises KlammError and names a missing or wrong option."""
    given = {name.lower(): value for name, value in options.items()}
    if not given.get("path", "").strip():
        raise KlammError("Option 'path' must be specified: the directory of the table.")
    path = local_path(given["path"])
    bad = given.get("badrecords")
    bad_path = local_path(bad) if bad else default_bad_path(path)
    check_apart(path, bad_path, "The table of bad records")
    check_apart(bad_path, path, "The table")
    return TableOptions(
        path=path,
        bad_path=bad_path,
        date_column=given.get("partitionbydate") or None,
        compact_every=_count(given.get("compactevery", "0")),
        append_to_existing=_flag("appendToExisting", given.get("appendtoexisting", "false")),
        checkpoint=given.get("checkpointlocation"),
        planned_batch=int(given[PLANNED_BATCH]) if PLANNED_BATCH in given else None,
        trust_batch_numbers=_flag("trustBatchNumbers", given.get("trustbatchnumbers", "false")),
    )


def _count(text: str) -> int:
    if not text.strip().isdecimal():
        raise KlammError(f"Option 'compactEvery' must be a number of batches, or 0 for never, not {text!r}.")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise KlammError(f"Option {name!r} is true or false, not {text!r}.")
    return text.strip().lower() == "true"


@dataclass
class Written(WriterCommitMessage):
    """The files of one task, and the query they belong to."""

    query_id: str | None
    files: list[DataFile] = field(default_factory=list)
    bad_files: list[DataFile] = field(default_factory=list)


class DeltaTableSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DeltaWriter:
        return DeltaWriter(TableLayout(parse_options(self.options), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaStreamWriter:
        return DeltaStreamWriter(TableLayout(parse_options(self.options), schema, overwrite))


class TableLayout:
    """Which columns go where; shared by the driver and the tasks."""

    def __init__(self, options: TableOptions, schema: StructType, overwrite: bool) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.options = options
        self.overwrite = overwrite
        self.arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self.splits = ERROR in self.arrow.names
        self.rows = self._without((ERROR, RAW) if self.splits else ())
        self.bad = pa.schema([self.arrow.field(name) for name in BAD_COLUMNS if name in self.arrow.names])
        self._check()

    def _without(self, names: tuple[str, ...]) -> pa.Schema:
        return pa.schema([column for column in self.arrow if column.name not in names])

    def _check(self) -> None:
        column = self.options.date_column
        if column is None:
            return
        if DATE_COLUMN in self.arrow.names:
            raise KlammError(f"The rows have a column {DATE_COLUMN}: the partition column uses that name.")
        if column not in self.rows.names:
            raise KlammError(f"Option 'partitionByDate': there is no column {column!r}.")
        kind = self.rows.field(column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise KlammError(f"Option 'partitionByDate': column {column!r} is {kind}, not a timestamp or a date.")

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Return the rows of the table and the bad records."""
        batch = batch.cast(self.arrow)
        if not self.splits:
            return batch, None
        errors = batch.column(ERROR)
        if errors.null_count == len(errors):
            return batch.select(self.rows.names), None
        good = batch.filter(pc.is_null(errors)).select(self.rows.names)
        return good, batch.filter(pc.is_valid(errors)).select(self.bad.names)

    def write(self, batches: Iterator[pa.RecordBatch], query_id: str | None) -> Written:
        """Writes the rows of a task."""
        good = ParquetFiles(self.options.path, self.options.date_column)
        bad = ParquetFiles(self.options.bad_path, None)
        try:
            for batch in batches:
                rows, wrong = self.split(batch)
                if rows.num_rows:
                    good.write(rows)
                if wrong is not None:
                    bad.write(wrong)
            return Written(query_id, good.close(), bad.close())
        except BaseException:
            good.discard()
            bad.discard()
            raise

    def commit(self, messages: list[Any], batch_id: int = 0) -> None:
        """Commits the files of all tasks on the driver: bad records first, so that the table's commit implies both."""
        from klamm.spark.tables.commits import check, commit

        good, bad = self.batches(messages, batch_id)
        if bad.files:
            try:
                check(self.options.path, good)  # both or none
            except KlammError:
                remove(self.options.path, list(good.files))
                remove(self.options.bad_path, list(bad.files))
                raise
            commit(self.options.bad_path, bad)
        commit(self.options.path, good)

    def batches(self, messages: list[Any], batch_id: int) -> tuple[BatchOfFiles, BatchOfFiles]:
        """Return the files of all tasks, for the table and for the table of bad records."""
        from klamm.spark.source.batch_offsets import batch_offsets
        from klamm.spark.tables.commits import BatchOfFiles

        query_id = next((message.query_id for message in messages), None)
        good = BatchOfFiles(
            schema=self.rows,
            files=[file for message in messages for file in message.files],
            is_partitioned=self.options.date_column is not None,
            app_id=query_id,
            batch_id=batch_id,
            overwrite=self.overwrite,
            offsets=batch_offsets(self.options.checkpoint, batch_id) if query_id is not None else None,
            append_to_existing=self.options.append_to_existing,
            planned_batch=self.options.planned_batch,
            trust_number=self.options.trust_batch_numbers,
        )
        # Several queries may share a table of bad records, unless it is the one that belongs to the table.
        is_shared = self.options.bad_path != default_bad_path(self.options.path)
        bad = replace(
            good,
            schema=self.bad,
            files=[file for message in messages for file in message.bad_files],
            is_partitioned=False,
            overwrite=False,
            append_to_existing=good.append_to_existing or is_shared or self.overwrite,
            is_part=True,
        )
        return good, bad

    def abort(self, messages: list[Any]) -> None:
        """Remove the files of a job with a failed task; a failed task has no message.

        If all messages are present, the commit itself failed or was interrupted. It may have succeeded partly, so the
        files stay: the tables contain them, or vacuum removes them.
        """
        if None not in messages:
            return
        for message in messages:
            if message is not None:
                remove(self.options.path, message.files)
                remove(self.options.bad_path, message.bad_files)


class DeltaWriter(DataSourceArrowWriter):
    """`df.write.format("klamm_delta")`: one commit; a repeated job commits again."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._layout.write(iterator, None)

    def commit(self, messages: list[Any]) -> None:
        self._layout.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._layout.abort(messages)


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    """One commit per batch, identified by the query's id and the batch's number."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        prepare()
        return self._layout.write(iterator, query_id())

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._layout.commit(messages, batchId)
        prepare()
        self._compact(batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._layout.abort(messages)

    def _compact(self, batch_id: int) -> None:
        """Merge small files periodically. The batch is already committed, so a failure here must not fail it."""
        every = self._layout.options.compact_every
        if not every or (batch_id + 1) % every:
            return
        from klamm.spark.tables.maintenance import compact

        try:
            compact(self._layout.options.path)
        except Exception as error:
            print(f"klamm: {self._layout.options.path} was not compacted: {error}", file=sys.stderr)


def query_id() -> str:
    """Return the id of the streaming query of this task; it stays the same across restarts from a checkpoint."""
    from pyspark import TaskContext

    context = TaskContext.get()
    found = context.getLocalProperty(_QUERY_ID) if context is not None else None
    if found is None:
        raise KlammError("Spark did not name the streaming query of this task: exactly once is impossible.")
    return found
