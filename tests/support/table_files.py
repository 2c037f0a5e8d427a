"""The files of a Delta table, for readers without Delta support."""

from __future__ import annotations

from pathlib import Path

from klamm.spark.tables.read import file_names, open_table


def table_files(path: Path) -> list[str]:
    """Return the Parquet files of the newest version."""
    return [str(path / name) for name in file_names(open_table(path))]
