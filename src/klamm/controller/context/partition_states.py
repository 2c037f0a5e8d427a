"""The states of partitions and replicas and their leaders, with the indexes and counters that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from klamm.controller.context.deletions import Deletions
from klamm.controller.context.known_topics import Topics
from klamm.controller.context.replica import LeadershipChange, PartitionReplica
from klamm.controller.states import PartitionState, ReplicaState
from klamm.model import LeaderIsrAndControllerEpoch, TopicPartition

_NEW: Final = PartitionState.NEW
_OFFLINE: Final = PartitionState.OFFLINE
_NO_PARTITIONS: Final[Mapping[TopicPartition, None]] = {}
_NO_REPLICAS: Final[Mapping[int, ReplicaState]] = {}


class KnownVersion(NamedTuple):
    """The version of a partition's state that a broker knows."""

    broker_id: int
    leader_epoch: int
    partition_epoch: int


class PartitionStates:
    """Part of the `ControllerContext`. The mappings are for reading; the methods change them and their indexes."""

    def __init__(self, topics: Topics, deletions: Deletions) -> None:
        self._topics = topics
        self._deletions = deletions
        self.foreign: set[TopicPartition] = set()
        """Partitions whose znodes hold a leadership that this controller did not write."""
        self.other_versions: dict[TopicPartition, KnownVersion] = {}
        """Versions that leaders have asked with, and that are not those of their cached states."""
        self._leadership: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        self._by_leader: dict[int, dict[TopicPartition, None]] = {}
        self._imbalanced: set[TopicPartition] = set()
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._not_online: dict[TopicPartition, None] = {}
        self._offline_count = 0
        self._replicas: dict[TopicPartition, dict[int, ReplicaState]] = {}
        self._replica_counts: dict[str, dict[ReplicaState, int]] = {}

    # ---- leadership --------------------------------------------------------------------------------------------------

    @property
    def leadership(self) -> Mapping[TopicPartition, LeaderIsrAndControllerEpoch]:
        """The last known state of every partition that has one in ZooKeeper."""
        return self._leadership

    @property
    def preferred_replica_imbalance_count(self) -> int:
        return len(self._imbalanced)

    @property
    def by_leader(self) -> Mapping[int, Mapping[TopicPartition, None]]:
        return self._by_leader

    def led_by(self, broker: int) -> Mapping[TopicPartition, None]:
        return self._by_leader.get(broker, _NO_PARTITIONS)

    def put_leadership(
        self, tp: TopicPartition, state: LeaderIsrAndControllerEpoch, election: str = ""
    ) -> LeadershipChange | None:
        """Cache a state and return the change that the caller must report; None if nothing changed.

        `election` is the strategy, if the state is the outcome of an election. A state that a new controller reads
        for the first time is not a change.
        """
        old = self._leadership.get(tp)
        self._leadership[tp] = state
        if self.foreign:
            self.foreign.discard(tp)
        if self.other_versions:
            self.other_versions.pop(tp, None)
        leader = state.leader_and_isr.leader
        if old is None or old.leader_and_isr.leader != leader:
            if old is not None:
                self._discard_led(old.leader_and_isr.leader, tp)
            led = self._by_leader.get(leader)
            if led is None:
                led = self._by_leader[leader] = {}
            led[tp] = None
        self.check_balance(tp)
        if not election and (old is None or old == state):
            return None
        return LeadershipChange(tp, election, None if old is None else old.leader_and_isr, state.leader_and_isr)

    def is_asked_again(self, tp: TopicPartition, version: KnownVersion) -> bool:
        """Note that a leader has asked with this version, not the cached one. Return whether it did so before."""
        before = self.other_versions.get(tp)
        self.other_versions[tp] = version
        return before == version

    def start_leadership(self, states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch]) -> None:
        """Cache states that a new controller reads for the first time, as `put_leadership` would one by one."""
        self._leadership.update(states)
        by_leader, assignment = self._by_leader, self._topics.assignment
        for tp, state in states.items():
            leader = state.leader_and_isr.leader
            led = by_leader.get(leader)
            if led is None:
                led = by_leader[leader] = {}
            led[tp] = None
            if assignment(tp).replicas[:1] != (leader,):
                self.check_balance(tp)

    def check_balance(self, tp: TopicPartition) -> None:
        """Note whether a replica other than the preferred one leads. Called after changes of assignments and deletions,
        too.
        """
        if self._is_imbalanced(tp):
            self._imbalanced.add(tp)
        elif self._imbalanced:
            self._imbalanced.discard(tp)

    def _is_imbalanced(self, tp: TopicPartition) -> bool:
        """An adding replica counts as preferred once it is in sync."""
        state = self._leadership.get(tp)
        if state is None:
            return False
        assignment = self._topics.assignment(tp)
        replicas = assignment.replicas
        if not replicas or state.leader_and_isr.leader == replicas[0] or self._deletions.is_queued(tp.topic):
            return False
        preferred = replicas[0]
        return preferred not in assignment.adding_replicas or preferred in state.leader_and_isr.isr

    def _discard_led(self, leader: int, tp: TopicPartition) -> None:
        led = self._by_leader.get(leader)
        if led is not None:
            led.pop(tp, None)
            if not led:
                del self._by_leader[leader]

    # ---- partitions --------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionState]:
        return self._partitions

    @property
    def not_online(self) -> Iterable[TopicPartition]:
        """Partitions that are NEW or OFFLINE, in the order in which they became so."""
        return self._not_online

    @property
    def offline_partition_count(self) -> int:
        return self._offline_count

    def partition_state(self, tp: TopicPartition) -> PartitionState:
        return self._partitions.get(tp, PartitionState.NON_EXISTENT)

    def put_partition_state(self, tp: TopicPartition, state: PartitionState) -> None:
        if state is PartitionState.NON_EXISTENT:
            self._forget_partition_state(tp)
            return
        before = self._partitions.get(tp)
        if before is state:
            return
        if (state is _OFFLINE or before is _OFFLINE) and not self._deletions.has_started(tp.topic):
            self._offline_count += (state is _OFFLINE) - (before is _OFFLINE)
        self._partitions[tp] = state
        if state is _OFFLINE or state is _NEW:
            self._not_online[tp] = None
        else:
            self._not_online.pop(tp, None)

    def _forget_partition_state(self, tp: TopicPartition) -> None:
        was = self._partitions.pop(tp, None)
        self._not_online.pop(tp, None)
        if was is PartitionState.OFFLINE and not self._deletions.has_started(tp.topic):
            self._offline_count -= 1

    # ---- replicas ----------------------------------------------------------------------------------------------------

    def replica_state(self, replica: PartitionReplica) -> ReplicaState:
        states = self._replicas.get(replica.partition, _NO_REPLICAS)
        return states.get(replica.replica, ReplicaState.NON_EXISTENT)

    def put_replica_state(self, replica: PartitionReplica, state: ReplicaState) -> None:
        tp = replica.partition
        states = self._replicas.setdefault(tp, {})
        counts = self._replica_counts.setdefault(tp.topic, {})
        old = states.pop(replica.replica, None)
        if old is not None:
            counts[old] -= 1
        if state is not ReplicaState.NON_EXISTENT:
            states[replica.replica] = state
            counts[state] = counts.get(state, 0) + 1
        if not states:
            del self._replicas[tp]

    def start_replica_states(self, tp: TopicPartition, states: dict[int, ReplicaState]) -> None:
        """Set the first states of all replicas of a partition. This object keeps the dictionary."""
        if not states:
            return
        self._replicas[tp] = states
        counts = self._replica_counts.setdefault(tp.topic, {})
        for state in states.values():
            counts[state] = counts.get(state, 0) + 1

    def replicas_in_state(self, topic: str, *wanted: ReplicaState) -> list[PartitionReplica]:
        return [
            PartitionReplica(tp, replica)
            for tp in self._topics.partitions_of(topic)
            for replica, state in self._replicas.get(tp, _NO_REPLICAS).items()
            if state in wanted
        ]

    def replica_count(self, topic: str) -> int:
        """Replicas of a topic that have a state. Gauges call this on another loop, so it copies before it sums."""
        return sum(tuple(self._replica_counts.get(topic, {}).values()))

    def count_in_state(self, topic: str, state: ReplicaState) -> int:
        return self._replica_counts.get(topic, {}).get(state, 0)

    def are_all_replicas_in_state(self, topic: str, state: ReplicaState) -> bool:
        counts = self._replica_counts.get(topic, {})
        return all(count == 0 for other, count in counts.items() if other is not state)

    # ---- removal -----------------------------------------------------------------------------------------------------

    def remove_partition(self, tp: TopicPartition) -> None:
        self.foreign.discard(tp)
        self.other_versions.pop(tp, None)
        old = self._leadership.pop(tp, None)
        if old is not None:
            self._discard_led(old.leader_and_isr.leader, tp)
        self._imbalanced.discard(tp)
        for replica in list(self._replicas.get(tp, ())):
            self.put_replica_state(PartitionReplica(tp, replica), ReplicaState.NON_EXISTENT)
        self._forget_partition_state(tp)

    def remove_topic(self, topic: str) -> None:
        """Forget a topic whose partitions are removed."""
        self._replica_counts.pop(topic, None)
