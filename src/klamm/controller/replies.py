"""Answers of the controller to the callers of events: frozen values that cross from the control loop."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ZERO_UUID, LeaderAndIsr, ReplicaAssignment, TopicPartition


@lazy_dataclass(frozen=True, slots=True)
class TopicResult:
    """The outcome for one topic of CreateTopics, CreatePartitions or DeleteTopics."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: UUID = ZERO_UUID
    num_partitions: int = -1
    replication_factor: int = -1


@lazy_dataclass(frozen=True, slots=True)
class TopicResults:
    """One result per topic, in the order of the request. `error` is set if the whole request was refused."""

    topics: tuple[TopicResult, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@lazy_dataclass(frozen=True, slots=True)
class PartitionResult:
    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class PartitionResults:
    """One outcome per partition of an election or a reassignment."""

    partitions: tuple[PartitionResult, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class Reassignments:
    """The partitions that are being reassigned now."""

    partitions: tuple[tuple[TopicPartition, ReplicaAssignment], ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class ControlledShutdownResult:
    """`remaining` are the partitions that the broker still leads; it may stop if there are none and no error."""

    error: ErrorCode = ErrorCode.NONE
    remaining: tuple[TopicPartition, ...] = ()


@lazy_dataclass(frozen=True, slots=True)
class AlterPartitionResult:
    topic: str
    topic_id: UUID
    partition: int
    error: ErrorCode
    leader_and_isr: LeaderAndIsr | None = None


@lazy_dataclass(frozen=True, slots=True)
class AlterPartitionResults:
    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[AlterPartitionResult, ...] = ()


@lazy_dataclass(frozen=True, slots=True)
class ProducerIdsBlock:
    error: ErrorCode = ErrorCode.NONE
    start: int = -1
    length: int = 0


@lazy_dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The reply to Startup: the broker epoch (czxid of the znode), or why this broker could not register."""

    broker_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class Done:
    """The reply to an event without a result."""


DONE: Final = Done()

EventReply = (
    TopicResults
    | PartitionResults
    | Reassignments
    | ControlledShutdownResult
    | AlterPartitionResults
    | ProducerIdsBlock
    | BrokerRegistration
    | Done
)
