"""The offsets of one group: committed ones, and those that wait for the log or for the end of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.coordinator.transactional_offsets import (
    OFFSETS_PER_SLICE,
    CommittedOffset,
    Marker,
    TransactionalAppend,
    TransactionalOffsets,
)
from klamm.model import TopicPartition


class GroupOffsets:
    """Owner: the group. Every offset has the position of its record in the log, and the later record wins."""

    __slots__ = ("_metadata_bytes", "committed", "pending", "removed_meanwhile", "transactional")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.pending: dict[TopicPartition, OffsetAndMetadata] = {}
        """Sent to the log, not yet acknowledged by it. Never shown to a client."""
        self.transactional = TransactionalOffsets()
        self._metadata_bytes = 0
        self.removed_meanwhile: dict[int, set[TopicPartition]] = {}
        """By base offset of a batch whose offsets are being committed: the partitions that later tombstones removed."""

    @property
    def is_empty(self) -> bool:
        return not (self.committed or self.pending or self.transactional)

    @property
    def metadata_bytes(self) -> int:
        """The characters of the metadata of all offsets that are in the log."""
        return self._metadata_bytes + self.transactional.metadata_bytes

    def get(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        entry = self.committed.get(tp)
        return None if entry is None else entry.value

    def is_unstable(self, tp: TopicPartition) -> bool:
        """Whether a commit or a transaction in progress may change the committed offset (KIP-447)."""
        return tp in self.pending or tp in self.transactional

    def partitions(self) -> dict[TopicPartition, None]:
        """All partitions that have an offset, committed or not."""
        return dict.fromkeys((*self.committed, *self.pending, *self.transactional.partitions()))

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
                self.put(tp, CommittedOffset(value, appended_offset))
            if self.pending.get(tp) is value:
                del self.pending[tp]
            if number % OFFSETS_PER_SLICE == 0:
                yield
        if appended_offset is not None:
            del self.removed_meanwhile[appended_offset]

    def finish_append(self, append: TransactionalAppend, appended_offset: int | None) -> Iterator[None]:
        """A TxnOffsetCommit is in the log from `appended_offset` on, or was refused (None). Works in slices."""
        return self.transactional.finish(append, appended_offset, self.put)

    def end_transaction(self, producer_id: int, marker: Marker) -> Iterator[None]:
        """A marker is in the log: commit or drop the producer's earlier offsets, in slices."""
        return self.transactional.end(producer_id, marker, self.put)

    def put(self, tp: TopicPartition, entry: CommittedOffset) -> None:
        """Commit `entry`, unless a later record was committed."""
        current = self.committed.get(tp)
        if current is None or current.appended_offset < entry.appended_offset:
            self.committed[tp] = entry
            self._metadata_bytes += len(entry.value.metadata) - (0 if current is None else len(current.value.metadata))

    @property
    def count(self) -> int:
        """The number of offsets. One that is committed and about to change counts more than once."""
        return len(self.committed) + len(self.pending) + self.transactional.partition_count

    def known(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the `partitions` that need a tombstone. The cost follows the smaller number."""
        if self.count < len(partitions) and isinstance(partitions, Mapping):
            return [tp for tp in self.partitions() if tp in partitions]
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
                self._metadata_bytes -= len(entry.value.metadata)
                removed += 1
            self.transactional.delete(tp, before_offset)
        return removed

    def expired(
        self,
        among: Iterable[TopicPartition],
        timestamp_ms: int,
        retention_ms: int,
        *,
        base_timestamp_ms: Callable[[OffsetAndMetadata], int],
        subscribed: frozenset[str] = frozenset(),
    ) -> list[TopicPartition]:
        """Offsets of `among` past their retention, of topics without subscribers (KIP-211).

        The retention begins at `base_timestamp_ms`. An offset that a commit or a transaction may change is kept: its
        tombstone would delete the new one.
        """

        def is_expired(value: OffsetAndMetadata) -> bool:
            if value.expire_timestamp_ms is not None:
                return timestamp_ms >= value.expire_timestamp_ms
            return timestamp_ms - base_timestamp_ms(value) >= retention_ms

        return [
            tp
            for tp in among
            if tp.topic not in subscribed
            and not self.is_unstable(tp)
            and (entry := self.committed.get(tp)) is not None
            and is_expired(entry.value)
        ]
