"""Finds the records that make a view fail by halving a batch down to single records. Free of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.spark.source.source_offsets import OffsetRange

MAX_TRIES: Final = 400
"""Maximum number of tries on parts of a batch: at about 0.1 s each, less than a minute."""

Ranges = Sequence[OffsetRange]
Fails = Callable[[Ranges], str | None]
"""Run the view on these records; returns the reason if it fails."""


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """One record, as a range of one offset, and why the view fails on it."""

    at: OffsetRange
    reason: str

    def __str__(self) -> str:
        return f"{self.at.tp} offset {self.at.start}"


@dataclass(slots=True)
class Search:
    """`records` fail individually; `unresolved` parts fail only together, or were not searched completely."""

    records: list[PoisonRecord] = field(default_factory=list)
    unresolved: list[Ranges] = field(default_factory=list)
    tries: int = 0


def search(
    ranges: Ranges,
    fails: Fails,
    *,
    limit: int,
    max_tries: int = MAX_TRIES,
    is_over: Callable[[], bool] = lambda: False,
) -> Search:
    """Find up to `limit` records, with at most `max_tries` tries and none once `is_over`.

    Finds nothing if the view does not fail on the whole batch.
    """
    found = Search(tries=1)
    everything = [r for r in ranges if r.size > 0]
    reason = fails(everything)
    waiting: list[tuple[Ranges, str]] = [(everything, reason)] if reason is not None and everything else []
    while waiting and len(found.records) < limit:
        part, why = waiting.pop()
        if size(part) == 1:
            found.records.append(PoisonRecord(part[0], why))
            continue
        if found.tries + 2 > max_tries or is_over():
            found.unresolved.append(part)
            continue
        halves: list[tuple[Ranges, str]] = []
        for half in halved(part):
            if halves and limit == 1:
                break  # one record is enough, and the first half has it
            found.tries += 1
            if (why_half := fails(half)) is not None:
                halves.append((half, why_half))
        if not halves:
            found.unresolved.append(part)
        waiting += reversed(halves)
    found.unresolved += [part for part, _ in waiting] if len(found.records) < limit else []
    return found


def size(ranges: Ranges) -> int:
    return sum(r.size for r in ranges)


def halved(ranges: Ranges) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Split into two parts with equally many offsets, plus or minus one."""
    left: list[OffsetRange] = []
    wanted = size(ranges) // 2
    for index, one in enumerate(ranges):
        room = wanted - size(left)
        if one.size <= room:
            left.append(one)
            continue
        cut = one.start + room
        first = [OffsetRange(one.tp, one.start, cut)] if room else []
        return [*left, *first], [OffsetRange(one.tp, cut, one.end), *ranges[index + 1 :]]
    return left, []


def describe_ranges(ranges: Ranges) -> str:
    """`orders-0 offsets 12 to 40, orders-1 offset 3`, the first few."""
    shown = [_one(r) for r in ranges[:5]]
    return ", ".join(shown) + (", ..." if len(ranges) > len(shown) else "")


def _one(r: OffsetRange) -> str:
    return f"{r.tp} offset {r.start}" if r.size == 1 else f"{r.tp} offsets {r.start} to {r.end - 1}"
