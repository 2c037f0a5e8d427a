"""The records of the control log, one class per kind. docs/reference/control-log.md shows each of them as JSON.

A record is created where something happens, so it contains the values at hand; it is encoded when it is written.
Lists of partitions are truncated: `partition_count` is the total number.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar, Final, NamedTuple, TypeAlias

from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import LeaderAndIsr, TopicPartition

MAX_LISTED: Final = 16
"""Maximum number of partitions and topics in a record."""


class ListedPartition(NamedTuple):
    """A partition in a list; the leader is -2 if the partition is deleted."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int


def first(items: Iterable[ListedPartition]) -> tuple[ListedPartition, ...]:
    return tuple(islice(items, MAX_LISTED))


@lazy_dataclass(frozen=True, slots=True)
class EventQueued:
    """`cause` names the origin. `number` counts the events of one controller process.

    `state` is the value of the `ControllerState` gauge while the event is processed, and `state_name` its name.
    """

    controller_epoch: int
    event: str
    number: int
    cause: str
    topics: tuple[str, ...]
    about_broker: int | None
    queue_size: int
    state: int
    state_name: str
    KIND: ClassVar = "event_queued"


@lazy_dataclass(frozen=True, slots=True)
class EventStarted:
    controller_epoch: int
    event: str
    number: int
    queue_ms: float
    state: int
    state_name: str
    KIND: ClassVar = "event_started"


@lazy_dataclass(frozen=True, slots=True)
class EventDone:
    """`outcome`: done, failed (the role of controller was given up), or refused (it was never started)."""

    controller_epoch: int
    event: str
    number: int
    duration_ms: float
    outcome: str
    state: int
    state_name: str
    KIND: ClassVar = "event_done"


@lazy_dataclass(frozen=True, slots=True)
class ControllerChanged:
    """The controller that this broker knows from now on; -1 if there is none."""

    controller_epoch: int
    controller_id: int
    KIND: ClassVar = "controller_changed"


@lazy_dataclass(frozen=True, slots=True)
class LeadershipChange:
    """The controller wrote a partition's state, or adopted a leader's own change.

    An `election` when `strategy` names one, else an `isr_change` when the leader stayed, else a `leader_change` (as is
    a new epoch of the same leader). `event` and `number` identify the controller's event.
    """

    controller_epoch: int
    event: str
    number: int
    strategy: str
    partition: TopicPartition
    before: LeaderAndIsr | None
    after: LeaderAndIsr
    state: int
    state_name: str

    @property
    def KIND(self) -> str:
        if self.strategy:
            return "election"
        before, after = self.before, self.after
        is_same = before is not None and before.leader == after.leader and before.isr != after.isr
        return "isr_change" if is_same else "leader_change"


class Decision(NamedTuple):
    """The controller's event that created a request, and the state of the controller meanwhile."""

    event: str
    event_number: int
    state: int
    state_name: str


class RequestSummary(NamedTuple):
    """Summary of a control request: `target` is the receiving broker, `broker_epoch` its incarnation."""

    api: str
    target: int
    broker_epoch: int
    partition_count: int
    partitions: tuple[ListedPartition, ...]


@lazy_dataclass(frozen=True, slots=True)
class RequestQueued:
    """`number` counts the requests that were queued for one broker."""

    controller_epoch: int
    number: int
    decision: Decision
    request: RequestSummary
    queue_size: int
    KIND: ClassVar = "request_queued"


@lazy_dataclass(frozen=True, slots=True)
class RequestCoalesced:
    """The queued request with this number is not sent on its own: its states were merged into a waiting request."""

    controller_epoch: int
    number: int
    decision: Decision
    request: RequestSummary
    KIND: ClassVar = "request_coalesced"


@lazy_dataclass(frozen=True, slots=True)
class RequestSent:
    """`send_number` counts the requests sent to one broker; attempts 1, 2, 4, 8, ... of a request are recorded.

    `correlation_id` is that of this attempt, in the header of the request. `event_numbers` are the events whose
    requests were merged into this one, the newest last; `decision` is the newest.
    """

    controller_epoch: int
    send_number: int
    correlation_id: int
    decision: Decision
    event_numbers: tuple[int, ...]
    attempt: int
    request: RequestSummary
    queue_ms: float
    KIND: ClassVar = "request_sent"


@lazy_dataclass(frozen=True, slots=True)
class RequestAcknowledged:
    """`correlation_id` is that of the attempt that was answered."""

    controller_epoch: int
    send_number: int
    correlation_id: int
    decision: Decision
    event_numbers: tuple[int, ...]
    request: RequestSummary
    error: str
    failed_partition_count: int
    round_trip_ms: float
    KIND: ClassVar = "request_acknowledged"


class ListedOperation(NamedTuple):
    """An operation of a ZooKeeper transaction; `version` is the expected one, -1 if any is."""

    operation: str
    path: str
    version: int


@lazy_dataclass(frozen=True, slots=True)
class ZnodesWritten:
    """A transaction of the controller in ZooKeeper. All of its operations took effect, or none.

    `error` is NONE, or the error of ZooKeeper, and `refused_path` the znode that caused it. After ConnectionLoss the
    outcome is unknown. `event` and `number` identify the controller's event.
    """

    controller_epoch: int
    event: str
    number: int
    operation_count: int
    operations: tuple[ListedOperation, ...]
    error: str
    refused_path: str | None
    duration_ms: float
    state: int
    state_name: str
    KIND: ClassVar = "znodes_written"


class ListedProposal(NamedTuple):
    """The ISR that a leader proposed for a partition, at the epochs that it knows, and the controller's answer."""

    topic: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    error: str


@lazy_dataclass(frozen=True, slots=True)
class ProposalAnswered:
    """The controller's answer to an AlterPartition of the broker `target`, whose incarnation is `broker_epoch`.

    `error` is that of the whole request. `event` and `number` identify the controller's event.
    """

    controller_epoch: int
    event: str
    number: int
    target: int
    broker_epoch: int
    error: str
    partition_count: int
    failed_partition_count: int
    partitions: tuple[ListedProposal, ...]
    state: int
    state_name: str
    KIND: ClassVar = "proposal_answered"


@lazy_dataclass(frozen=True, slots=True)
class SessionChanged:
    """This broker has a new session with ZooKeeper, or learned that its session has expired.

    `session` is established or expired. A killed broker records no end of its session; see `RegistrationChanged`.
    """

    controller_epoch: int
    session: str
    session_id: str
    KIND: ClassVar = "session_changed"


@lazy_dataclass(frozen=True, slots=True)
class RegistrationChanged:
    """The controller has found a broker registered, or gone. `registration` is registered or gone.

    A registration is an ephemeral znode: it disappears with the session of its broker. A broker that came back before
    the controller looked is gone with its old epoch and registered with the new one.
    """

    controller_epoch: int
    event: str
    number: int
    about_broker: int
    registration: str
    broker_epoch: int
    state: int
    state_name: str
    KIND: ClassVar = "registration_changed"


@lazy_dataclass(frozen=True, slots=True)
class MetadataApplied:
    """This broker's metadata cache has applied an UpdateMetadata; `update_count` counts them since its start."""

    controller_epoch: int
    controller_id: int
    correlation_id: int
    update_count: int
    live_brokers: tuple[int, ...]
    partition_count: int
    partitions: tuple[ListedPartition, ...]
    KIND: ClassVar = "metadata_applied"


@lazy_dataclass(frozen=True, slots=True)
class RoleChanged:
    """This broker has become leader or follower of a partition, or is no longer either.

    `correlation_id` is that of the controller's request; None if there was none, as after a failed disk.
    """

    controller_epoch: int
    correlation_id: int | None
    partition: TopicPartition
    role: str
    leader_epoch: int
    KIND: ClassVar = "role_changed"


@lazy_dataclass(frozen=True, slots=True)
class RequestFailed:
    """A handler raised an unexpected error, and its connection was closed.

    `failure_count` counts the failures of the API; failures 1, 2, 4, 8, ... are recorded.
    """

    controller_epoch: int
    api: str
    api_version: int
    correlation_id: int
    client_id: str | None
    connection_id: str
    error: str
    failure_count: int
    KIND: ClassVar = "request_failed"


ControlRecord: TypeAlias = (
    EventQueued
    | EventStarted
    | EventDone
    | ControllerChanged
    | LeadershipChange
    | RequestQueued
    | RequestCoalesced
    | RequestSent
    | RequestAcknowledged
    | ZnodesWritten
    | ProposalAnswered
    | SessionChanged
    | RegistrationChanged
    | MetadataApplied
    | RoleChanged
    | RequestFailed
)
