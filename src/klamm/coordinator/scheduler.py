"""Time and background work as the coordinator asks for them; an event loop or a simulator provides them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from klamm.coordinator.group_metadata import GroupMetadata, GroupState


class Scheduler(Protocol):
    def wake_at(self, deadline_ms: int) -> None:
        """Calls the coordinator's `advance` at `deadline_ms` or soon after; only the earliest call counts."""

    def spawn(self, job: Iterator[None]) -> None:
        """Steps through `job` to its end, letting other work run between two steps."""

    def stop(self) -> None:
        """Stop all calls."""


class Wakeups:
    """The groups by the time at which they want to be woken. A group that moved has stale entries, skipped later."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, GroupMetadata]] = []
        self._sequence = 0

    def schedule(self, group: GroupMetadata) -> bool:
        """Notes the group's `wake_ms` unless an earlier waking is noted; whether it is the earliest of all now."""
        wake_ms = group.wake_ms
        if wake_ms is None or (group.scheduled_wake_ms is not None and group.scheduled_wake_ms <= wake_ms):
            return False
        group.scheduled_wake_ms = wake_ms
        self._sequence += 1
        heapq.heappush(self._heap, (wake_ms, self._sequence, group))
        return self._heap[0][2] is group

    def next_ms(self) -> int | None:
        """The earliest waking of a living group."""
        while self._heap:
            wake_ms, _, group = self._heap[0]
            if group.scheduled_wake_ms == wake_ms and group.state is not GroupState.DEAD:
                return wake_ms
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ms: int) -> GroupMetadata | None:
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        group = heapq.heappop(self._heap)[2]
        group.scheduled_wake_ms = None
        return group
