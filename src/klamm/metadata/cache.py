"""The broker's view of the cluster. Owner of the snapshot; `update`, from UpdateMetadata, and `forget` write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from klamm.metadata.snapshot import MetadataSnapshot, PartitionState, TopicState
from klamm.metadata.update import MetadataUpdate
from klamm.model import BrokerEndPoints, EndPoint, TopicPartition


class MetadataCache:
    """Every query reads one snapshot. Who asks twice takes `snapshot` once and asks that."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.snapshot = MetadataSnapshot()
        self._is_whole = self._has_partitions = False
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.update_listeners: list[Callable[[MetadataSnapshot, MetadataUpdate], None]] = []
        """Called with what was known before, when an update was applied."""

    def update(self, update: MetadataUpdate) -> tuple[TopicPartition, ...]:
        """Swaps in the next snapshot; returns the partitions that are gone."""
        before = self.snapshot
        self.snapshot, deleted = before.apply(update)
        self._is_whole = update.is_last_slice
        self._has_partitions |= bool(update.topics)
        for listener in self.update_listeners:
            listener(before, update)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for condition, then in waiting:
                self._when(condition, then)
        return deleted

    def forget(self, topics: Iterable[TopicState]) -> tuple[TopicPartition, ...]:
        """Takes out topics that are known to be deleted, unless they came back since; returns what is gone."""
        self.snapshot, deleted = self.snapshot.without(topics)
        return deleted

    def when_alive(self, broker_id: int, then: Callable[[], None]) -> None:
        """Calls `then` as soon as `broker_id` is known to be alive: now, or within the update that says so.

        An update that comes in slices says so with the last of them: what it tells is known by then.
        """
        self._when(lambda: broker_id in self.snapshot.brokers and self._is_whole, then)

    def when_partitions_known(self, then: Callable[[], None]) -> None:
        """Calls `then` as soon as a controller has told all that it has to tell of partitions at first."""
        self._when(lambda: self._has_partitions and self._is_whole, then)

    def _when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        if condition():
            then()
        else:
            self._waiting.append((condition, then))

    @property
    def controller_id(self) -> int:
        return self.snapshot.controller_id

    def contains(self, topic: str) -> bool:
        return topic in self.snapshot.topics

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        return self.snapshot.partition(topic, partition)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions `topic` has; None when it is not known."""
        state = self.snapshot.topics.get(topic)
        return None if state is None else len(state.partitions)

    def topic_id(self, topic: str) -> UUID:
        """The topic's id; zero when the topic or its id is not known."""
        return self.snapshot.topic_id(topic)

    def topic_name(self, topic_id: UUID) -> str | None:
        return self.snapshot.topic_names.get(topic_id)

    def alive_brokers(self) -> tuple[BrokerEndPoints, ...]:
        return tuple(self.snapshot.brokers.values())

    def has_alive_broker(self, broker_id: int) -> bool:
        return broker_id in self.snapshot.brokers

    def endpoint(self, broker_id: int, listener: str) -> EndPoint | None:
        return self.snapshot.endpoint(broker_id, listener)

    def leader_endpoint(self, topic: str, partition: int, listener: str) -> EndPoint | None:
        """Where the partition's leader can be reached through `listener`; None: unknown, dead or not there."""
        snapshot = self.snapshot
        state = snapshot.partition(topic, partition)
        return None if state is None else snapshot.endpoint(state.leader, listener)

    def has_leaders(self, topic: str, partitions: range | list[int]) -> bool:
        """Whether every one of `partitions` is known and led by a live broker."""
        snapshot = self.snapshot
        state = snapshot.topics.get(topic)
        if state is None:
            return False
        known = (state.partitions.get(index) for index in partitions)
        return all(partition is not None and partition.leader in snapshot.brokers for partition in known)
