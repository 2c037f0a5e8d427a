"""What the controller knows of the cluster. Owner: the task that processes events; nobody else reads or writes it.

Indexes (by broker, by leader, not online) and counters are kept with every change, so that an event costs what it
changes: nothing here walks over all partitions, except `all_partitions`, which failover uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from klamm.clock import Clock
from klamm.controller.assignment import Rng
from klamm.controller.config import ControllerConfig
from klamm.controller.states import PartitionState, ReplicaState
from klamm.controller.suspects import Suspects
from klamm.model import (
    NO_CONTROLLER,
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    ZERO_UUID,
    BrokerEndPoints,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)


class LeadershipChange(NamedTuple):
    """A change of a partition's leader or ISR. `strategy` is empty unless the change is the outcome of an election."""

    partition: TopicPartition
    strategy: str
    before: LeaderAndIsr | None
    after: LeaderAndIsr


class PartitionReplica(NamedTuple):
    """One replica of one partition, on one broker."""

    partition: TopicPartition
    replica: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.replica}"


def collision_key(topic: str) -> str:
    """Topics with equal keys cannot live side by side: their metric names would be the same."""
    return topic.replace(".", "_")


_NO_ASSIGNMENT = ReplicaAssignment(())
_UNHAPPY = frozenset({PartitionState.NEW, PartitionState.OFFLINE})


@dataclass(slots=True)
class ControllerContext:
    config: ControllerConfig
    clock: Clock
    rng: Rng
    active_controller_id: int = NO_CONTROLLER
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    epoch: int = 0
    epoch_zk_version: int = 0

    next_topic_list_s: float = 0.0

    live_or_shutting_down: dict[int, BrokerEndPoints] = field(default_factory=dict)
    shutting_down: set[int] = field(default_factory=set)
    suspects: Suspects = field(default_factory=Suspects)

    topic_ids: dict[str, UUID] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    topics: dict[str, dict[int, ReplicaAssignment]] = field(default_factory=dict)
    collision_keys: dict[str, str] = field(default_factory=dict)
    leadership: dict[TopicPartition, LeaderIsrAndControllerEpoch] = field(default_factory=dict)
    reassigning: dict[TopicPartition, None] = field(default_factory=dict)
    has_zk_reassignment: bool = False

    partition_states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    replica_states: dict[TopicPartition, dict[int, ReplicaState]] = field(default_factory=dict)
    offline_dirs: dict[int, set[TopicPartition]] = field(default_factory=dict)
    pending_stray_deletes: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    """Replicas that a reassignment took away, by broker, with the leader epoch of that; until the broker answers."""

    topics_to_be_deleted: dict[str, None] = field(default_factory=dict)
    topics_with_deletion_started: set[str] = field(default_factory=set)
    topics_ineligible_for_deletion: set[str] = field(default_factory=set)

    partitions_by_broker: dict[int, dict[TopicPartition, None]] = field(default_factory=dict)
    partitions_by_leader: dict[int, dict[TopicPartition, None]] = field(default_factory=dict)
    not_online: dict[TopicPartition, None] = field(default_factory=dict)
    replica_state_counts: dict[str, dict[ReplicaState, int]] = field(default_factory=dict)
    partition_count: int = 0
    offline_partition_count: int = 0
    preferred_replica_imbalance_count: int = 0
    unclean_elections: int = 0

    # ---- brokers -----------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self.active_controller_id == self.config.broker_id

    @property
    def live_broker_ids(self) -> frozenset[int]:
        """Brokers that may lead and join an ISR: those that are shutting down are not among them."""
        return frozenset(b for b in self.live_or_shutting_down if b not in self.shutting_down)

    def broker_ids(self) -> tuple[int, ...]:
        """All brokers that receive control requests, in order."""
        return tuple(sorted(self.live_or_shutting_down))

    def is_replica_online(self, broker: int, tp: TopicPartition, *, include_shutting_down: bool = False) -> bool:
        if broker not in self.live_or_shutting_down or (broker in self.shutting_down and not include_shutting_down):
            return False
        return tp not in self.offline_dirs.get(broker, ())

    def online_replicas(self, tp: TopicPartition, *, include_shutting_down: bool = False) -> tuple[int, ...]:
        replicas = self.assignment(tp).replicas
        if not self.offline_dirs and (include_shutting_down or not self.shutting_down):  # nearly always
            live = self.live_or_shutting_down
            return tuple([r for r in replicas if r in live])
        return tuple(r for r in replicas if self.is_replica_online(r, tp, include_shutting_down=include_shutting_down))

    def add_broker(self, broker: BrokerEndPoints) -> None:
        self.live_or_shutting_down[broker.id] = broker

    def remove_broker(self, broker: int) -> None:
        self.live_or_shutting_down.pop(broker, None)
        self.shutting_down.discard(broker)
        self.offline_dirs.pop(broker, None)
        self.suspects.remove_broker(broker)

    # ---- topics and assignments --------------------------------------------------------------------------------------

    def assignment(self, tp: TopicPartition) -> ReplicaAssignment:
        partitions = self.topics.get(tp.topic)
        return _NO_ASSIGNMENT if partitions is None else partitions.get(tp.partition, _NO_ASSIGNMENT)

    def has_assignment(self, tp: TopicPartition) -> bool:
        return tp.partition in self.topics.get(tp.topic, {})

    def put_topic(self, topic: str, topic_id: UUID) -> None:
        self.topics.setdefault(topic, {})
        if "." in topic or "_" in topic:
            self.collision_keys[collision_key(topic)] = topic
        if topic_id != ZERO_UUID:
            self.topic_ids[topic] = topic_id
            self.topic_names[topic_id] = topic

    def put_assignment(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        partitions = self.topics.setdefault(tp.topic, {})
        old = partitions.get(tp.partition, _NO_ASSIGNMENT)
        if tp in self.leadership:
            before = self._imbalance(tp)
            partitions[tp.partition] = assignment
            self.preferred_replica_imbalance_count += self._imbalance(tp) - before
        else:
            partitions[tp.partition] = assignment
        for replica in old.replicas:
            if replica not in assignment.replicas:
                self._discard(self.partitions_by_broker, replica, tp)
        by_broker = self.partitions_by_broker
        for replica in assignment.replicas:
            led = by_broker.get(replica)
            if led is None:
                led = by_broker[replica] = {}
            led[tp] = None

    def remove_topic(self, topic: str) -> None:
        for tp in list(self.partitions_of(topic)):
            self._remove_partition(tp)
        self.topics.pop(topic, None)
        if self.collision_keys.get(collision_key(topic)) == topic:
            del self.collision_keys[collision_key(topic)]
        topic_id = self.topic_ids.pop(topic, None)
        if topic_id is not None:
            self.topic_names.pop(topic_id, None)
        self.topics_to_be_deleted.pop(topic, None)
        self.topics_with_deletion_started.discard(topic)
        self.topics_ineligible_for_deletion.discard(topic)
        self.replica_state_counts.pop(topic, None)

    def _remove_partition(self, tp: TopicPartition) -> None:
        self.remove_leadership(tp)
        for replica in self.assignment(tp).replicas:
            self._discard(self.partitions_by_broker, replica, tp)
        for replica in list(self.replica_states.get(tp, ())):
            self.put_replica_state(PartitionReplica(tp, replica), ReplicaState.NON_EXISTENT)
        self._forget_partition_state(tp)
        self.reassigning.pop(tp, None)
        self.suspects.forget(tp)
        self.suspects.left.pop(tp, None)
        for tps in self.offline_dirs.values():
            tps.discard(tp)
        del self.topics[tp.topic][tp.partition]

    def partitions_of(self, topic: str) -> Iterator[TopicPartition]:
        return (TopicPartition(topic, p) for p in self.topics.get(topic, ()))

    def all_partitions(self) -> Iterator[TopicPartition]:
        return (TopicPartition(topic, p) for topic, partitions in self.topics.items() for p in partitions)

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionReplica]:
        return [PartitionReplica(tp, r) for tp in partitions for r in self.assignment(tp).replicas]

    def replicas_on(self, brokers: Iterable[int]) -> list[PartitionReplica]:
        return [PartitionReplica(tp, b) for b in brokers for tp in self.partitions_by_broker.get(b, ())]

    def forget_stray_deletes(self, broker: int, stops: Iterable[tuple[TopicPartition, int]]) -> None:
        """The broker has deleted these, whether they were strays or not: by StopReplicas of these leader epochs.

        One that is older than the entry deleted an earlier replica; this one has come and gone since.
        """
        strays = self.pending_stray_deletes.get(broker)
        if strays is not None:
            for tp, leader_epoch in stops:
                if leader_epoch < 0 or leader_epoch >= strays.get(tp, 0):
                    strays.pop(tp, None)
            if not strays:
                del self.pending_stray_deletes[broker]

    def is_queued_for_deletion(self, topic: str) -> bool:
        return topic in self.topics_to_be_deleted

    # ---- leadership --------------------------------------------------------------------------------------------------

    def put_leadership(
        self, tp: TopicPartition, state: LeaderIsrAndControllerEpoch, election: str = ""
    ) -> LeadershipChange | None:
        """Cache a state and return the change that the caller must report; None if nothing changed.

        `election` is the strategy, if the state is the outcome of an election. A state that a new controller reads
        for the first time is not a change.
        """
        old = self.leadership.get(tp)
        self.leadership[tp] = state
        leader = state.leader_and_isr.leader
        self.preferred_replica_imbalance_count += self._imbalance_in(tp, state)
        if old is not None:
            self.preferred_replica_imbalance_count -= self._imbalance_in(tp, old)
        if old is None:
            self.partition_count += 1
        elif old.leader_and_isr.leader != leader:
            self._discard(self.partitions_by_leader, old.leader_and_isr.leader, tp)
        led = self.partitions_by_leader.get(leader)
        if led is None:
            led = self.partitions_by_leader[leader] = {}
        led[tp] = None
        if not election and (old is None or old == state):
            return None
        return LeadershipChange(tp, election, None if old is None else old.leader_and_isr, state.leader_and_isr)

    def remove_leadership(self, tp: TopicPartition) -> None:
        self.preferred_replica_imbalance_count -= self._imbalance(tp)
        old = self.leadership.pop(tp, None)
        if old is not None:
            self.partition_count -= 1
            self._discard(self.partitions_by_leader, old.leader_and_isr.leader, tp)

    def has_online_leader(self, tp: TopicPartition) -> bool:
        state = self.leadership.get(tp)
        return state is not None and self.is_replica_online(state.leader_and_isr.leader, tp)

    def leads_for_want_of_another(self, tp: TopicPartition, state: LeaderAndIsr) -> bool:
        """Whether the leader was moved away, but nobody who is assigned and in sync is there to take over.

        Then it holds the only good copy: it goes on, and its leader epoch does not change, or its broker would take
        the log for a stray.
        """
        assigned = self.assignment(tp).replicas
        if state.leader in assigned or not self.is_replica_online(state.leader, tp):
            return False
        suspects = self.suspects.of(tp)
        return not any(r in assigned and r not in suspects and self.is_replica_online(r, tp) for r in state.isr)

    def partitions_without_online_leader(self, brokers: Iterable[int]) -> list[TopicPartition]:
        """Partitions whose leader is one of `brokers` (or none at all) and cannot serve; deleting topics left out."""
        led = (tp for b in (*sorted(set(brokers)), NO_LEADER) for tp in self.partitions_by_leader.get(b, ()))
        return [tp for tp in led if not self.is_queued_for_deletion(tp.topic) and not self.has_online_leader(tp)]

    # ---- states ------------------------------------------------------------------------------------------------------

    def partition_state(self, tp: TopicPartition) -> PartitionState:
        return self.partition_states.get(tp, PartitionState.NON_EXISTENT)

    def put_partition_state(self, tp: TopicPartition, state: PartitionState) -> None:
        if state is PartitionState.NON_EXISTENT:
            self._forget_partition_state(tp)
            return
        if tp.topic not in self.topics_with_deletion_started:
            was_offline = self.partition_states.get(tp) is PartitionState.OFFLINE
            self.offline_partition_count += (state is PartitionState.OFFLINE) - was_offline
        self.partition_states[tp] = state
        if state in _UNHAPPY:
            self.not_online[tp] = None
        else:
            self.not_online.pop(tp, None)

    def _forget_partition_state(self, tp: TopicPartition) -> None:
        was = self.partition_states.pop(tp, None)
        self.not_online.pop(tp, None)
        if was is PartitionState.OFFLINE and tp.topic not in self.topics_with_deletion_started:
            self.offline_partition_count -= 1

    def replica_state(self, replica: PartitionReplica) -> ReplicaState:
        return self.replica_states.get(replica.partition, {}).get(replica.replica, ReplicaState.NON_EXISTENT)

    def put_replica_state(self, replica: PartitionReplica, state: ReplicaState) -> None:
        tp = replica.partition
        states = self.replica_states.setdefault(tp, {})
        counts = self.replica_state_counts.setdefault(tp.topic, {})
        old = states.pop(replica.replica, None)
        if old is not None:
            counts[old] -= 1
        if state is not ReplicaState.NON_EXISTENT:
            states[replica.replica] = state
            counts[state] = counts.get(state, 0) + 1
        if not states:
            del self.replica_states[tp]

    def start_replica_states(self, tp: TopicPartition, states: dict[int, ReplicaState]) -> None:
        """The first states of all replicas of a partition, at once; they become the context's."""
        if not states:
            return
        self.replica_states[tp] = states
        counts = self.replica_state_counts.setdefault(tp.topic, {})
        for state in states.values():
            counts[state] = counts.get(state, 0) + 1

    def replicas_in_state(self, topic: str, *wanted: ReplicaState) -> list[PartitionReplica]:
        return [
            PartitionReplica(tp, replica)
            for tp in self.partitions_of(topic)
            for replica, state in self.replica_states.get(tp, {}).items()
            if state in wanted
        ]

    def count_in_state(self, topic: str, state: ReplicaState) -> int:
        return self.replica_state_counts.get(topic, {}).get(state, 0)

    def are_all_replicas_in_state(self, topic: str, state: ReplicaState) -> bool:
        counts = self.replica_state_counts.get(topic, {})
        return all(count == 0 for other, count in counts.items() if other is not state)

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _imbalance(self, tp: TopicPartition) -> int:
        """1 if another than the preferred replica leads; an adding replica counts as preferred once it is in sync."""
        state = self.leadership.get(tp)
        return 0 if state is None else self._imbalance_in(tp, state)

    def _imbalance_in(self, tp: TopicPartition, state: LeaderIsrAndControllerEpoch) -> int:
        assignment = self.assignment(tp)
        if not assignment.replicas or tp.topic in self.topics_to_be_deleted:
            return 0
        preferred = assignment.replicas[0]
        if state.leader_and_isr.leader == preferred:
            return 0
        return int(preferred not in assignment.adding_replicas or preferred in state.leader_and_isr.isr)

    def queue_for_deletion(self, topic: str) -> None:
        """From here on the topic counts neither as imbalanced nor takes part in elections and reassignments."""
        if topic in self.topics_to_be_deleted:
            return
        self.preferred_replica_imbalance_count -= sum(self._imbalance(tp) for tp in self.partitions_of(topic))
        self.topics_to_be_deleted[topic] = None
        for tp in self.partitions_of(topic):
            self.reassigning.pop(tp, None)

    @staticmethod
    def _discard(index: dict[int, dict[TopicPartition, None]], key: int, tp: TopicPartition) -> None:
        entries = index.get(key)
        if entries is not None:
            entries.pop(tp, None)
            if not entries:
                del index[key]
