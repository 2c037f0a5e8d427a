"""Directories of tables."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from klamm.errors import KlammError


def check_apart(table: Path, other: Path, what: str) -> None:
    """Raise KlammError if `other` is in the directory of a table, where vacuum would remove its files."""
    if other == table or (table in other.parents and not other.relative_to(table).parts[0].startswith(("_", "."))):
        raise KlammError(f"{what} cannot be in {table}, at {other}: vacuum would remove its files.")


def default_bad_path(path: Path) -> Path:
    return path.with_name(path.name + "_bad")


def local_path(text: str) -> Path:
    """Return the absolute directory. Every executor writes there: on a cluster it must be a shared file system."""
    parts = urlsplit(text)
    if parts.scheme not in ("", "file"):
        raise KlammError(f"The table {text!r} is not a directory: {parts.scheme}:// is not supported.")
    return Path(parts.path if parts.scheme else text).absolute()
