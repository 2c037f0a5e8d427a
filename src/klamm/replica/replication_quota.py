"""Replication throttles (KIP-73): the bytes per second that out-of-sync replicas may use on this broker.

There are two quotas, one for sending as a leader and one for receiving as a follower. Topics name the throttled
replicas (`leader.replication.throttled.replicas`), and brokers have the rate (`...throttled.rate`). All bytes of these
replicas are counted, but only replicas that are not in sync are held back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from klamm.clock import Clock
from klamm.config.values import throttled_replica
from klamm.metrics import MetricsRegistry
from klamm.model import TopicPartition

log = logging.getLogger(__name__)

UNLIMITED: Final = (1 << 63) - 1
_SHORTEST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 1.0


class SampledRate:
    """Bytes per second over the last windows. The current window counts with its elapsed time."""

    def __init__(self, clock: Clock, sample_count: int, window_s: float) -> None:
        self._clock = clock
        self._sample_count = sample_count
        self._window_s = window_s
        self._samples: deque[list[float]] = deque()
        """Pairs of a window's start time and its bytes."""

    def record(self, size_bytes: int) -> None:
        now = self._clock.monotonic()
        if not self._samples or now - self._samples[-1][0] >= self._window_s:
            self._samples.append([now, 0])
        self._samples[-1][1] += size_bytes

    def measure(self) -> float:
        total, elapsed = self._total_and_elapsed()
        return total / elapsed

    def seconds_until(self, rate: float) -> float:
        """Return when the rate falls to `rate` without new bytes, at the latest when the oldest window ends."""
        total, elapsed = self._total_and_elapsed()
        if total <= rate * elapsed:
            return 0.0
        needed_s = self._sample_count * self._window_s
        if rate > 0:
            needed_s = min(needed_s, total / rate)
        return max(self._samples[0][0] + needed_s - self._clock.monotonic(), 0.0)

    def _total_and_elapsed(self) -> tuple[float, float]:
        now = self._clock.monotonic()
        while self._samples and now - self._samples[0][0] >= self._sample_count * self._window_s:
            self._samples.popleft()
        if not self._samples:
            return 0.0, self._window_s
        return sum(size for _, size in self._samples), max(now - self._samples[0][0], self._window_s)


class ReplicationQuotaManager:
    """`name` is Kafka's: LeaderReplication or FollowerReplication. Owner: the broker loop."""

    def __init__(
        self, name: str, clock: Clock, metrics: MetricsRegistry, *, sample_count: int = 11, window_s: float = 1.0
    ) -> None:
        self.name = name
        self.limit = UNLIMITED
        """Bytes per second."""
        self._rate = SampledRate(clock, sample_count, window_s)
        self._throttled: dict[str, frozenset[int] | None] = {}
        self.change_count = 0
        """Changes of the set of throttled replicas."""
        metrics.gauge("kafka.server", name, "byte-rate", self._rate.measure)
        self.bytes = metrics.meter("klamm.server", name, "ThrottledBytesPerSec")

    def throttle(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Throttle these partitions (None: all) of a topic from now on; an empty set means none."""
        if partitions == self._throttled.get(topic, frozenset()):
            return
        self.change_count += 1
        if partitions is None or partitions:
            self._throttled[topic] = partitions
        else:
            self._throttled.pop(topic, None)

    @property
    def has_throttled(self) -> bool:
        return bool(self._throttled)

    def is_throttled(self, tp: TopicPartition) -> bool:
        if tp.topic not in self._throttled:
            return False
        partitions = self._throttled[tp.topic]
        return partitions is None or tp.partition in partitions

    @property
    def is_exceeded(self) -> bool:
        return self.limit != UNLIMITED and self._rate.measure() > self.limit

    def seconds_to_wait(self) -> float:
        """Return how long withheld replicas wait before the next check.

        Short: the limit, or the set of throttled replicas, may have changed meanwhile.
        """
        return min(max(self._rate.seconds_until(self.limit), _SHORTEST_WAIT_S), _LONGEST_WAIT_S)

    def record(self, size_bytes: int) -> None:
        """Count bytes of throttled replicas."""
        if size_bytes:
            self._rate.record(size_bytes)
            self.bytes.count += size_bytes


class ReplicationQuotas:
    def __init__(self, clock: Clock, metrics: MetricsRegistry, sample_count: int = 11, window_s: float = 1.0) -> None:
        def quota(name: str) -> ReplicationQuotaManager:
            return ReplicationQuotaManager(name, clock, metrics, sample_count=sample_count, window_s=window_s)

        self.leader = quota("LeaderReplication")
        self.follower = quota("FollowerReplication")


def throttled_partitions(replicas: Sequence[str], broker_id: int) -> frozenset[int] | None:
    """Return the throttled partitions of one broker in a topic's `...throttled.replicas`; None for all of them.

    Invalid entries, which another tool may have left in ZooKeeper, throttle nothing.
    """
    if list(replicas) == ["*"]:
        return None
    pairs = filter(None, map(throttled_replica, replicas))
    return frozenset(partition for partition, broker in pairs if broker == broker_id)
