"""The controller's events: frozen values, each with the state that the controller shows while it processes it.

Events carry requests, never data that was read: znodes are read when the event is processed, so many notifications
collapse into one reading. An `Event[R]` is answered with an R. Its `refusal` is the answer to a caller whose event was
cleared, preempted or failed, or reached a broker that is not the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Final, Generic, TypeVar
from uuid import UUID

from klamm.controller.replies import (
    DONE,
    AlterPartitionResults,
    BrokerRegistration,
    ControlledShutdownResult,
    Done,
    PartitionResult,
    PartitionResults,
    ProducerIdsBlock,
    Reassignments,
    TopicResult,
    TopicResults,
    results_of,
)
from klamm.controller.requests import RequestHead
from klamm.controller.states import ControllerState
from klamm.controller.suspects import LogEnd
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import UNKNOWN_BROKER_EPOCH, ZERO_UUID, LeaderRecoveryState, TopicPartition


class ElectionType(Enum):
    PREFERRED = 0
    UNCLEAN = 1


class ElectionTrigger(Enum):
    AUTO = "auto"
    ZK = "zk"
    ADMIN_CLIENT = "admin client"


# ---- parameters of events --------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic to create: counts of -1 mean the broker's defaults; explicit `assignments` exclude both counts."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str], ...] = ()


@lazy_dataclass(frozen=True, slots=True)
class CreatablePartitions:
    """A topic to grow to `count` partitions; `assignments`, when given, has one replica list per new partition."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@lazy_dataclass(frozen=True, slots=True)
class AlterPartitionItem:
    """The ISR that a leader requests. v3 carries broker epochs with the ids; -1 disables their check."""

    partition: int
    leader_epoch: int
    new_isr: tuple[int, ...]
    partition_epoch: int
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    isr_broker_epochs: tuple[int, ...] = ()


# ---- base classes ----------------------------------------------------------------------------------------------------

R = TypeVar("R", covariant=True)
_NOT_REGISTERED: Final = "the broker stopped before it was registered"


class Event(Generic[R]):
    """An event that is answered with an R."""

    __slots__ = ()
    STATE: ClassVar[ControllerState]

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> R:
        """The answer for an event that was not carried out."""
        raise NotImplementedError


class Notification(Event[Done]):
    """An event that nobody waits for."""

    __slots__ = ()

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> Done:
        return DONE


def _topic_refusals(topics: Sequence[CreatableTopic | CreatablePartitions], error: ErrorCode) -> TopicResults:
    return TopicResults(results_of(topics, lambda topic: TopicResult(topic.name, error)), error)


# ---- role ------------------------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class Startup(Event[BrokerRegistration]):
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> BrokerRegistration:
        return BrokerRegistration(error=error, message=_NOT_REGISTERED)


@lazy_dataclass(frozen=True, slots=True)
class ControllerChange(Notification):
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class Reelect(Notification):
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect(Event[BrokerRegistration]):
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> BrokerRegistration:
        return BrokerRegistration(error=error, message=_NOT_REGISTERED)


@lazy_dataclass(frozen=True, slots=True)
class Expire(Notification):
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class ShutdownEventThread(Notification):
    STATE: ClassVar = ControllerState.CONTROLLER_SHUTDOWN


# ---- brokers ---------------------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class BrokerChange(Notification):
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class BrokerModifications(Notification):
    broker_id: int
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class RegistrationDeleted(Notification):
    """The znode of a broker is gone. If it is this broker's and its session lives, someone deleted it."""

    broker_id: int
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class ControlledShutdown(Event[ControlledShutdownResult]):
    broker_id: int
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    STATE: ClassVar = ControllerState.CONTROLLED_SHUTDOWN

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> ControlledShutdownResult:
        """Like Kafka, a broker that is not the controller answers STALE_CONTROLLER_EPOCH (11)."""
        moved = error is ErrorCode.NOT_CONTROLLER
        return ControlledShutdownResult(ErrorCode.STALE_CONTROLLER_EPOCH if moved else error)


@lazy_dataclass(frozen=True, slots=True)
class LogEndsReceived(Notification):
    """Log ends of a broker, as reported by that incarnation; None for unknown ones."""

    broker_id: int
    broker_epoch: int
    log_ends: tuple[tuple[TopicPartition, LogEnd | None], ...]
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class UncleanReplicaWaitOver(Notification):
    """Partitions have waited long enough for missing in-sync replicas."""

    STATE: ClassVar = ControllerState.BROKER_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class LogDirEventNotification(Notification):
    STATE: ClassVar = ControllerState.LOG_DIR_CHANGE


# ---- topics ----------------------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class TopicChange(Notification):
    STATE: ClassVar = ControllerState.TOPIC_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class PartitionModifications(Notification):
    topic: str
    STATE: ClassVar = ControllerState.TOPIC_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class TopicDeletion(Notification):
    STATE: ClassVar = ControllerState.TOPIC_DELETION


@lazy_dataclass(frozen=True, slots=True)
class TopicDeletionStopReplicaResponseReceived(Notification):
    """The answer to a StopReplica that deletes; a request error fails every partition of the request.

    `leader_epochs` are the request's, in the order of `partition_errors`.
    """

    broker_id: int
    head: RequestHead
    request_error: ErrorCode
    partition_errors: tuple[tuple[TopicPartition, ErrorCode], ...]
    leader_epochs: tuple[int, ...]
    STATE: ClassVar = ControllerState.TOPIC_DELETION


@lazy_dataclass(frozen=True, slots=True)
class CreateTopics(Event[TopicResults]):
    topics: tuple[CreatableTopic, ...]
    validate_only: bool = False
    STATE: ClassVar = ControllerState.TOPIC_CHANGE

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> TopicResults:
        return _topic_refusals(self.topics, error)


@lazy_dataclass(frozen=True, slots=True)
class CreatePartitions(Event[TopicResults]):
    topics: tuple[CreatablePartitions, ...]
    validate_only: bool = False
    STATE: ClassVar = ControllerState.TOPIC_CHANGE

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> TopicResults:
        return _topic_refusals(self.topics, error)


@lazy_dataclass(frozen=True, slots=True)
class DeleteTopics(Event[TopicResults]):
    """Topics by name and by id; results are in that order. An id never deletes a newer topic of the same name."""

    names: tuple[str, ...]
    topic_ids: tuple[UUID, ...] = ()
    STATE: ClassVar = ControllerState.TOPIC_DELETION

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> TopicResults:
        def refused(topic: str | UUID) -> TopicResult:
            return TopicResult(topic, error) if isinstance(topic, str) else TopicResult("", error, topic_id=topic)

        return TopicResults(results_of((*self.names, *self.topic_ids), refused), error)


# ---- elections, reassignment -----------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class ReplicaLeaderElection(Event[PartitionResults]):
    """`partitions` None: those listed in the election znode (ZK trigger) or all partitions (admin client)."""

    partitions: tuple[TopicPartition, ...] | None
    election_type: ElectionType = ElectionType.PREFERRED
    trigger: ElectionTrigger = ElectionTrigger.ADMIN_CLIENT
    STATE: ClassVar = ControllerState.MANUAL_LEADER_BALANCE

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> PartitionResults:
        return PartitionResults(results_of(self.partitions or (), lambda tp: PartitionResult(tp, error)), error)


@lazy_dataclass(frozen=True, slots=True)
class AutoPreferredReplicaLeaderElection(Notification):
    STATE: ClassVar = ControllerState.AUTO_LEADER_BALANCE


@lazy_dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnable(Notification):
    """The broker default of `unclean.leader.election.enable` changed; brokers that are not active remember it too."""

    enabled: bool = True
    STATE: ClassVar = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE


@lazy_dataclass(frozen=True, slots=True)
class TopicUncleanLeaderElectionEnable(Notification):
    topic: str
    STATE: ClassVar = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE


@lazy_dataclass(frozen=True, slots=True)
class ZkPartitionReassignment(Notification):
    STATE: ClassVar = ControllerState.ALTER_PARTITION_REASSIGNMENT


@lazy_dataclass(frozen=True, slots=True)
class ApiPartitionReassignment(Event[PartitionResults]):
    """A target of None cancels the partition's reassignment."""

    reassignments: tuple[tuple[TopicPartition, tuple[int, ...] | None], ...]
    STATE: ClassVar = ControllerState.ALTER_PARTITION_REASSIGNMENT

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> PartitionResults:
        return PartitionResults(results_of(self.reassignments, lambda moved: PartitionResult(moved[0], error)), error)


@lazy_dataclass(frozen=True, slots=True)
class PartitionReassignmentIsrChange(Notification):
    partition: TopicPartition
    STATE: ClassVar = ControllerState.ALTER_PARTITION_REASSIGNMENT


@lazy_dataclass(frozen=True, slots=True)
class ListPartitionReassignments(Event[Reassignments]):
    partitions: tuple[TopicPartition, ...] | None = None
    STATE: ClassVar = ControllerState.LIST_PARTITION_REASSIGNMENT

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> Reassignments:
        return Reassignments(error=error)


# ---- ISR, responses, ids ---------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class IsrChangeNotification(Notification):
    STATE: ClassVar = ControllerState.ISR_CHANGE


@lazy_dataclass(frozen=True, slots=True)
class AlterPartition(Event[AlterPartitionResults]):
    """`version` is the version of the wire request: it decides how an ineligible replica is answered."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[AlterPartitionItem, ...]
    version: int = 3
    STATE: ClassVar = ControllerState.ISR_CHANGE

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> AlterPartitionResults:
        return AlterPartitionResults(error)


@lazy_dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived(Notification):
    """`leader_epochs` are the request's, in the order of `partition_errors`."""

    broker_id: int
    head: RequestHead
    error: ErrorCode
    partition_errors: tuple[tuple[TopicPartition, ErrorCode], ...]
    leader_epochs: tuple[int, ...] = ()
    STATE: ClassVar = ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED


@lazy_dataclass(frozen=True, slots=True)
class UpdateMetadataResponseReceived(Notification):
    broker_id: int
    head: RequestHead
    error: ErrorCode
    STATE: ClassVar = ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED


@lazy_dataclass(frozen=True, slots=True)
class AllocateProducerIds(Event[ProducerIdsBlock]):
    broker_id: int
    broker_epoch: int
    STATE: ClassVar = ControllerState.IDLE

    def refusal(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> ProducerIdsBlock:
        return ProducerIdsBlock(error)


ControllerEvent = (
    Startup
    | ControllerChange
    | Reelect
    | RegisterBrokerAndReelect
    | Expire
    | ShutdownEventThread
    | BrokerChange
    | BrokerModifications
    | RegistrationDeleted
    | LogEndsReceived
    | UncleanReplicaWaitOver
    | TopicChange
    | PartitionModifications
    | TopicDeletion
    | TopicDeletionStopReplicaResponseReceived
    | ZkPartitionReassignment
    | ApiPartitionReassignment
    | PartitionReassignmentIsrChange
    | ListPartitionReassignments
    | AutoPreferredReplicaLeaderElection
    | ReplicaLeaderElection
    | UncleanLeaderElectionEnable
    | TopicUncleanLeaderElectionEnable
    | ControlledShutdown
    | LeaderAndIsrResponseReceived
    | UpdateMetadataResponseReceived
    | LogDirEventNotification
    | IsrChangeNotification
    | CreateTopics
    | CreatePartitions
    | DeleteTopics
    | AlterPartition
    | AllocateProducerIds
)
