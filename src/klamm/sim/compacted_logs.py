"""Compares the replicas of a compacted log by what readers can observe.

Every replica is compacted by its own broker, at its own time. So replicas have different batches: one of them has
removed an older value, an aborted record, a marker or a tombstone that another one still has. But they must agree on
every record that both have, and on the last committed value of each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from klamm.log.end_markers import parse_marker
from klamm.protocol.record_batch import RecordBatch, records


class Kept(NamedTuple):
    offset: int
    value: bytes | None


def last_values(log: Iterable[RecordBatch]) -> dict[bytes, Kept]:
    """Return the last committed value of each key, without those that a tombstone deleted."""
    found: dict[bytes, Kept] = {}
    pending: dict[int, list[tuple[bytes, Kept]]] = {}
    for batch in log:
        if batch.is_control:
            marker = parse_marker(batch) if batch.record_count else None
            ended = pending.pop(batch.producer_id, []) if marker is not None else []
            if marker is not None and not marker.is_abort:
                _put(found, ended)
            continue
        rows = [(record.key or b"", Kept(record.offset, record.value)) for record in records(batch)]
        if batch.is_transactional:
            pending.setdefault(batch.producer_id, []).extend(rows)
        else:
            _put(found, rows)
    return {key: kept for key, kept in found.items() if kept.value is not None}


def _put(found: dict[bytes, Kept], rows: Iterable[tuple[bytes, Kept]]) -> None:
    for key, kept in rows:
        if key not in found or found[key].offset < kept.offset:
            found[key] = kept


def differences(one: Iterable[RecordBatch], other: Iterable[RecordBatch]) -> Iterator[str]:
    """Yield what readers of two replicas of a compacted log could observe differently."""
    first, second = list(one), list(other)
    ours, theirs = _by_offset(first), _by_offset(second)
    for offset in ours.keys() & theirs.keys():
        if ours[offset] != theirs[offset]:
            yield f"the records at {offset} differ: {ours[offset]} and {theirs[offset]}"
    here, there = last_values(first), last_values(second)
    for key in sorted(here.keys() | there.keys()):
        if here.get(key) != there.get(key):
            yield f"the last value of {key!r} is {here.get(key)} or {there.get(key)}"


def _by_offset(log: Iterable[RecordBatch]) -> dict[int, tuple[bytes | None, bytes | None]]:
    return {record.offset: (record.key, record.value) for batch in log for record in records(batch)}
