"""The topics and partitions that a request names, whichever API it belongs to. A bounded part of a large request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final
from uuid import UUID

MAX_SEEN: Final = 1_000
"""Partitions of a request that are looked at."""
_TOPICS: Final = (
    *("topics", "topic_data", "topic_states", "ungrouped_partition_states", "ungrouped_partitions"),
    *("topic_names", "topic_partitions", "v3_and_below_topics"),
)
_GROUPS: Final = ("groups", "transactions", "markers")
"""Lists whose elements have topics in turn."""
_NAMES: Final = ("name", "topic", "topic_name", "topic_id")
_ROWS: Final = ("partitions", "partition_data", "partition_states", "partition_indexes")
_NUMBERS: Final = ("partition", "partition_index", "index")


def named_partitions(message: Any) -> Iterator[tuple[str | UUID, int]]:
    """Yield topic (name or id) and partition; -1 if the request names the topic only."""
    return islice(_partitions(message), MAX_SEEN)


def _partitions(message: Any) -> Iterator[tuple[str | UUID, int]]:
    for topic in _elements(message, _TOPICS):
        yield from _of_topic(topic)
    for group in _elements(message, _GROUPS):
        for topic in _elements(group, _TOPICS):
            yield from _of_topic(topic)


def _elements(value: Any, names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        yield from getattr(value, name, None) or ()


def _of_topic(topic: Any) -> Iterator[tuple[str | UUID, int]]:
    name = topic if isinstance(topic, str) else next(filter(None, (getattr(topic, n, None) for n in _NAMES)), None)
    if not isinstance(name, str | UUID) or (isinstance(name, UUID) and not name.int):
        return
    is_alone = True
    for row in _elements(topic, _ROWS):
        is_alone = False
        yield name, _number(row)
    if is_alone:
        yield name, _number(topic)


def _number(row: Any) -> int:
    if isinstance(row, int):
        return row
    numbers = (getattr(row, name, None) for name in _NUMBERS)
    return next((number for number in numbers if isinstance(number, int)), -1)
