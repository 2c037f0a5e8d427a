"""Expiry of committed offsets (KIP-211)."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.model import TopicPartition


def expired_offsets(
    group: GroupMetadata, among: Iterable[TopicPartition], retention_ms: int, *, timestamp_ms: int, now_ms: int
) -> list[TopicPartition]:
    """Return the partitions of `among` whose offsets are past their retention.

    The retention begins when a group becomes empty. It begins with the commit if the group never had members, and for
    topics to which a stable consumer group no longer subscribes. An offset with its own expiry time (OffsetCommit v2 to
    v4) uses that.
    """
    if group.state is GroupState.EMPTY and group.protocol_type is not None:
        since_ms = group.state_since_ms
        empty_since_ms = None if since_ms is None else timestamp_ms - (now_ms - since_ms)
        return group.offsets.expired(
            among,
            timestamp_ms,
            retention_ms,
            base_timestamp_ms=lambda value: value.commit_timestamp_ms if empty_since_ms is None else empty_since_ms,
        )
    if group.state is GroupState.STABLE and group.is_consumer_group and (topics := group.subscribed_topics) is not None:
        return group.offsets.expired(
            among, timestamp_ms, retention_ms, base_timestamp_ms=_commit_timestamp, subscribed=topics
        )
    if group.protocol_type is None:
        return group.offsets.expired(among, timestamp_ms, retention_ms, base_timestamp_ms=_commit_timestamp)
    return []


def _commit_timestamp(value: OffsetAndMetadata) -> int:
    return value.commit_timestamp_ms
