"""A consistent view of the cluster, and its successor after an update.

Nothing in a snapshot changes, and `apply` shares everything the update does not touch: one changed partition costs
the same among a thousand as among a hundred thousand. Readers take the reference once and keep using it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from klamm.lazy_dataclass import lazy_dataclass
from klamm.metadata.trie import TrieMap
from klamm.metadata.update import MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import NO_CONTROLLER, NO_EPOCH, ZERO_UUID, BrokerEndPoints, EndPoint, TopicPartition

__all__ = ["AppliedUpdate", "MetadataSnapshot", "PartitionState", "TopicState"]

PARTITIONS_PER_STEP: Final = 100
"""Partitions that one step of `apply_in_steps` changes: a quarter of a millisecond."""


@lazy_dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    topic_id: UUID
    partitions: TrieMap[int, PartitionState]

    def sorted_partitions(self) -> list[PartitionState]:
        return sorted(self.partitions.values(), key=_partition_index)


class AppliedUpdate(NamedTuple):
    """An update applied to the snapshot `before`: the next snapshot, and the partitions that the update deleted."""

    before: MetadataSnapshot
    after: MetadataSnapshot
    deleted: tuple[TopicPartition, ...]


@lazy_dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """`controller_epoch` is the sender's epoch, `update_count` the number of updates applied here.

    The controller knows how far a broker lags: by its unacknowledged requests.
    """

    topics: TrieMap[str, TopicState] = field(default_factory=TrieMap)
    topic_names: TrieMap[UUID, str] = field(default_factory=TrieMap)
    brokers: Mapping[int, BrokerEndPoints] = field(default_factory=lambda: MappingProxyType({}))
    controller_id: int = NO_CONTROLLER
    controller_epoch: int = NO_EPOCH
    update_count: int = 0
    partition_count: int = 0

    def apply(self, update: MetadataUpdate) -> tuple[MetadataSnapshot, tuple[TopicPartition, ...]]:
        """`apply_in_steps` at once: the snapshot after `update`, and the deleted partitions."""
        steps = self.apply_in_steps(update)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                applied: AppliedUpdate = done.value
                return applied.after, applied.deleted

    def apply_in_steps(self, update: MetadataUpdate) -> Generator[None, None, AppliedUpdate]:
        """Apply an update, with a pause after `PARTITIONS_PER_STEP` partitions.

        A partition never goes back to an older state (`PartitionState.is_older_than`): an update that was held up and
        overtaken must not undo the newer one. For a deletion (leader -2) only the topic id is checked.
        """
        topics, topic_names = self.topics, self.topic_names
        changed: dict[str, TopicState | None] = {}
        names: dict[UUID, str | None] = {}
        deleted: list[TopicPartition] = []
        growth = 0
        room = PARTITIONS_PER_STEP
        for change in update.topics:
            before = changed[change.name] if change.name in changed else topics.get(change.name)
            after, gone = before, list[TopicPartition]()
            if before is not None and _is_other_incarnation(before, change):
                if all(state.is_deletion for state in change.partitions):
                    continue
                # The new incarnation deletes all partitions of the previous one, also those with the same number now.
                after, gone = None, [TopicPartition(before.name, index) for index in sorted(before.partitions)]
            for part in _parts(change):
                if room <= 0:
                    topics, topic_names = topics.with_changes(changed), topic_names.with_changes(names)
                    changed, names = {}, {}
                    yield
                    room = PARTITIONS_PER_STEP
                room -= 1 + len(part.partitions)
                after, some = _change_topic(after, part)
                gone += some
            if after is before:
                continue
            changed[change.name] = after
            growth += _size(after) - _size(before)
            deleted += dict.fromkeys(gone)
            _change_name(names, before, after)
        after_snapshot = MetadataSnapshot(
            topics=topics.with_changes(changed),
            topic_names=topic_names.with_changes(names),
            brokers=self._brokers_after(update.live_brokers),
            controller_id=max(update.controller_id, NO_CONTROLLER),
            controller_epoch=update.controller_epoch,
            update_count=self.update_count + 1,
            partition_count=self.partition_count + growth,
        )
        return AppliedUpdate(self, after_snapshot, tuple(deleted))

    def without(self, topics: Iterable[TopicState]) -> tuple[MetadataSnapshot, tuple[TopicPartition, ...]]:
        """Return the snapshot without `topics`, and their partitions.

        A topic that was created again since `topics` were taken is kept. Without ids, a newer update shows it.
        """
        known = ((topic, self.topics.get(topic.name)) for topic in topics)
        gone = [now for then, now in known if now is not None and _is_same_incarnation(then, now)]
        deleted = tuple(TopicPartition(topic.name, index) for topic in gone for index in sorted(topic.partitions))
        if not gone:
            return self, ()
        names: dict[UUID, str | None] = {}
        for topic in gone:
            _change_name(names, topic, None)
        after = replace(
            self,
            topics=self.topics.with_changes(dict.fromkeys((topic.name for topic in gone), None)),
            topic_names=self.topic_names.with_changes(names),
            partition_count=self.partition_count - len(deleted),
        )
        return after, deleted

    def _brokers_after(self, live: Iterable[BrokerEndPoints]) -> Mapping[int, BrokerEndPoints]:
        brokers = {broker.id: broker for broker in live}
        return self.brokers if brokers == self.brokers else MappingProxyType(brokers)

    def topic(self, name: str) -> TopicState | None:
        return self.topics.get(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        return self.topic_names.get(topic_id)

    def topic_id(self, name: str) -> UUID:
        topic = self.topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        state = self.topics.get(topic)
        return None if state is None else state.partitions.get(partition)

    def endpoint(self, broker_id: int, listener: str) -> EndPoint | None:
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.endpoint(listener)

    def get_partition_replica_endpoints(self, tp: TopicPartition, listener: str) -> dict[int, BrokerEndPoints]:
        """Return the live replicas of a partition that clients can reach through `listener`, by broker id."""
        state = self.partition(*tp)
        replicas = () if state is None else state.replicas
        nodes = (self.brokers.get(broker_id) for broker_id in replicas)
        return {node.id: node for node in nodes if node is not None and node.endpoint(listener) is not None}

    def has_alive_broker(self, broker_id: int) -> bool:
        return broker_id in self.brokers

    def sorted_topics(self) -> list[TopicState]:
        return sorted(self.topics.values(), key=lambda topic: topic.name)


def _partition_index(state: PartitionState) -> int:
    return state.partition


def _size(topic: TopicState | None) -> int:
    return 0 if topic is None else len(topic.partitions)


def _parts(change: TopicUpdate) -> Iterator[TopicUpdate]:
    """Split the change of a topic with very many partitions."""
    if len(change.partitions) <= PARTITIONS_PER_STEP:
        yield change
        return
    for start in range(0, len(change.partitions), PARTITIONS_PER_STEP):
        yield replace(change, partitions=change.partitions[start : start + PARTITIONS_PER_STEP])


def _change_topic(
    before: TopicState | None, change: TopicUpdate
) -> tuple[TopicState | None, tuple[TopicPartition, ...]]:
    """Return the topic after the change (None: deleted) and its deleted partitions. It is of the same incarnation."""
    known: TrieMap[int, PartitionState] = before.partitions if before is not None else TrieMap()
    changes: dict[int, PartitionState | None] = {}
    deleted: list[TopicPartition] = []
    for state in change.partitions:
        current = known.get(state.partition)
        if state.is_deletion:
            changes[state.partition] = None
            deleted.append(state.topic_partition)
        elif current is None or not state.is_older_than(current):
            changes[state.partition] = state
    partitions = known.with_changes(changes)
    if not len(partitions):
        return None, tuple(deleted)
    if before is None:
        return TopicState(change.name, change.topic_id, partitions), tuple(deleted)
    return replace(before, topic_id=change.topic_id, partitions=partitions), tuple(deleted)


def _is_other_incarnation(before: TopicState, change: TopicUpdate) -> bool:
    """A topic deleted and created again under its name has another id; its epochs start again."""
    return change.topic_id != before.topic_id and ZERO_UUID not in (change.topic_id, before.topic_id)


def _is_same_incarnation(then: TopicState, now: TopicState) -> bool:
    return now is then or (now.topic_id == then.topic_id and now.topic_id != ZERO_UUID)


def _change_name(names: dict[UUID, str | None], before: TopicState | None, after: TopicState | None) -> None:
    old_id = ZERO_UUID if before is None else before.topic_id
    new_id = ZERO_UUID if after is None else after.topic_id
    if old_id != new_id and old_id != ZERO_UUID:
        names[old_id] = None
    if after is not None and new_id not in (old_id, ZERO_UUID):
        names[new_id] = after.name
