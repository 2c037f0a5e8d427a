"""The broker's view of the cluster. `update` (UpdateMetadata) and `forget` (missed deletions) change the snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from uuid import UUID

from klamm.metadata.snapshot import AppliedUpdate, MetadataSnapshot, PartitionState, TopicState
from klamm.metadata.update import MetadataUpdate
from klamm.model import BrokerEndPoints, EndPoint, TopicPartition

log = logging.getLogger(__name__)


class MetadataCache:
    """Every query reads one snapshot. For several queries, take `snapshot` once and query that."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.snapshot = MetadataSnapshot()
        self._is_whole = self._has_partitions = False
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.update_listeners: list[Callable[[MetadataSnapshot, MetadataUpdate], None]] = []
        """Called with the snapshot before and the update, after the update was applied."""

    def prepare(self, update: MetadataUpdate) -> Generator[None, None, AppliedUpdate]:
        """Make the next snapshot in steps, without changing anything."""
        return self.snapshot.apply_in_steps(update)

    def update(self, update: MetadataUpdate, prepared: AppliedUpdate | None = None) -> tuple[TopicPartition, ...]:
        """Swap in the next snapshot, so that all of the update becomes visible at once; return the deleted partitions.

        If the snapshot has changed since `prepare`, `prepared` is discarded and the update is applied now.
        """
        before = self.snapshot
        if prepared is not None and prepared.before is before:
            self.snapshot, deleted = prepared.after, prepared.deleted
        else:
            self.snapshot, deleted = before.apply(update)
        if self.snapshot.brokers is not before.brokers:
            self._check_listeners()
        self._is_whole = update.is_last_slice
        self._has_partitions |= bool(update.topics)
        for listener in self.update_listeners:
            listener(before, update)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for condition, then in waiting:
                self._when(condition, then)
        return deleted

    def _check_listeners(self) -> None:
        """Warn if a client that uses one of this broker's listeners could not reach some other broker."""
        own = self.snapshot.brokers.get(self.broker_id)
        if own is None:
            return
        names = {endpoint.listener for endpoint in own.endpoints}
        others = {
            broker.id: ", ".join(endpoint.listener for endpoint in broker.endpoints)
            for broker in self.snapshot.brokers.values()
            if {endpoint.listener for endpoint in broker.endpoints} != names
        }
        if others:
            log.warning(
                "Listeners are not identical across brokers: this broker has %s, but broker %s",
                ", ".join(sorted(names)),
                "; broker ".join(f"{broker_id} has {listeners or 'none'}" for broker_id, listeners in others.items()),
            )

    def forget(self, topics: Iterable[TopicState]) -> tuple[TopicPartition, ...]:
        """Remove topics that are known to be deleted, unless they were created again; return the deleted partitions."""
        self.snapshot, deleted = self.snapshot.without(topics)
        return deleted

    def when_alive(self, broker_id: int, then: Callable[[], None]) -> None:
        """Call `then` as soon as `broker_id` is known to be alive: now, or within the update that reports it.

        If the update comes in slices, `then` is called with the last of them: the others are applied by then.
        """
        self._when(lambda: broker_id in self.snapshot.brokers and self._is_whole, then)

    def knows_all_partitions(self, controller_epoch: int) -> bool:
        """Whether a partition that is not in the snapshot does not exist for the controller of this epoch."""
        return self._has_partitions and self._is_whole and self.snapshot.controller_epoch >= controller_epoch

    def when_partitions_known(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as the first complete report of partitions by a controller is applied."""
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
        """Return the number of partitions of `topic`; None if it is unknown."""
        state = self.snapshot.topics.get(topic)
        return None if state is None else len(state.partitions)

    def topic_id(self, topic: str) -> UUID:
        """Return the topic's id; zero if the topic or its id is unknown."""
        return self.snapshot.topic_id(topic)

    def topic_name(self, topic_id: UUID) -> str | None:
        return self.snapshot.topic_names.get(topic_id)

    def alive_brokers(self) -> tuple[BrokerEndPoints, ...]:
        return tuple(self.snapshot.brokers.values())

    def has_alive_broker(self, broker_id: int) -> bool:
        return broker_id in self.snapshot.brokers

    def endpoint(self, broker_id: int, listener: str) -> EndPoint | None:
        return self.snapshot.endpoint(broker_id, listener)

    def get_all_partitions(self) -> set[TopicPartition]:
        """Return every partition of the cluster. The cost is that of all partitions.

        A query of Kafka's cache, for code that is read or written side by side with Kafka's. No handler needs it.
        """
        return {
            TopicPartition(topic.name, index) for topic in self.snapshot.topics.values() for index in topic.partitions
        }

    def get_partition_replica_endpoints(self, tp: TopicPartition, listener: str) -> dict[int, BrokerEndPoints]:
        """Return the live replicas of a partition that clients can reach through `listener`, by broker id.

        A query of Kafka's cache. The replica selector asks the snapshot that it has already taken.
        """
        return self.snapshot.get_partition_replica_endpoints(tp, listener)

    def has_leaders(self, topic: str, partitions: range) -> bool:
        """Return whether each of `partitions` is known and led by a live broker."""
        snapshot = self.snapshot
        state = snapshot.topics.get(topic)
        if state is None or len(state.partitions) < len(partitions):
            return False
        brokers = snapshot.brokers
        # To look up each partition takes five times as long.
        led = sum([partition.leader in brokers for index, partition in state.partitions.items() if index in partitions])
        return led == len(partitions)
