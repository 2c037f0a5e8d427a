"""Suggest a known name in place of an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'orders'?`, or the list of choices, or nothing."""
    names = sorted(known)
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f" Did you mean {close[0]!r}?"
    return f" There are: {', '.join(names)}." if 0 < len(names) <= 12 else ""
