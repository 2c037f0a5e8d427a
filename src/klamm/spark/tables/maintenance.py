"""Maintenance of a table: merging small files, removing unused files, listing its history."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from klamm.errors import KlammError
from klamm.spark.tables.parquet_files import sync, sync_log, sync_names
from klamm.spark.tables.read import file_names, open_table
from klamm.spark.tables.table_paths import local_path

RETENTION_HOURS: Final = 168
"""Delta's default: readers that started before a compaction, and running tasks, have a week to finish."""


@dataclass(frozen=True, slots=True)
class Compacted:
    removed: int
    added: int


def compact(path: str | Path, target_bytes: int | None = None) -> Compacted:
    """Merge files below the target size, within each date. The old ones stay for readers until vacuum."""
    table, place = open_table(path), local_path(str(path))
    before, version = set(file_names(table)), table.version()
    metrics = table.optimize.compact(target_size=target_bytes)
    table.update_incremental()
    merged = [place / name for name in set(file_names(table)) - before]
    sync(*merged)
    sync_names(*{name.parent for name in merged})
    sync_log(place, version + 1, table.version())
    return Compacted(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))


def vacuum(
    path: str | Path, *, retention_hours: int = RETENTION_HOURS, dry_run: bool = False, force: bool = False
) -> list[str]:
    """Remove files that no version within the retention needs, and files of killed tasks.

    Returns their names. Less than a week is refused without `force`: a reader or a running batch may need them.
    """
    if retention_hours < RETENTION_HOURS and not force:
        raise KlammError(
            f"A retention of {retention_hours} h is less than {RETENTION_HOURS} h: files that running queries and "
            "readers need could be removed. Stop them, then pass force."
        )
    return list(
        open_table(path).vacuum(retention_hours, dry_run=dry_run, enforce_retention_duration=not force, full=True)
    )


def history(path: str | Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the commits of the table, newest first."""
    return list(open_table(path).history(limit))
