"""An address as logs and DescribeConfigs show it: without user, password and query, which may be secrets."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit, urlunsplit

_HIDDEN: Final = "[hidden]"


def shown_url(url: str) -> str:
    """Return the address as it is if it has no such part. A removed query leaves a mark."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _HIDDEN
    if not parts.query and not parts.fragment and "@" not in parts.netloc:
        return url
    mark = _HIDDEN if parts.query or parts.fragment else ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, mark, ""))
