"""Where a reset moves the offsets of a consumer group: rules without I/O, for the CLI and the viewer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

K = TypeVar("K")


class ResetTarget(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"
    SHIFT = "shift"


class Bounds(NamedTuple):
    """The first offset of a log, and the one after its last record."""

    first: int
    end: int


class NewOffset(NamedTuple):
    """`wanted` differs from `offset` if it is outside the log."""

    offset: int
    wanted: int

    @property
    def is_cut(self) -> bool:
        return self.offset != self.wanted


def new_offsets(
    target: ResetTarget,
    value: int,
    partitions: Iterable[K],
    committed: Mapping[K, int],
    bounds: Mapping[K, Bounds],
    at_time: Mapping[K, int | None],
) -> dict[K, NewOffset]:
    """Return the new offset of each partition whose log is known, limited to the range of the log.

    `value` is the offset or the shift. `at_time` has the first offset at or after the time; None or -1: no record is
    that new, so the end is used. A shift of a partition without a committed offset starts at its first offset.
    """
    found = {}
    for partition in partitions:
        if partition not in bounds or (target is ResetTarget.TIME and partition not in at_time):
            continue
        first, end = bounds[partition]
        match target:
            case ResetTarget.EARLIEST:
                wanted = first
            case ResetTarget.LATEST:
                wanted = end
            case ResetTarget.OFFSET:
                wanted = value
            case ResetTarget.TIME:
                offset = at_time[partition]
                wanted = end if offset is None or offset < 0 else offset
            case ResetTarget.SHIFT:
                wanted = committed.get(partition, first) + value
        found[partition] = NewOffset(min(max(wanted, first), end), wanted)
    return found
