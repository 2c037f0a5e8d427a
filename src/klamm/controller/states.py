"""The states of the controller, of partitions and of replicas, with Kafka's values, and the valid transitions."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ControllerState(IntEnum):
    """The current work of the controller: the value of the `ControllerState` gauge."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE_RECEIVED = 16
    UPDATE_FEATURES = 17
    """Kafka's, for completeness: no event of klamm has it."""

    @property
    def label(self) -> str:
        """Kafka's name of the state, such as `TopicChange`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def timer_name(self) -> str | None:
        """The timer under `kafka.controller:type=ControllerStats`; two keep their historic names, three have none."""
        return _TIMER_NAMES.get(self)


_UNTIMED: Final = frozenset(
    {ControllerState.IDLE, ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED, ControllerState.UPDATE_FEATURES}
)
_HISTORIC: Final = {
    ControllerState.BROKER_CHANGE: "LeaderElectionRateAndTimeMs",
    ControllerState.ALTER_PARTITION_REASSIGNMENT: "PartitionReassignmentRateAndTimeMs",
}
_TIMER_NAMES: Final = {
    state: _HISTORIC.get(state, f"{state.label}RateAndTimeMs") for state in ControllerState if state not in _UNTIMED
}


class PartitionState(IntEnum):
    NEW = 0
    ONLINE = 1
    OFFLINE = 2
    NON_EXISTENT = 3


class ReplicaState(IntEnum):
    NEW = 1
    ONLINE = 2
    OFFLINE = 3
    DELETION_STARTED = 4
    DELETION_SUCCESSFUL = 5
    DELETION_INELIGIBLE = 6
    NON_EXISTENT = 7


VALID_PREVIOUS_PARTITION_STATES: Final[dict[PartitionState, frozenset[PartitionState]]] = {
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
}

_RUNNING: Final = frozenset(
    {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
)
VALID_PREVIOUS_REPLICA_STATES: Final[dict[ReplicaState, frozenset[ReplicaState]]] = {
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: _RUNNING,
    ReplicaState.OFFLINE: _RUNNING,
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
}
