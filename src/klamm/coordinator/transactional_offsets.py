"""The offsets of one group that producers sent in transactions which have not ended.

The state in memory equals that of a replay of the log: a marker ends the offsets before it in the log, and a tombstone
deletes the offsets before it, in whichever order records, markers and tombstones are acknowledged. One order is
guaranteed: a producer begins a transaction after the markers of its last one were reported. So the last offset of each
producer and partition is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.model import TopicPartition

OFFSETS_PER_SLICE: Final = 1_000
"""Offsets that are checked, committed or deleted before the loop serves others."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`appended_offset` is the record's position in the offsets partition: the later record wins."""

    value: OffsetAndMetadata
    appended_offset: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction, at `offset` of the offsets partition."""

    offset: int
    commit: bool


@dataclass(slots=True, eq=False)
class TransactionalAppend:
    """The offsets of one TxnOffsetCommit that were sent to the log and are not yet acknowledged."""

    producer_id: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    markers: list[Marker] = field(default_factory=list)
    """Markers of the producer that were reported meanwhile."""
    tombstones: dict[TopicPartition, int] = field(default_factory=dict)
    """The last tombstone of a partition that was reported meanwhile."""

    def marker_after(self, offset: int) -> Marker | None:
        """The marker that ended the transaction of a record at `offset`."""
        return min((m for m in self.markers if m.offset > offset), key=lambda marker: marker.offset, default=None)


Commit = Callable[[TopicPartition, CommittedOffset], None]


class TransactionalOffsets:
    """Owner: the GroupOffsets of a group. Its methods call `commit` with an offset whose transaction was committed."""

    __slots__ = ("_appending", "_appending_partitions", "_pending", "_producers", "metadata_bytes")

    def __init__(self) -> None:
        self._appending: dict[TransactionalAppend, None] = {}
        self._appending_partitions: dict[TopicPartition, int] = {}
        """How many appends in progress name the partition."""
        self._pending: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        """By producer id: in the log, but the transaction is still open."""
        self._producers: dict[TopicPartition, dict[int, None]] = {}
        """The producers that have a pending offset of the partition."""
        self.metadata_bytes = 0
        """The characters of the metadata of all pending offsets."""

    def __bool__(self) -> bool:
        return bool(self._appending or self._pending)

    def __contains__(self, tp: TopicPartition) -> bool:
        """Whether an open transaction may change the partition's offset."""
        return tp in self._producers or tp in self._appending_partitions

    def partitions(self) -> Iterator[TopicPartition]:
        yield from self._producers
        yield from self._appending_partitions

    @property
    def partition_count(self) -> int:
        """The number of `partitions`, some of them counted twice."""
        return len(self._producers) + len(self._appending_partitions)

    def has(self, producer_id: int) -> bool:
        """Whether the producer has offsets here whose transaction is open."""
        return producer_id in self._pending or any(a.producer_id == producer_id for a in self._appending)

    def begin(self, producer_id: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> TransactionalAppend:
        """The offsets are about to be appended."""
        append = TransactionalAppend(producer_id, offsets)
        self._appending[append] = None
        counts = self._appending_partitions
        for tp in offsets:
            counts[tp] = counts.get(tp, 0) + 1
        return append

    def finish(self, append: TransactionalAppend, appended_offset: int | None, commit: Commit) -> Iterator[None]:
        """The log holds the offsets from `appended_offset` on, or refused them (None). Works in slices."""
        counts = self._appending_partitions
        for number, (tp, value) in enumerate(append.offsets.items(), 1):
            if appended_offset is not None:
                self._settle(append, tp, CommittedOffset(value, appended_offset), commit)
            counts[tp] -= 1
            if not counts[tp]:
                del counts[tp]
            if number % OFFSETS_PER_SLICE == 0:
                yield
        del self._appending[append]

    def _settle(self, append: TransactionalAppend, tp: TopicPartition, entry: CommittedOffset, commit: Commit) -> None:
        """Apply the markers and tombstones that were reported before the record's acknowledgement."""
        if append.tombstones.get(tp, -1) > entry.appended_offset:
            return
        marker = append.marker_after(entry.appended_offset)
        if marker is None:
            self.add(append.producer_id, tp, entry)
        elif marker.commit:
            commit(tp, entry)

    def add(self, producer_id: int, tp: TopicPartition, entry: CommittedOffset) -> None:
        """The log holds this offset, and its transaction is open. The later record of a producer wins."""
        offsets = self._pending.setdefault(producer_id, {})
        current = offsets.get(tp)
        if current is not None and current.appended_offset > entry.appended_offset:
            return
        offsets[tp] = entry
        self._producers.setdefault(tp, {})[producer_id] = None
        self.metadata_bytes += len(entry.value.metadata) - (0 if current is None else len(current.value.metadata))

    def end(self, producer_id: int, marker: Marker, commit: Commit) -> Iterator[None]:
        """Commit or drop the producer's offsets that lie before `marker`, in slices."""
        for append in self._appending:
            if append.producer_id == producer_id:
                append.markers.append(marker)
        for number, (tp, entry) in enumerate(list(self._pending.get(producer_id, {}).items()), 1):
            if entry.appended_offset < marker.offset and self._take(producer_id, tp, entry) and marker.commit:
                commit(tp, entry)
            if number % OFFSETS_PER_SLICE == 0:
                yield

    def delete(self, tp: TopicPartition, before_offset: int) -> None:
        """A tombstone at `before_offset` deletes the earlier offsets of a partition."""
        for producer_id in list(self._producers.get(tp, ())):
            entry = self._pending[producer_id][tp]
            if entry.appended_offset < before_offset:
                self._take(producer_id, tp, entry)
        if tp in self._appending_partitions:
            for append in self._appending:
                if tp in append.offsets:
                    append.tombstones[tp] = max(append.tombstones.get(tp, -1), before_offset)

    def delete_from(self, producer_id: int, tp: TopicPartition) -> None:
        """A tombstone inside the producer's own transaction."""
        entry = self._pending.get(producer_id, {}).get(tp)
        if entry is not None:
            self._take(producer_id, tp, entry)

    def _take(self, producer_id: int, tp: TopicPartition, entry: CommittedOffset) -> bool:
        """Remove the entry; False if it is no longer there."""
        offsets = self._pending.get(producer_id)
        if offsets is None or offsets.get(tp) is not entry:
            return False
        del offsets[tp]
        if not offsets:
            del self._pending[producer_id]
        producers = self._producers[tp]
        del producers[producer_id]
        if not producers:
            del self._producers[tp]
        self.metadata_bytes -= len(entry.value.metadata)
        return True
