"""The offsets of one group: committed ones, and those that wait for the log or for the end of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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


@dataclass(slots=True)
class GroupOffsets:
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    """Sent to the log, not yet acknowledged by it. Never shown to a client."""
    pending_transactional: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """By producer id: in the log, but the transaction is still open."""
    metadata_bytes: int = 0
    """The characters of all committed metadata."""
    removed_meanwhile: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """For each batch whose offsets are being committed, by its base offset: those that later tombstones removed."""

    @property
    def is_empty(self) -> bool:
        return not (self.committed or self.pending or self.pending_transactional)

    def get(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        entry = self.committed.get(tp)
        return None if entry is None else entry.value

    def is_unstable(self, tp: TopicPartition) -> bool:
        """Whether the committed offset may change by what is already under way (KIP-447)."""
        return tp in self.pending or any(tp in offsets for offsets in self.pending_transactional.values())

    def prepare(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.pending.update(offsets)

    def completing(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], appended_offset: int | None
    ) -> Iterator[None]:
        """Commit `offsets`, which the log holds from `appended_offset` on, in slices. None: the log refused them.

        An offset counts as pending until its turn.
        """
        removed: set[TopicPartition] = set()
        if appended_offset is not None:
            self.removed_meanwhile[appended_offset] = removed
        for number, (tp, value) in enumerate(offsets.items(), 1):
            if appended_offset is not None and tp not in removed:
                self._put(tp, CommittedOffset(value, appended_offset))
            if self.pending.get(tp) is value:
                del self.pending[tp]
            if number % OFFSETS_PER_SLICE == 0:
                yield
        if appended_offset is not None:
            del self.removed_meanwhile[appended_offset]

    def _put(self, tp: TopicPartition, entry: CommittedOffset) -> None:
        current = self.committed.get(tp)
        if current is None or current.appended_offset < entry.appended_offset:
            self.committed[tp] = entry
            self.metadata_bytes += len(entry.value.metadata) - (0 if current is None else len(current.value.metadata))

    def complete_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The producer's transaction ended: its offsets are committed, or forgotten."""
        offsets = self.pending_transactional.pop(producer_id, {})
        if commit:
            for tp, entry in offsets.items():
                self._put(tp, entry)

    def known(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the `partitions` that need a tombstone."""
        return [tp for tp in partitions if tp in self.committed or self.is_unstable(tp)]

    def remove(self, partitions: Collection[TopicPartition], *, before_offset: int) -> int:
        """Drop offsets committed before the tombstones at `before_offset`; returns their number."""
        removed = 0
        for appended_offset, others in self.removed_meanwhile.items():
            if appended_offset < before_offset:
                others.update(partitions)
        for tp in partitions:
            entry = self.committed.get(tp)
            if entry is not None and entry.appended_offset < before_offset:
                del self.committed[tp]
                self.metadata_bytes -= len(entry.value.metadata)
                removed += 1
            for producer_id in list(self.pending_transactional):
                offsets = self.pending_transactional[producer_id]
                pending = offsets.get(tp)
                if pending is not None and pending.appended_offset < before_offset:
                    del offsets[tp]
                    if not offsets:
                        del self.pending_transactional[producer_id]
        return removed

    def expired(
        self,
        timestamp_ms: int,
        retention_ms: int,
        *,
        base_timestamp_ms: Callable[[OffsetAndMetadata], int],
        subscribed: frozenset[str] = frozenset(),
    ) -> list[TopicPartition]:
        """Offsets past their retention, counted from `base_timestamp_ms`, of topics without subscribers (KIP-211)."""

        def is_expired(value: OffsetAndMetadata) -> bool:
            if value.expire_timestamp_ms is not None:
                return timestamp_ms >= value.expire_timestamp_ms
            return timestamp_ms - base_timestamp_ms(value) >= retention_ms

        return [
            tp
            for tp, entry in self.committed.items()
            if tp.topic not in subscribed and tp not in self.pending and is_expired(entry.value)
        ]
