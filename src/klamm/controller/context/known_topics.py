"""The topics that the controller knows: their ids, their replica assignments and the moves that are in progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from klamm.controller.context.replica import PartitionReplica
from klamm.model import ZERO_UUID, ReplicaAssignment, TopicPartition, make_topic_partition

_NO_ASSIGNMENT: Final = ReplicaAssignment(())
_NO_PARTITIONS: Final[Mapping[TopicPartition, None]] = {}


def collision_key(topic: str) -> str:
    """Topics with equal keys cannot exist side by side: their metric names would be the same."""
    return topic.replace(".", "_")


class Topics(Mapping[str, Mapping[int, ReplicaAssignment]]):
    """Part of the `ControllerContext`: a mapping from names to assignments by partition.

    The mappings are for reading; the methods change them and their indexes.
    """

    def __init__(self) -> None:
        self._assignments: dict[str, dict[int, ReplicaAssignment]] = {}
        self._ids: dict[str, UUID] = {}
        self._names: dict[UUID, str] = {}
        self._collision_keys: dict[str, str] = {}
        self._by_broker: dict[int, dict[TopicPartition, None]] = {}
        self._reassigning: dict[TopicPartition, None] = {}
        self._has_zk_reassignment = False
        self._next_list_s = 0.0

    def __contains__(self, topic: object) -> bool:
        return topic in self._assignments

    def __iter__(self) -> Iterator[str]:
        return iter(self._assignments)

    def __len__(self) -> int:
        return len(self._assignments)

    def __getitem__(self, topic: str) -> Mapping[int, ReplicaAssignment]:
        return self._assignments[topic]

    @property
    def ids(self) -> Mapping[str, UUID]:
        return self._ids

    @property
    def names(self) -> Mapping[UUID, str]:
        return self._names

    @property
    def collision_keys(self) -> Mapping[str, str]:
        return self._collision_keys

    @property
    def by_broker(self) -> Mapping[int, Mapping[TopicPartition, None]]:
        return self._by_broker

    @property
    def reassigning(self) -> Mapping[TopicPartition, None]:
        """Partitions that are being moved, in the order in which the moves began."""
        return self._reassigning

    @property
    def has_zk_reassignment(self) -> bool:
        """Whether `/admin/reassign_partitions` lists moves that are not finished."""
        return self._has_zk_reassignment

    @property
    def next_list_s(self) -> float:
        """The time of the monotonic clock before which the topics are not listed again."""
        return self._next_list_s

    # ---- queries -----------------------------------------------------------------------------------------------------

    def assignment(self, tp: TopicPartition) -> ReplicaAssignment:
        partitions = self._assignments.get(tp.topic)
        return _NO_ASSIGNMENT if partitions is None else partitions.get(tp.partition, _NO_ASSIGNMENT)

    def has_assignment(self, tp: TopicPartition) -> bool:
        return tp.partition in self._assignments.get(tp.topic, {})

    def partitions_of(self, topic: str) -> Iterator[TopicPartition]:
        return (TopicPartition(topic, p) for p in self._assignments.get(topic, ()))

    def all_partitions(self) -> Iterator[TopicPartition]:
        return (make_topic_partition((topic, p)) for topic, parts in self._assignments.items() for p in parts)

    def all_assignments(self) -> Iterator[tuple[TopicPartition, ReplicaAssignment]]:
        """Yield every partition with its assignment, without a lookup for each."""
        for topic, partitions in self._assignments.items():
            for partition, assignment in partitions.items():
                yield make_topic_partition((topic, partition)), assignment

    def partitions_on(self, broker: int) -> Mapping[TopicPartition, None]:
        return self._by_broker.get(broker, _NO_PARTITIONS)

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionReplica]:
        return [PartitionReplica(tp, r) for tp in partitions for r in self.assignment(tp).replicas]

    def replicas_on(self, brokers: Iterable[int]) -> list[PartitionReplica]:
        return [PartitionReplica(tp, b) for b in brokers for tp in self.partitions_on(b)]

    # ---- changes -----------------------------------------------------------------------------------------------------

    def put(self, topic: str, topic_id: UUID) -> None:
        self._assignments.setdefault(topic, {})
        if "." in topic or "_" in topic:
            self._collision_keys[collision_key(topic)] = topic
        if topic_id != ZERO_UUID:
            self._ids[topic] = topic_id
            self._names[topic_id] = topic

    def propose_id(self, topic: str, topic_id: UUID) -> None:
        """Note an id that is being written to ZooKeeper. Once it is stored, `put` makes it known in both directions."""
        self._ids[topic] = topic_id

    def put_assignment(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        partitions = self._assignments.setdefault(tp.topic, {})
        old = partitions.get(tp.partition, _NO_ASSIGNMENT)
        partitions[tp.partition] = assignment
        for replica in old.replicas:
            if replica not in assignment.replicas:
                self._discard(replica, tp)
        by_broker = self._by_broker
        for replica in assignment.replicas:
            hosted = by_broker.get(replica)
            if hosted is None:
                hosted = by_broker[replica] = {}
            hosted[tp] = None

    def put_new(self, topic: str, assignments: Mapping[int, ReplicaAssignment]) -> None:
        """Note the assignments of a topic that has none yet, as `put_assignment` would for each partition."""
        assert not self._assignments.get(topic), f"the assignments of {topic} are known already"
        self._assignments[topic] = dict(assignments)
        by_broker = self._by_broker
        for partition, assignment in assignments.items():
            tp = make_topic_partition((topic, partition))
            for replica in assignment.replicas:
                hosted = by_broker.get(replica)
                if hosted is None:
                    hosted = by_broker[replica] = {}
                hosted[tp] = None

    def remove_partition(self, tp: TopicPartition) -> None:
        for replica in self.assignment(tp).replicas:
            self._discard(replica, tp)
        self._reassigning.pop(tp, None)
        del self._assignments[tp.topic][tp.partition]

    def remove(self, topic: str) -> None:
        """Forget a topic whose partitions are removed."""
        self._assignments.pop(topic, None)
        if self._collision_keys.get(collision_key(topic)) == topic:
            del self._collision_keys[collision_key(topic)]
        topic_id = self._ids.pop(topic, None)
        if topic_id is not None:
            self._names.pop(topic_id, None)

    def start_reassignment(self, tp: TopicPartition) -> None:
        self._reassigning[tp] = None

    def end_reassignment(self, tp: TopicPartition) -> None:
        self._reassigning.pop(tp, None)

    def note_zk_reassignment(self, is_pending: bool) -> None:
        self._has_zk_reassignment = is_pending

    def put_off_next_list(self, until_s: float) -> None:
        self._next_list_s = until_s

    def _discard(self, broker: int, tp: TopicPartition) -> None:
        hosted = self._by_broker.get(broker)
        if hosted is not None:
            hosted.pop(tp, None)
            if not hosted:
                del self._by_broker[broker]
