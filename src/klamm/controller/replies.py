"""Answers of the controller to the callers of events: frozen values that cross from the control loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, overload
from uuid import UUID

from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ZERO_UUID, LeaderAndIsr, ReplicaAssignment, TopicPartition

LARGE: Final = 1000
"""Refusals of larger events are made when they are read."""
R = TypeVar("R")


class LazyResults(Sequence[R], Generic[R]):
    """Results that are made when they are read, so that the refusal of a large event does not hold a loop."""

    __slots__ = ("_items", "_make")

    def __init__(self, items: Sequence[Any], make: Callable[[Any], R]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[R]: ...
    def __getitem__(self, index: int | slice) -> R | Sequence[R]:
        if isinstance(index, slice):
            return [self._make(item) for item in self._items[index]]
        return self._make(self._items[index])


def results_of(items: Sequence[Any], make: Callable[[Any], R]) -> Sequence[R]:
    return tuple(map(make, items)) if len(items) <= LARGE else LazyResults(items, make)


def made(results: Sequence[R]) -> Sequence[R]:
    """The results that take memory: none of those that are made when they are read."""
    return () if isinstance(results, LazyResults) else results


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

    topics: Sequence[TopicResult] = ()
    error: ErrorCode = ErrorCode.NONE


@lazy_dataclass(frozen=True, slots=True)
class PartitionResult:
    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class PartitionResults:
    """One outcome per partition of an election or a reassignment."""

    partitions: Sequence[PartitionResult] = ()
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
