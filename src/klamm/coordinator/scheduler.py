"""The coordinator's interface to time and background work; an event loop or the simulator implements it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from klamm.coordinator.group_metadata import GroupMetadata, GroupState


class Scheduler(Protocol):
    def wake_at(self, deadline_ms: int) -> None:
        """Call the coordinator's `advance` at `deadline_ms` or soon after; only the earliest call counts."""

    def spawn(self, job: Iterator[None]) -> None:
        """Run `job` to its end, with other work between its steps."""

    def stop(self) -> None:
        """Stop all calls."""


class Wakeups:
    """Groups by wake-up time. A changed group leaves stale entries, which are skipped later."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, GroupMetadata]] = []
        self._sequence = 0

    def schedule(self, group: GroupMetadata) -> bool:
        """Record the group's `wake_ms` unless an earlier one exists; returns whether it is the earliest of all."""
        wake_ms = group.wake_ms
        if wake_ms is None or (group.scheduled_wake_ms is not None and group.scheduled_wake_ms <= wake_ms):
            return False
        group.scheduled_wake_ms = wake_ms
        self._sequence += 1
        heapq.heappush(self._heap, (wake_ms, self._sequence, group))
        return self._heap[0][2] is group

    def next_ms(self) -> int | None:
        """Return the earliest wake-up of a live group."""
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
