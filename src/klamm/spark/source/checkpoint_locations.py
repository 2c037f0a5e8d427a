"""The checkpoint of a query: a local directory, or a place on a file system that only Spark can reach."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from klamm.errors import KlammError

METADATA: Final = "metadata"
"""The file with the query's id, which Spark writes when a query starts from the checkpoint for the first time."""


class CheckpointError(KlammError):
    """The checkpoint of a query does not match its output: records would be lost or written twice."""


class CheckpointUnreachableError(KlammError):
    """The file system of a checkpoint does not answer, or reports an error. A later start may succeed."""


def local_path(location: str) -> Path | None:
    """Return the local directory of a location; None for hdfs://, s3a:// and similar."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if not parts.scheme or not re.match(r"[a-z0-9+.-]+://", location) else None


def query_id_of(checkpoint: str) -> str:
    """Return the id of the query on a local checkpoint; empty if it has not started or cannot be read from here."""
    root = local_path(checkpoint)
    try:
        return query_id_in((root / METADATA).read_text()) if root is not None else ""
    except (OSError, UnicodeDecodeError):
        return ""


def query_id_in(metadata: str) -> str:
    """Return the id of the query from the content of the file; empty if it is damaged."""
    try:
        return str(json.loads(metadata)["id"])
    except (ValueError, KeyError, TypeError):
        return ""
