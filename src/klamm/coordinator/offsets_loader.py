"""Rebuilds groups and offsets from the records of one offsets partition, in the order they were written.

Offsets written in a transaction are pending until its marker is read; without a marker they are pending in the loaded
group. A tombstone deletes earlier offsets only, pending ones too. A record that cannot be read is skipped with a
warning: one bad record must not take the partition's other groups away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.coordinator.member_metadata import MemberMetadata
from klamm.coordinator.offset_records import (
    NO_TIMESTAMP,
    GroupKey,
    GroupMetadataValue,
    OffsetKey,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from klamm.coordinator.offsets import GroupOffsets
from klamm.coordinator.transactional_offsets import CommittedOffset, Marker
from klamm.errors import ProtocolError
from klamm.protocol.record_batch import Record, RecordBatch, records

_log = logging.getLogger("klamm.coordinator")

_COMMIT_MARKER = 1


@dataclass(slots=True)
class OffsetsLoader:
    partition: int
    values: dict[str, GroupMetadataValue] = field(default_factory=dict)
    offsets: dict[str, GroupOffsets] = field(default_factory=dict)
    open_transactions: dict[int, dict[str, None]] = field(default_factory=dict)
    """The groups that a producer's unfinished transaction has offsets for."""

    def add(self, batch: RecordBatch) -> Iterator[None]:
        """Apply a batch. The end of a large transaction takes several slices."""
        if batch.is_control:
            yield from self._end_transaction(batch)
            return
        try:
            for record in records(batch):
                self._add_record(record, batch)
        except ProtocolError as error:
            _log.warning("__consumer_offsets-%d: skipping %s: %s", self.partition, batch, error)

    def _add_record(self, record: Record, batch: RecordBatch) -> None:
        try:
            key = decode_key(record.key or b"")
            if isinstance(key, OffsetKey):
                self._add_offset(key, record, batch)
            elif isinstance(key, GroupKey):
                self._add_group(key, record)
            elif isinstance(key, UnknownKey):
                _log.warning("__consumer_offsets-%d: key version %d is unknown", self.partition, key.version)
        except ProtocolError as error:
            _log.warning("__consumer_offsets-%d: skipping record %d: %s", self.partition, record.offset, error)

    def _add_offset(self, key: OffsetKey, record: Record, batch: RecordBatch) -> None:
        offsets = self.offsets.setdefault(key.group_id, GroupOffsets())
        tp = key.topic_partition
        if record.value is None:
            if batch.is_transactional:
                offsets.transactional.delete_from(batch.producer_id, tp)
            else:
                offsets.remove((tp,), before_offset=record.offset)
            return
        entry = CommittedOffset(decode_offset_value(record.value), record.offset)
        if batch.is_transactional:
            offsets.transactional.add(batch.producer_id, tp, entry)
            self.open_transactions.setdefault(batch.producer_id, {})[key.group_id] = None
        else:
            offsets.put(tp, entry)

    def _add_group(self, key: GroupKey, record: Record) -> None:
        if record.value is None:
            self.values.pop(key.group_id, None)
            return
        value = decode_group_value(record.value)
        if value.members and value.protocol is None:
            raise ProtocolError(f"group {key.group_id} has members and no protocol")
        self.values[key.group_id] = value

    def _end_transaction(self, batch: RecordBatch) -> Iterator[None]:
        """A marker's key is int16 version, int16 type: 1 commits, 0 aborts."""
        try:
            key = next((record.key for record in records(batch)), None) or b""
        except ProtocolError as error:
            _log.warning("__consumer_offsets-%d: skipping marker %s: %s", self.partition, batch, error)
            return
        marker = Marker(batch.base_offset, commit=int.from_bytes(key[2:4], "big") == _COMMIT_MARKER)
        for group_id in self.open_transactions.pop(batch.producer_id, ()):
            yield from self.offsets[group_id].end_transaction(batch.producer_id, marker)

    def groups(self, now_ms: int, timestamp_ms: int) -> list[GroupMetadata]:
        """Every group that has a record or an offset. With offsets only, it is empty and has no protocol type."""
        loaded = []
        for group_id in dict.fromkeys((*self.values, *self.offsets)):
            value = self.values.get(group_id)
            offsets = self.offsets.get(group_id) or GroupOffsets()
            if value is not None:
                loaded.append(_loaded_group(group_id, self.partition, value, offsets, now_ms, timestamp_ms))
            elif not offsets.is_empty:
                loaded.append(GroupMetadata(group_id, self.partition, state_since_ms=now_ms, offsets=offsets))
        return loaded


def _loaded_group(
    group_id: str, partition: int, value: GroupMetadataValue, offsets: GroupOffsets, now_ms: int, timestamp_ms: int
) -> GroupMetadata:
    since_timestamp_ms = value.current_state_timestamp_ms
    age_ms = max(timestamp_ms - since_timestamp_ms, 0)
    group = GroupMetadata(
        group_id,
        partition,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        state_since_ms=None if since_timestamp_ms == NO_TIMESTAMP else now_ms - age_ms,
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        offsets=offsets,
    )
    for member in value.members:
        if member.member_id in group.members or member.group_instance_id in group.static_members:
            continue
        group.add(
            MemberMetadata(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                protocols=((value.protocol or "", member.subscription),),
                assignment=member.assignment,
            ),
            value.protocol_type,
        )
    if value.leader in group.members:
        group.leader_id = value.leader
    group.keep_subscriptions()
    return group
