"""Where a checkpoint is: a directory of this machine, or somewhere that only Spark can reach."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(location: str) -> Path | None:
    """The directory of a location on this machine; None for hdfs://, s3a:// and their like."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if not parts.scheme or not re.match(r"[a-z0-9+.-]+://", location) else None
