"""Topics that are being deleted, and replicas that a reassignment took away and whose deletion is not confirmed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from klamm.model import TopicPartition

_NO_STRAYS: Final[Mapping[TopicPartition, int]] = {}


class Deletions:
    """Part of the `ControllerContext`. The collections are for reading; the methods change them."""

    def __init__(self) -> None:
        self._queued: dict[str, None] = {}
        self._started: set[str] = set()
        self._ineligible: set[str] = set()
        self._strays: dict[int, dict[TopicPartition, int]] = {}

    @property
    def queued(self) -> Collection[str]:
        """Topics to be deleted, in the order in which they were queued."""
        return self._queued

    @property
    def ineligible(self) -> Collection[str]:
        """Topics whose deletion waits for a broker or for ZooKeeper."""
        return self._ineligible

    def is_queued(self, topic: str) -> bool:
        return topic in self._queued

    def has_started(self, topic: str) -> bool:
        return topic in self._started

    def queue(self, topic: str) -> None:
        self._queued[topic] = None

    def start(self, topics: Iterable[str]) -> None:
        self._started.update(topics)

    def suspend(self, topics: Iterable[str]) -> None:
        """Make topics ineligible: their deletion waits until something changes."""
        self._ineligible.update(topics)

    def resume(self, topics: Iterable[str]) -> None:
        self._ineligible.difference_update(topics)

    def forget(self, topic: str) -> None:
        self._queued.pop(topic, None)
        self._started.discard(topic)
        self._ineligible.discard(topic)

    # ---- stray replicas ----------------------------------------------------------------------------------------------

    @property
    def strays(self) -> Mapping[int, Mapping[TopicPartition, int]]:
        """By broker: replicas that a reassignment took away, with its leader epoch, until the broker confirms."""
        return self._strays

    def strays_on(self, broker: int) -> Mapping[TopicPartition, int]:
        return self._strays.get(broker, _NO_STRAYS)

    def add_stray(self, broker: int, tp: TopicPartition, leader_epoch: int) -> None:
        self._strays.setdefault(broker, {})[tp] = leader_epoch

    def forget_strays(self, broker: int, stops: Iterable[tuple[TopicPartition, int]]) -> None:
        """The broker has deleted these, by StopReplicas of these leader epochs, whether they were strays or not.

        A StopReplica that is older than the entry deleted an earlier replica; this one was added and moved away since.
        """
        strays = self._strays.get(broker)
        if strays is not None:
            for tp, leader_epoch in stops:
                if leader_epoch < 0 or leader_epoch >= strays.get(tp, 0):
                    strays.pop(tp, None)
            if not strays:
                del self._strays[broker]
