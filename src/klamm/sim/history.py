"""Checks the answers that clients of a simulated cluster received: no acknowledged record is lost or duplicated.

A record's value names its producer, its partition and its number, so every record of a run is different.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from klamm.model import TopicPartition
from klamm.sim.checkers import require


class Acknowledged(NamedTuple):
    value: bytes
    offset: int


def value_of(producer: str, tp: TopicPartition, number: int) -> bytes:
    return f"{producer} {tp.topic}-{tp.partition} {number}".encode()


class History:
    def __init__(self) -> None:
        self.acknowledged: dict[TopicPartition, list[Acknowledged]] = {}
        self._seen: dict[TopicPartition, list[bytes]] = {}
        self._acknowledged_end: dict[TopicPartition, int] = {}
        self.on_committed: Callable[[TopicPartition, int, float], None] = lambda tp, end, since_s: None
        """Called for every answer to a produce, with the committed end of the partition and the first attempt."""

    def on_acknowledged(self, tp: TopicPartition, base_offset: int, values: list[bytes], since_s: float) -> None:
        """Record an acknowledged produce, which was sent first at `since_s`.

        A duplicate of an earlier attempt may be answered without an offset.
        """
        known = self.acknowledged.setdefault(tp, [])
        for i, value in enumerate(values):
            known.append(Acknowledged(value, base_offset + i if base_offset >= 0 else -1))
        if base_offset >= 0:
            end = base_offset + len(values)
            self._acknowledged_end[tp] = max(end, self._acknowledged_end.get(tp, 0))
            self.on_committed(tp, end, since_s)

    def on_read(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """Record that a consumer saw a record: every later read must find it at that offset."""
        seen = self._seen.setdefault(tp, [])
        require(offset <= len(seen), f"a consumer of {tp} was given offset {offset} where {len(seen)} was expected")
        if offset == len(seen):
            seen.append(value)
        require(
            seen[offset] == value,
            f"{tp} at offset {offset} was {seen[offset]!r} for one consumer and is {value!r} for another",
        )

    def read_count(self, tp: TopicPartition) -> int:
        return len(self._seen.get(tp, ()))

    def committed(self, tp: TopicPartition) -> int:
        """Return the end of the records that clients know to be committed: read or acknowledged."""
        return max(self.read_count(tp), self._acknowledged_end.get(tp, 0))

    def check(self) -> None:
        """Check all records; call it when consumers have read everything."""
        for tp, acknowledged in self.acknowledged.items():
            seen = self._seen.get(tp, [])
            places = {value: offset for offset, value in enumerate(seen)}
            require(len(places) == len(seen), f"{tp} holds {len(seen) - len(places)} records twice")
            for value, offset in acknowledged:
                require(value in places, f"{value!r} was acknowledged at {tp} {offset} and is lost")
                found = places[value]
                require(offset in (-1, found), f"{value!r} was acknowledged at {tp} {offset} and is at {found}")
        for tp, seen in self._seen.items():
            _check_order(tp, seen)


def _check_order(tp: TopicPartition, values: list[bytes]) -> None:
    last: dict[bytes, int] = {}
    for value in values:
        producer, _, number = value.split(b" ")
        require(int(number) > last.get(producer, -1), f"{value!r} of {tp} comes behind number {last.get(producer)}")
        last[producer] = int(number)
