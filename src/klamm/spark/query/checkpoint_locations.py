"""The location of a checkpoint: a local directory, or a file system that only Spark can reach."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(location: str) -> Path | None:
    """Return the local directory of a location; None for hdfs://, s3a:// and similar."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if not parts.scheme or not re.match(r"[a-z0-9+.-]+://", location) else None
