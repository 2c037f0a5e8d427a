"""Memory limits of the coordinator: subscriptions of members, and metadata of offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from klamm.coordinator.group_metadata import GroupMetadata
from klamm.coordinator.member_metadata import Protocols

MEMBER_COST: Final = 1_000
"""Estimated bytes of a member besides its ids and subscriptions."""
PENDING_COST: Final = 200
COUNT_INTERVAL_MS: Final = 1_000


class Budget:
    """A limit that is tracked by an upper estimate and recounted exactly only when the estimate reaches it."""

    def __init__(self, limit_bytes: int, count: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._count = count
        self._estimate = 0
        self._next_count_ms: int | None = None

    def has_room(self, size_bytes: int, now_ms: int) -> bool:
        """Whether this many more bytes are allowed; if so, count them."""
        if self._estimate + size_bytes > self._limit_bytes:
            if self._next_count_ms is not None and now_ms < self._next_count_ms:
                return False
            self._next_count_ms = now_ms + COUNT_INTERVAL_MS
            self._estimate = self._count()
            if self._estimate + size_bytes > self._limit_bytes:
                return False
        self._estimate += size_bytes
        return True


def protocols_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def members_bytes(group: GroupMetadata) -> int:
    """Return the memory of a group's members, including those with a pending id."""
    size = sum(PENDING_COST + len(member_id) for member_id in group.pending_members)
    for member in group.members.values():
        size += MEMBER_COST + len(member.member_id) + len(member.client_id) + len(member.group_instance_id or "")
        size += protocols_bytes(member.protocols) + len(member.assignment)
    return size
