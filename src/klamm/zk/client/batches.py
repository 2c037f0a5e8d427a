"""Splits lists of paths into batches: reads below ZooKeeper's size limit, creations with their parents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_BATCH_BYTES: Final = 900_000
MAX_BATCH_PATHS: Final = 500
"""The best size in measurements: larger batches are not faster, and delay other requests longer."""


def path_batches(full_paths: Iterable[str]) -> list[list[str]]:
    """Return the paths in order, in batches whose requests stay below the limit in any encoding."""
    batches: list[list[str]] = []
    size = MAX_BATCH_BYTES
    for path in full_paths:
        cost = len(path) * 4 + 14
        if size + cost > MAX_BATCH_BYTES or len(batches[-1]) == MAX_BATCH_PATHS:
            batches.append([])
            size = 0
        batches[-1].append(path)
        size += cost
    return batches


def levels_of(paths: Iterable[str]) -> list[str]:
    """Return the paths and all their parents once, parents first: `/a/b` gives `/a` and `/a/b`."""
    levels: dict[str, None] = {}
    for path in paths:
        for end in (*(i for i, letter in enumerate(path) if letter == "/" and i), len(path)):
            levels[path[:end]] = None
    return list(levels)
