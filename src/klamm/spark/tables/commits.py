"""Commits files to a Delta table, on the driver: one commit per batch, with the query's id, the batch's number and
offsets.

Delta keeps the highest batch number of every application id. A batch of that number and with the same offsets was
committed before, by a run that died before Spark knew: its files are removed again, and the table stays as it is. A
batch of that number with other offsets comes from a checkpoint that is older than the table. It is refused: treating it
as committed would lose its records. If the offsets are unknown, only a batch that the checkpoint had planned before the
query started can be a repeated one. `planned_batch` refuses an older checkpoint before Spark plans a batch in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, create_table_with_add_actions

from klamm.errors import KlammError
from klamm.spark.source.batch_offsets import BatchOffsets, from_metadata
from klamm.spark.source.checkpoint_files import NO_BATCH, CheckpointFiles, newest_batch
from klamm.spark.source.checkpoint_locations import CheckpointError, local_path
from klamm.spark.tables.existing import QUERY, refuse_other_queries
from klamm.spark.tables.parquet_files import DATE_COLUMN, DataFile, remove, sync_log, sync_names

_CONFLICTS: Final = 4
"""Number of retries of a commit."""
_BATCH: Final = "klamm.batch.id"


@dataclass(frozen=True, slots=True)
class BatchOfFiles:
    """The files that the tasks of one batch wrote for one table. Without `app_id` a repeated commit is not recognised.

    Without `append_to_existing` the first commit of a query is refused where other queries have written the table.
    `is_part`: another table gets the rest of the batch later, so this commit does not prove the other one.
    `planned_batch` is the newest batch of the checkpoint at the query's start. With `trust_number` a batch whose
    offsets are unknown is identified by its number.
    """

    schema: pa.Schema
    files: Sequence[DataFile]
    is_partitioned: bool
    app_id: str | None = None
    batch_id: int = 0
    overwrite: bool = False
    offsets: BatchOffsets | None = None
    append_to_existing: bool = True
    is_part: bool = False
    planned_batch: int | None = None
    trust_number: bool = False


def commit(path: Path, batch: BatchOfFiles) -> bool:
    """Commit the files and create the table if necessary. Returns False if the batch was committed before.

    A commit that conflicts with another one, such as an added column, is retried if its batch identifies it.
    """
    for _ in range(_CONFLICTS if batch.app_id is not None else 0):
        try:
            return _commit(path, batch)
        except CommitFailedError:
            if is_committed(DeltaTable(str(path)), batch):
                # Another run with this checkpoint was faster, or this commit succeeded despite the error: its files
                # must stay.
                return False
    return _commit(path, batch)


def _commit(path: Path, batch: BatchOfFiles) -> bool:
    if not DeltaTable.is_deltatable(str(path)):
        create(path, batch)
        return True
    table = DeltaTable(str(path))
    before = table.version()
    try:
        if not _is_new(table, path, batch):
            remove(path, list(batch.files))
            return False
        evolve(table, batch.schema, batch.is_partitioned)
    except KlammError:
        remove(path, list(batch.files))  # refused, so they are not committed
        raise
    if batch.files or batch.overwrite:
        table.create_write_transaction(
            _actions(batch),
            "overwrite" if batch.overwrite else "append",
            table.schema(),
            partition_by=_partition_by(batch.is_partitioned),
            commit_properties=_properties(batch),
        )
    table.update_incremental()
    sync_log(path, before + 1, table.version())
    return True


def create(path: Path, batch: BatchOfFiles) -> None:
    path.mkdir(parents=True, exist_ok=True)
    create_table_with_add_actions(
        str(path),
        delta_schema(batch.schema, batch.is_partitioned),
        _actions(batch),
        mode="error",
        partition_by=_partition_by(batch.is_partitioned),
        commit_properties=_properties(batch),
    )
    sync_log(path, 0, 0)
    sync_names(path, path.parent)


def check(path: Path, batch: BatchOfFiles) -> None:
    """Raise CheckpointError for a batch that `commit` would refuse."""
    if batch.app_id is not None and DeltaTable.is_deltatable(str(path)):
        _is_new(DeltaTable(str(path)), path, batch)


def _is_new(table: DeltaTable, path: Path, batch: BatchOfFiles) -> bool:
    """Whether the batch has not been committed yet."""
    if is_committed(table, batch):
        return False
    may_append = batch.append_to_existing or batch.overwrite or not batch.files
    if batch.app_id is not None and not may_append and table.transaction_version(batch.app_id) is None:
        refuse_other_queries(table, path, batch.app_id)
    return True


def is_committed(table: DeltaTable, batch: BatchOfFiles) -> bool:
    """Whether the table has this batch. Raises CheckpointError if it has later ones, or other records with this number.

    Offsets are unknown if the checkpoint is remote, the commit is of an older version, or Delta removed it from its
    log. Spark repeats only a batch that its checkpoint had planned before the query started. `planned_batch` has
    refused a table with later ones, so another run has committed any other batch since.
    """
    version = table.transaction_version(batch.app_id) if batch.app_id is not None else None
    if version is None or version < batch.batch_id:
        return False
    known = _committed_offsets(table, batch.app_id, version)
    way_out = _way_out(known if not batch.is_part else None)
    name = local_path(table.table_uri)
    if version > batch.batch_id:
        raise CheckpointError(
            f"The table {name} has batch {version} of this query already, and the checkpoint continues with batch "
            f"{batch.batch_id}: it is older than the table. {way_out}"
        )
    if known is not None and batch.offsets is not None:
        if known.is_same(batch.offsets):
            return True
        raise CheckpointError(
            f"The table {name} has batch {version} of this query with other records: offsets {known} in the table, "
            f"{batch.offsets} in the checkpoint, which is older than the table. {way_out}"
        )
    if batch.planned_batch is not None and batch.batch_id > batch.planned_batch:
        raise CheckpointError(
            f"Another run of this query has committed batch {version} to the table {name} since this run started: both "
            "use the same checkpoint. Stop one of them."
        )
    if batch.planned_batch is None and not batch.trust_number:
        raise CheckpointError(
            f"The table {name} has batch {version} of this query, and its offsets cannot be compared with those of the "
            "checkpoint: this may be the same batch, or another one from an older checkpoint. If the checkpoint is a "
            "restored copy, restore a newer one, or start with a new checkpoint and a new table. Otherwise start the "
            "query with to_table(), or set the option trustBatchNumbers=true for this start."
        )
    return True


def planned_batch(files: CheckpointFiles, path: Path, bad_path: Path) -> int:
    """Return the newest batch of a checkpoint whose query is about to start; NO_BATCH if there is none.

    Raises CheckpointError if a table has a later batch of the query. Spark must not start then: it would plan a new
    batch of that number, and the next start could take that one for the batch of the table.
    """
    query_id = files.query_id()
    # Before the checkpoint: another run plans a batch before it commits the batch.
    found = {each: _newest_commit(each, query_id) for each in (path, bad_path)}
    newest = newest_batch(files)
    for each, version in found.items():
        if version > newest:
            known = _committed_offsets(DeltaTable(str(each)), query_id, version) if each == path else None
            last = f"ends with batch {newest}" if newest != NO_BATCH else "has no batch"
            raise CheckpointError(
                f"The table {each} has batch {version} of this query, and the checkpoint {last}: it is older than the "
                f"table. {_way_out(known)}"
            )
    return newest


def _newest_commit(path: Path, query_id: str) -> int:
    version = None
    if query_id and DeltaTable.is_deltatable(str(path)):
        version = DeltaTable(str(path)).transaction_version(query_id)
    return NO_BATCH if version is None else version


def _committed_offsets(table: DeltaTable, app_id: str | None, version: int) -> BatchOffsets | None:
    wanted = (app_id, str(version))
    commits = (entry for entry in table.history() if (entry.get(QUERY), entry.get(_BATCH)) == wanted)
    return next((from_metadata(entry) for entry in commits), None)


def _way_out(known: BatchOffsets | None) -> str:
    """Return the remedy for a checkpoint older than its table, without losing or repeating records if possible."""
    advice = "Restore the newer checkpoint, or start with a new checkpoint and a new table"
    if known is None or (offsets := known.starting_offsets()) is None:
        return f"{advice}."
    return (
        f"{advice}. A query without state can continue in this table: with a new checkpoint, startingOffsets "
        f"'{offsets}' and append_to_existing."
    )


def evolve(table: DeltaTable, schema: pa.Schema, is_partitioned: bool) -> list[str]:
    """Add the columns that the table lacks and return their names. Any other difference is an error."""
    wanted = delta_schema(schema, is_partitioned)
    found = [*table.metadata().partition_columns]
    if found != _partition_by(is_partitioned):
        raise KlammError(f"The table is partitioned by {', '.join(found) or 'nothing'}: that cannot be changed.")
    types = {field.name: _type(field) for field in table.schema().fields}
    for field in wanted.fields:
        if field.name in types and types[field.name] != _type(field):
            raise KlammError(
                f"Column {field.name!r} is {_shown(types[field.name])} in the table and {_shown(_type(field))} in the "
                "rows: a table accepts only added columns."
            )
    added = [field for field in wanted.fields if field.name not in types]
    by_lower = {name.lower(): name for name in types}
    for field in added:
        if (other := by_lower.get(field.name.lower())) is not None:
            raise KlammError(f"Column {field.name!r} of the rows and {other!r} of the table differ in case only.")
    if added:
        table.alter.add_columns([Field(field.name, field.type, nullable=True) for field in added])
        table.update_incremental()
    return [field.name for field in added]


def delta_schema(schema: pa.Schema, is_partitioned: bool) -> Schema:
    seen: dict[str, str] = {}
    for name in schema.names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise KlammError(f"Columns {other!r} and {name!r} differ in case only: a table does not distinguish them.")
    if is_partitioned:
        schema = schema.append(pa.field(DATE_COLUMN, pa.date32()))
    try:
        return Schema.from_arrow(schema)
    except Exception as error:
        raise KlammError(f"The columns cannot be those of a Delta table: {error}.") from None


def _partition_by(is_partitioned: bool) -> list[str]:
    return [DATE_COLUMN] if is_partitioned else []


def _type(field: Any) -> Any:
    return json.loads(field.to_json())["type"]


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def _actions(batch: BatchOfFiles) -> list[Any]:
    now_ms = int(time.time() * 1000)
    return [
        AddAction(
            path=file.path,
            size=file.size,
            partition_values={DATE_COLUMN: file.date} if batch.is_partitioned else {},
            modification_time=now_ms,
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )
        for file in batch.files
    ]


def _properties(batch: BatchOfFiles) -> CommitProperties | None:
    if batch.app_id is None:
        return None
    offsets = batch.offsets.to_metadata() if batch.offsets is not None else {}
    return CommitProperties(
        app_transactions=[Transaction(batch.app_id, batch.batch_id)],
        custom_metadata={QUERY: batch.app_id, _BATCH: str(batch.batch_id), **offsets},
    )
