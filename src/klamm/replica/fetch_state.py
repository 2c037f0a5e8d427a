"""A follower's position in one partition, and when it may request it again."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from klamm.model import NO_EPOCH, TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from klamm.log.log import Log
    from klamm.replica.partition import Partition

FIRST_DELAY_MS: Final = 10
UNKNOWN_OFFSET: Final = -1
UNKNOWN_LAG: Final = -1
"""Until the leader's first answer, as in Kafka's metric."""


class PartitionFetchState:
    """Owned by a ReplicaFetcher, one object per leader epoch: a response for an older epoch finds another object."""

    __slots__ = (
        "due",
        "failures",
        "fetch_offset",
        "is_truncating",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "log",
        "partition",
        "reported_log_start_offset",
        "topic_id",
        "tp",
    )

    def __init__(self, partition: Partition, *, truncates_on_fetch: bool) -> None:
        assert partition.log is not None
        self.partition = partition
        self.tp: TopicPartition = partition.topic_partition
        self.topic_id: UUID = partition.topic_id
        self.log: Log = partition.log
        self.leader_epoch = partition.leader_epoch
        self.fetch_offset = 0
        self.last_fetched_epoch = NO_EPOCH
        self.lag = UNKNOWN_LAG
        self.reported_log_start_offset = UNKNOWN_OFFSET
        """The log start that the last request to name the partition had."""
        self.due = 0.0
        """Loop time from which it may be requested again."""
        self.failures = 0
        self.is_truncating = not truncates_on_fetch or self.log.latest_epoch is None
        self.follow_log()

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows in the epoch of this state."""
        return self.partition.leader_epoch == self.leader_epoch and not self.partition.is_leader

    def follow_log(self) -> None:
        """The next request continues at the current end of the log."""
        latest = self.log.latest_epoch
        self.fetch_offset = self.log.log_end_offset
        self.last_fetched_epoch = NO_EPOCH if latest is None else latest

    def delay(self, now: float, max_delay_ms: int) -> None:
        """Delay the next request; the delay doubles with each failure."""
        self.due = now + min(FIRST_DELAY_MS << self.failures, max_delay_ms) / 1000
        self.failures = min(self.failures + 1, 16)


class DelayedStates:
    """Partitions whose next request is delayed, by the time when the delay ends. Owned by a ReplicaFetcher.

    The cost of a round follows the number of delays that end, not the number of all delays. A partition that is removed
    leaves its entry in the heap until then.
    """

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, PartitionFetchState] = {}
        self._heap: list[tuple[float, int, PartitionFetchState]] = []
        self._count = 0

    def put(self, state: PartitionFetchState) -> None:
        self._waiting[state.tp] = state
        self._count += 1
        heapq.heappush(self._heap, (state.due, self._count, state))

    def remove(self, tp: TopicPartition) -> None:
        self._waiting.pop(tp, None)

    def next_due(self) -> float | None:
        """Return when the first delay ends; None if nothing is delayed."""
        while self._heap:
            due, _, state = self._heap[0]
            if self._waiting.get(state.tp) is state:
                return due
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> PartitionFetchState | None:
        """Remove and return the partition whose delay ended first; None if no delay has ended."""
        due = self.next_due()
        if due is None or due > now:
            return None
        state = heapq.heappop(self._heap)[2]
        del self._waiting[state.tp]
        return state


def claim(waiting: dict[TopicPartition, PartitionFetchState], state: PartitionFetchState) -> bool:
    """Return whether this state was still waiting. A state that replaced it meanwhile keeps waiting."""
    if waiting.get(state.tp) is not state:
        return False
    del waiting[state.tp]
    return True
