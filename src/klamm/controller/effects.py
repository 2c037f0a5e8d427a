"""Effects: frozen values that the controller's `process` yields and its driver carries out.

`ZkRead` and `ZkMulti` are answered with results, or an exception of `klamm.zk.model.ops` thrown at the yield
(`MultiFailed`, `ConnectionLoss` when a multi's outcome is unknown, `SessionExpired`); `AskSessionId` with a number. A
driver retries reads over a lost connection itself. All other effects are carried out in the order they are yielded and
answered with None.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeAlias, TypeVar

from klamm.controller.context.replica import LeadershipChange
from klamm.controller.events import ControllerEvent
from klamm.controller.replies import EventReply
from klamm.controller.requests import ControlRequest
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import BrokerEndPoints, TopicPartition
from klamm.zk.model.ops import MultiResult, ReadOp, ReadResult, WriteOp


@lazy_dataclass(frozen=True, slots=True)
class ZkRead:
    """Answered with one result per operation, None where the znode does not exist."""

    ops: tuple[ReadOp, ...]


@lazy_dataclass(frozen=True, slots=True)
class ZkMulti:
    """One transaction. Answered with one result per operation."""

    ops: tuple[WriteOp, ...]


@lazy_dataclass(frozen=True, slots=True)
class Send:
    """Queue a request for a broker, after all earlier ones; ignored for a broker without a channel."""

    broker_id: int
    request: ControlRequest


@lazy_dataclass(frozen=True, slots=True)
class AskLogEnds:
    """Ask a broker for its log ends until it answers or its channel is closed; `LogEndsReceived` is the answer.

    Each partition comes with its leader epoch. A broker that does not know that epoch yet may still lead in an older
    one, so it is asked again until nothing more can be appended to its log. The query does not queue behind control
    requests, and they do not queue behind it.
    """

    broker: BrokerEndPoints
    partitions: tuple[tuple[TopicPartition, int], ...]


@lazy_dataclass(frozen=True, slots=True)
class AddChannel:
    """Start sending to a broker; an existing channel only receives the new addresses."""

    broker: BrokerEndPoints


@lazy_dataclass(frozen=True, slots=True)
class CloseChannel:
    """Stop sending to a broker and drop its queued requests."""

    broker_id: int


@lazy_dataclass(frozen=True, slots=True)
class CloseAllChannels:
    """Stop sending to all brokers: this broker is no longer the controller."""


@lazy_dataclass(frozen=True, slots=True)
class AskSessionId:
    """Answered with the id of the current ZooKeeper session."""


@lazy_dataclass(frozen=True, slots=True)
class Pause:
    """Let the control loop serve its senders and timers before the next step; no other event is processed meanwhile."""


@lazy_dataclass(frozen=True, slots=True)
class Reply:
    """Answer the caller of the event that is being processed. Only the first answer to an event counts."""

    value: EventReply


@lazy_dataclass(frozen=True, slots=True)
class Enqueue:
    """Append an event to the controller's own queue."""

    event: ControllerEvent


@lazy_dataclass(frozen=True, slots=True)
class Schedule:
    """Queue an event after a delay, unless `CancelScheduled` comes first."""

    delay_ms: int
    event: ControllerEvent


@lazy_dataclass(frozen=True, slots=True)
class CancelScheduled:
    pass


@lazy_dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """This broker's znode exists now, with this epoch."""

    broker_epoch: int


@lazy_dataclass(frozen=True, slots=True)
class ActiveControllerChanged:
    """The current controller, as far as this broker knows (-1: none)."""

    controller_id: int
    controller_epoch: int


@lazy_dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """Record these changes of leaders and ISRs in the control log; yielded before the requests that carry them."""

    changes: tuple[LeadershipChange, ...]


@lazy_dataclass(frozen=True, slots=True)
class RegistrationsChanged:
    """Record in the control log which brokers are gone and which are registered now, each as (id, epoch)."""

    gone: tuple[tuple[int, int], ...]
    registered: tuple[tuple[int, int], ...]


@lazy_dataclass(frozen=True, slots=True)
class Note:
    """A line of the state change log. A warning needs an operator and is not repeated within a minute."""

    text: str
    is_warning: bool = False


Effect: TypeAlias = (
    ZkRead
    | ZkMulti
    | Send
    | AskLogEnds
    | AddChannel
    | CloseChannel
    | CloseAllChannels
    | AskSessionId
    | Pause
    | Reply
    | Enqueue
    | Schedule
    | CancelScheduled
    | BrokerRegistered
    | ActiveControllerChanged
    | LeadershipChanged
    | RegistrationsChanged
    | Note
)

T = TypeVar("T")
Steps: TypeAlias = Generator[Effect, Any, T]
"""A part of the controller's work that yields effects and returns a T."""
ReadResults: TypeAlias = tuple[ReadResult | None, ...]
MultiResults: TypeAlias = tuple[MultiResult, ...]


def report_leadership(changes: Iterable[LeadershipChange | None]) -> Steps[None]:
    """Report the changes that `ControllerContext.put_leadership` returned; yield nothing if there are none."""
    found = tuple([change for change in changes if change is not None])
    if found:
        yield LeadershipChanged(found)
