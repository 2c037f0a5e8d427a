"""The limit of open files, and the share of the logs."""

from __future__ import annotations

import resource
from typing import Final

_MAX_LIMIT: Final = 1 << 20
_MIN_SEGMENTS: Final = 16
_MAX_SEGMENTS: Final = 50_000


def raise_to_hard_limit() -> int:
    """Raise the limit to the system's maximum; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MAX_LIMIT if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < allowed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError):  # Not possible on this system: the old limit is enough to continue.
            return soft
    return allowed


def open_segments(limit: int | None = None) -> int:
    """Return the number of segments that logs may keep open: half of the files are left for connections."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return _MAX_SEGMENTS
    return max(_MIN_SEGMENTS, min(soft // 2, _MAX_SEGMENTS))
