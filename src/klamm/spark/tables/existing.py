"""Detects a table with rows of another query: a query without a checkpoint would write their records again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.spark.source.checkpoint_locations import CheckpointError, local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

QUERY: Final = "klamm.query.id"
"""The entry of a commit that names the streaming query."""
_MARK: Final = "klamm-append-to-existing"
_ASK: Final = (
    "Restore the checkpoint, or write to a new table. To append anyway, pass --append-to-existing, or set "
    "append_to_existing of the sink."
)


def refuse_new_query(path: Path, checkpoint: str | Path) -> None:
    """Refuse a query without a checkpoint if its table has rows of another query. Raises CheckpointError with the
    remedy."""
    from deltalake import DeltaTable

    if has_begun(checkpoint) or not DeltaTable.is_deltatable(str(path)):
        return
    if queries_of(DeltaTable(str(path))):
        raise CheckpointError(
            f"The table {path} has rows of a streaming query, and the checkpoint {checkpoint} is missing or new: "
            f"the query would write every record again. {_ASK}"
        )


def refuse_other_queries(table: DeltaTable, path: Path, query_id: str) -> None:
    """Refuse the first commit of a query into a table that other queries have written."""
    if others := queries_of(table) - {query_id}:
        raise CheckpointError(
            f"The table {path} has rows of another streaming query, {min(others)}, and none of this one, {query_id}: "
            f"with a new checkpoint every record would be written again. {_ASK}"
        )


def queries_of(table: DeltaTable) -> set[str]:
    """Return the streaming queries that have written the table, from its log and the checkpoint of that log."""
    found = {str(commit[QUERY]) for commit in table.history() if QUERY in commit}
    return found | _queries_in_checkpoint(local_path(table.table_uri))


def _queries_in_checkpoint(root: Path | None) -> set[str]:
    """Commits older than the log's retention are gone; their transactions are kept in the log's checkpoint."""
    import pyarrow.parquet as pq

    if root is None:
        return set()
    log = root / "_delta_log"
    try:
        version = int(json.loads((log / "_last_checkpoint").read_text())["version"])
        rows = pq.read_table(log / f"{version:020}.checkpoint.parquet", columns=["txn"]).column("txn").to_pylist()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {str(row["appId"]) for row in rows if row is not None and row.get("appId")}


def has_begun(checkpoint: str | Path) -> bool:
    """Whether a query has started from this checkpoint. True if the checkpoint is not on this machine."""
    root = local_path(str(checkpoint))
    return root is None or (root / "metadata").exists()


def allow_append(checkpoint: Path) -> None:
    """Record in a reset checkpoint that its query is allowed to write everything again."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / _MARK).touch()


def is_reset(checkpoint: Path) -> bool:
    """Whether a checkpoint was reset and no query has started from it since."""
    return [entry.name for entry in checkpoint.iterdir()] == [_MARK]


def may_append(checkpoint: str | Path) -> bool:
    """Whether `allow_append` was called for this checkpoint; deleting the checkpoint deletes the note."""
    root = local_path(str(checkpoint))
    return root is not None and (root / _MARK).exists()
