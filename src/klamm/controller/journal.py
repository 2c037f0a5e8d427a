"""The controller's records in the control log. Every method is cheap, and does nothing where there is no log.

Events that concern only the control log's own topic are not recorded: an attempt to create it must not cause the next
record. Their effects are recorded, once per change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from klamm.control_log import NO_CONTROL_LOG, ControlLog
from klamm.control_log.records import (
    MAX_LISTED,
    ControllerChanged,
    Decision,
    EventDone,
    EventQueued,
    EventStarted,
    LeadershipChange,
    ListedOperation,
    ListedPartition,
    ListedProposal,
    ProposalAnswered,
    RegistrationChanged,
    RequestAcknowledged,
    RequestCoalesced,
    RequestQueued,
    RequestSent,
    RequestSummary,
    SessionChanged,
    ZnodesWritten,
    first,
)
from klamm.controller.context import replica
from klamm.controller.events import AlterPartition, ControllerEvent
from klamm.controller.replies import AlterPartitionResults, EventReply
from klamm.controller.requests import ControlRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from klamm.controller.responses import ControlResponse
from klamm.controller.states import ControllerState
from klamm.errors import ErrorCode
from klamm.model import CONTROL_LOG_TOPIC, LEADER_DURING_DELETE, NO_CONTROLLER, NO_LEADER
from klamm.zk.model.ops import Check, Create, Delete, MultiFailed, SetData, WriteOp

_MAX_LOOKED_AT: Final = 256
_OPERATIONS: Final = {Check: "check", Create: "create", SetData: "set", Delete: "delete"}


NO_DECISION: Final = Decision("", 0, ControllerState.IDLE.value, ControllerState.IDLE.label)
"""Before the first event."""


def _state(event: ControllerEvent) -> tuple[int, str]:
    return event.STATE.value, event.STATE.label


class Sending(NamedTuple):
    """A control request that is sent. `send_number` counts the requests to the broker, each once.

    `decisions` are those that were merged into the request, the newest last.
    """

    broker_id: int
    request: ControlRequest
    send_number: int
    correlation_id: int
    decisions: tuple[Decision, ...]


class ControllerJournal:
    """Lives on the control loop. `epoch` is the controller's own; it is 0 where this broker is not the controller."""

    def __init__(self, log: ControlLog = NO_CONTROL_LOG) -> None:
        self._log = log
        self.decision = NO_DECISION
        """The current event, for the requests that it creates."""
        self._is_own = False
        """Whether the current event concerns only the control log's topic."""
        self._controller = NO_CONTROLLER, 0
        self.epoch = 0

    # --- events ------------------------------------------------------------------------------------------------------

    def event_queued(self, event: ControllerEvent, number: int, cause: str, queue_size: int) -> None:
        if self._log.is_enabled and (topics := topics_of(event)) != (CONTROL_LOG_TOPIC,):
            broker = getattr(event, "broker_id", None)
            name = type(event).__name__
            state, state_name = _state(event)
            self._log.record(
                EventQueued(
                    self.epoch,
                    name,
                    number,
                    cause,
                    topics=topics,
                    about_broker=broker,
                    queue_size=queue_size,
                    state=state,
                    state_name=state_name,
                )
            )

    def event_started(self, event: ControllerEvent, number: int, queue_ms: float) -> None:
        self.decision = decision = Decision(type(event).__name__, number, *_state(event))
        self._is_own = self._log.is_enabled and topics_of(event) == (CONTROL_LOG_TOPIC,)
        if self._log.is_enabled and not self._is_own:
            self._log.record(EventStarted(self.epoch, decision.event, number, queue_ms, *_state(event)))

    def event_done(self, event: ControllerEvent, number: int, duration_ms: float, outcome: str) -> None:
        if self._log.is_enabled and topics_of(event) != (CONTROL_LOG_TOPIC,):
            self._log.record(EventDone(self.epoch, type(event).__name__, number, duration_ms, outcome, *_state(event)))

    def controller_changed(self, controller_id: int, epoch: int) -> None:
        """Called after every read of `/controller`; records only changes."""
        self.epoch = epoch
        if (controller_id, epoch) != self._controller:
            self._controller = controller_id, epoch
            self._log.record(ControllerChanged(epoch, controller_id))

    def leadership_changed(self, changes: Iterable[replica.LeadershipChange]) -> None:
        if self._log.is_enabled:
            event, number, state, name = self.decision
            for tp, strategy, before, after in changes:
                self._log.record(
                    LeadershipChange(
                        self.epoch,
                        event,
                        number,
                        strategy,
                        tp,
                        before=before,
                        after=after,
                        state=state,
                        state_name=name,
                    )
                )

    def znodes_written(self, ops: Sequence[WriteOp], error: Exception | None, duration_ms: float) -> None:
        """A transaction was answered; `error` is None if it took effect."""
        if not self._log.is_enabled or self._is_own:
            return
        cause = error.error if isinstance(error, MultiFailed) else error
        path = error.op.path if isinstance(error, MultiFailed) else None
        name = "NONE" if cause is None else type(cause).__name__
        listed = tuple(
            ListedOperation(_OPERATIONS[type(op)], op.path, getattr(op, "version", -1)) for op in ops[:MAX_LISTED]
        )
        event, number, state, state_name = self.decision
        self._log.record(
            ZnodesWritten(
                controller_epoch=self.epoch,
                event=event,
                number=number,
                operation_count=len(ops),
                operations=listed,
                error=name,
                refused_path=path,
                duration_ms=duration_ms,
                state=state,
                state_name=state_name,
            )
        )

    def replied(self, event: ControllerEvent, number: int, value: EventReply) -> None:
        """An event is answered: only the answers to leaders that propose an ISR are recorded."""
        if not isinstance(event, AlterPartition) or not isinstance(value, AlterPartitionResults):
            return
        if not self._log.is_enabled or topics_of(event) == (CONTROL_LOG_TOPIC,):
            return
        results = value.partitions
        failed = sum(result.error is not ErrorCode.NONE for result in results)
        listed = []
        for index, item in enumerate(event.partitions[:MAX_LISTED]):
            name, error = (results[index].topic, results[index].error) if results else (item.topic, value.error)
            at = item.leader_epoch, item.partition_epoch
            listed.append(ListedProposal(name, item.partition, *at, item.new_isr, error.name))
        state, state_name = _state(event)
        self._log.record(
            ProposalAnswered(
                self.epoch,
                type(event).__name__,
                number,
                target=event.broker_id,
                broker_epoch=event.broker_epoch,
                error=value.error.name,
                partition_count=len(event.partitions),
                failed_partition_count=failed if results else len(event.partitions),
                partitions=tuple(listed),
                state=state,
                state_name=state_name,
            )
        )

    def refused(self, event: ControllerEvent, number: int, error: ErrorCode) -> None:
        """An event is answered with an error before it started."""
        if isinstance(event, AlterPartition):
            self.replied(event, number, event.refusal(error))

    # --- sessions and registrations ----------------------------------------------------------------------------------

    def session_changed(self, session: str, session_id: int) -> None:
        """`session` is established or expired."""
        self._log.record(SessionChanged(self.epoch, session, f"{session_id:#x}"))

    def registrations_changed(self, gone: Iterable[tuple[int, int]], registered: Iterable[tuple[int, int]]) -> None:
        """Brokers with their epochs; a broker that came back unseen is in both."""
        event, number, state, name = self.decision
        for change, brokers in (("gone", gone), ("registered", registered)):
            for broker, epoch in brokers:
                record = RegistrationChanged(self.epoch, event, number, broker, change, epoch, state, name)
                self._log.record(record)

    # --- requests ----------------------------------------------------------------------------------------------------

    def request_queued(
        self, broker_id: int, request: ControlRequest, number: int, queue_size: int, is_coalesced: bool
    ) -> None:
        if not self._log.is_enabled:
            return
        summary, epoch = summary_of(broker_id, request), request.head.controller_epoch
        self._log.record(RequestQueued(epoch, number, self.decision, summary, queue_size))
        if is_coalesced:
            self._log.record(RequestCoalesced(epoch, number, self.decision, summary))

    def request_sent(self, sending: Sending, attempt: int, queue_ms: float) -> None:
        if self._log.is_enabled and attempt.bit_count() == 1:
            self._log.record(RequestSent(*_sending(sending), attempt, summary_of(*sending[:2]), queue_ms))

    def request_acknowledged(self, sending: Sending, response: ControlResponse, round_trip_ms: float) -> None:
        if self._log.is_enabled:
            failed = sum(error != ErrorCode.NONE for _, error in response.partition_errors)
            summary, error = summary_of(*sending[:2]), response.error.name
            self._log.record(RequestAcknowledged(*_sending(sending), summary, error, failed, round_trip_ms))


def _sending(sending: Sending) -> tuple[int, int, int, Decision, tuple[int, ...]]:
    decisions = sending.decisions
    newest = decisions[-1] if decisions else NO_DECISION
    numbers = tuple(decision.event_number for decision in decisions)
    return sending.request.head.controller_epoch, sending.send_number, sending.correlation_id, newest, numbers


def topics_of(event: ControllerEvent) -> tuple[str, ...]:
    """Return the first topics that the event names, each once."""
    return tuple(islice(dict.fromkeys(islice(_all_topics(event), _MAX_LOOKED_AT)), MAX_LISTED))


def _all_topics(event: Any) -> Iterator[str]:
    for topic in getattr(event, "topics", ()):
        yield topic.name
    yield from getattr(event, "names", ())
    if (topic := getattr(event, "topic", None)) is not None:
        yield topic
    if (partition := getattr(event, "partition", None)) is not None:
        yield partition.topic
    for item in getattr(event, "partitions", None) or ():
        if item.topic:  # some name it by its id only
            yield item.topic
    for tp, _ in chain(getattr(event, "reassignments", ()), getattr(event, "partition_errors", ())):
        yield tp.topic


def summary_of(broker_id: int, request: ControlRequest) -> RequestSummary:
    broker_epoch = request.head.broker_epoch
    if isinstance(request, LeaderAndIsrRequest):
        states = request.partitions
        listed = (ListedPartition(*s.partition, s.leader_and_isr.leader, s.leader_and_isr.leader_epoch) for s in states)
        return RequestSummary("LeaderAndIsr", broker_id, broker_epoch, len(states), first(listed))
    if isinstance(request, UpdateMetadataRequest):
        metadata = request.body.partitions
        listed = (ListedPartition(*s.partition, s.leader, s.leader_epoch) for s in metadata)
        return RequestSummary("UpdateMetadata", broker_id, broker_epoch, len(metadata), first(listed))
    stops = request.partitions
    listed = (
        ListedPartition(*s.partition, LEADER_DURING_DELETE if s.delete else NO_LEADER, s.leader_epoch) for s in stops
    )
    return RequestSummary("StopReplica", broker_id, broker_epoch, len(stops), first(listed))
