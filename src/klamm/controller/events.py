"""The controller's events: frozen values, each with the state that the controller shows while it processes it.

Events carry what was asked, never what was read: znodes are read when the event is processed, so many notifications
collapse into one reading. `refusal(event, error)` is the answer to a caller whose event was cleared, preempted, failed
or met a broker that is not the controller.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar
from uuid import UUID

from klamm.controller.replies import (
    DONE,
    AlterPartitionResults,
    BrokerRegistration,
    ControlledShutdownResult,
    EventReply,
    PartitionResult,
    PartitionResults,
    ProducerIdsBlock,
    Reassignments,
    TopicResult,
    TopicResults,
)
from klamm.controller.requests import RequestHead
from klamm.controller.states import ControllerState
from klamm.controller.suspects import LogEnd
from klamm.errors import ErrorCode
from klamm.frozen import dataclass
from klamm.model import UNKNOWN_BROKER_EPOCH, ZERO_UUID, LeaderRecoveryState, TopicPartition


class ElectionType(Enum):
    PREFERRED = 0
    UNCLEAN = 1


class ElectionTrigger(Enum):
    AUTO = "auto"
    ZK = "zk"
    ADMIN_CLIENT = "admin client"


# ---- what callers put into events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic to create: counts of -1 mean the broker's defaults; explicit `assignments` exclude both counts."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CreatablePartitions:
    """A topic to grow to `count` partitions; `assignments`, when given, has one replica list a new partition."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitionItem:
    """The ISR that a leader asks for. v3 carries broker epochs beside the ids; -1 means that they are not checked."""

    partition: int
    leader_epoch: int
    new_isr: tuple[int, ...]
    partition_epoch: int
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    isr_broker_epochs: tuple[int, ...] = ()


# ---- role ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Startup:
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class ControllerChange:
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class Reelect:
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect:
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class Expire:
    STATE: ClassVar = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class ShutdownEventThread:
    STATE: ClassVar = ControllerState.CONTROLLER_SHUTDOWN


# ---- brokers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerChange:
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerModifications:
    broker_id: int
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class RegistrationDeleted:
    """The znode of a broker is gone. If this broker's session is not, somebody has deleted it."""

    broker_id: int
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    broker_id: int
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    STATE: ClassVar = ControllerState.CONTROLLED_SHUTDOWN


@dataclass(frozen=True, slots=True)
class LogEndsReceived:
    """Where the logs of a broker end, as that incarnation of it answered; None where it cannot tell."""

    broker_id: int
    broker_epoch: int
    log_ends: tuple[tuple[TopicPartition, LogEnd | None], ...]
    STATE: ClassVar = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class UncleanReplicaWaitOver:
    """Partitions have waited long enough for in-sync replicas that are missing."""

    STATE: ClassVar = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class LogDirEventNotification:
    STATE: ClassVar = ControllerState.LOG_DIR_CHANGE


# ---- topics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicChange:
    STATE: ClassVar = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class PartitionModifications:
    topic: str
    STATE: ClassVar = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    STATE: ClassVar = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class TopicDeletionStopReplicaResponseReceived:
    """The answer to a StopReplica that deletes; a request error fails every partition of the request.

    `leader_epochs` are the request's, in the order of `partition_errors`.
    """

    broker_id: int
    head: RequestHead
    request_error: ErrorCode
    partition_errors: tuple[tuple[TopicPartition, ErrorCode], ...]
    leader_epochs: tuple[int, ...]
    STATE: ClassVar = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class CreateTopics:
    topics: tuple[CreatableTopic, ...]
    validate_only: bool = False
    STATE: ClassVar = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    topics: tuple[CreatablePartitions, ...]
    validate_only: bool = False
    STATE: ClassVar = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Topics by name and by id; the results come in that order. An id never deletes a topic that took the name."""

    names: tuple[str, ...]
    topic_ids: tuple[UUID, ...] = ()
    STATE: ClassVar = ControllerState.TOPIC_DELETION


# ---- elections, reassignment -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaLeaderElection:
    """`partitions` None: those listed in the election znode (ZK trigger) or all partitions (admin client)."""

    partitions: tuple[TopicPartition, ...] | None
    election_type: ElectionType = ElectionType.PREFERRED
    trigger: ElectionTrigger = ElectionTrigger.ADMIN_CLIENT
    STATE: ClassVar = ControllerState.MANUAL_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class AutoPreferredReplicaLeaderElection:
    STATE: ClassVar = ControllerState.AUTO_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnable:
    """The broker default of `unclean.leader.election.enable` changed; brokers that are not active remember it too."""

    enabled: bool = True
    STATE: ClassVar = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE


@dataclass(frozen=True, slots=True)
class TopicUncleanLeaderElectionEnable:
    topic: str
    STATE: ClassVar = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE


@dataclass(frozen=True, slots=True)
class ZkPartitionReassignment:
    STATE: ClassVar = ControllerState.ALTER_PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class ApiPartitionReassignment:
    """A target of None cancels the partition's reassignment."""

    reassignments: tuple[tuple[TopicPartition, tuple[int, ...] | None], ...]
    STATE: ClassVar = ControllerState.ALTER_PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class PartitionReassignmentIsrChange:
    partition: TopicPartition
    STATE: ClassVar = ControllerState.ALTER_PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class ListPartitionReassignments:
    partitions: tuple[TopicPartition, ...] | None = None
    STATE: ClassVar = ControllerState.LIST_PARTITION_REASSIGNMENT


# ---- ISR, responses, ids ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IsrChangeNotification:
    STATE: ClassVar = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """`version` is the version of the wire request: it decides how an ineligible replica is answered."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[AlterPartitionItem, ...]
    version: int = 3
    STATE: ClassVar = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived:
    """`leader_epochs` are the request's, in the order of `partition_errors`."""

    broker_id: int
    head: RequestHead
    error: ErrorCode
    partition_errors: tuple[tuple[TopicPartition, ErrorCode], ...]
    leader_epochs: tuple[int, ...] = ()
    STATE: ClassVar = ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponseReceived:
    broker_id: int
    head: RequestHead
    error: ErrorCode
    STATE: ClassVar = ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    broker_id: int
    broker_epoch: int
    STATE: ClassVar = ControllerState.IDLE


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


def _topic_refusals(names: tuple[str, ...], error: ErrorCode) -> TopicResults:
    return TopicResults(tuple(TopicResult(name, error) for name in names), error)


def refusal(event: ControllerEvent, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> EventReply:
    """The answer for an event that was not carried out. Controlled shutdown names a stale controller epoch (11)."""
    match event:
        case CreateTopics(topics) | CreatePartitions(topics):
            return _topic_refusals(tuple(topic.name for topic in topics), error)
        case DeleteTopics(names, topic_ids):
            by_id = tuple(TopicResult("", error, topic_id=topic_id) for topic_id in topic_ids)
            return TopicResults((*_topic_refusals(names, error).topics, *by_id), error)
        case ReplicaLeaderElection(partitions):
            return PartitionResults(tuple(PartitionResult(tp, error) for tp in partitions or ()), error)
        case ApiPartitionReassignment(reassignments):
            return PartitionResults(tuple(PartitionResult(tp, error) for tp, _ in reassignments), error)
        case ListPartitionReassignments():
            return Reassignments(error=error)
        case ControlledShutdown():
            moved = error is ErrorCode.NOT_CONTROLLER
            return ControlledShutdownResult(ErrorCode.STALE_CONTROLLER_EPOCH if moved else error)
        case AlterPartition():
            return AlterPartitionResults(error)
        case AllocateProducerIds():
            return ProducerIdsBlock(error)
        case Startup() | RegisterBrokerAndReelect():
            return BrokerRegistration(error=error, message="the broker stopped before it was registered")
        case _:
            return DONE
