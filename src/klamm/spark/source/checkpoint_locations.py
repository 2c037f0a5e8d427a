"""The checkpoint of a query: a local directory, or a place on a file system that only Spark can reach."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from klamm.errors import KlammError


class CheckpointError(KlammError):
    """The checkpoint of a query does not match its output: records would be lost or written twice."""


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
        return str(json.loads((root / "metadata").read_text())["id"]) if root is not None else ""
    except (OSError, ValueError, KeyError):
        return ""
