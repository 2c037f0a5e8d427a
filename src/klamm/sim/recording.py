"""A run of level 1 as records for the viewer: those of the control log, by its production code, and a few more kinds.

Recording draws no random numbers, so a recorded run is the same as one without a recording. Each record is a JSON
object. The kinds that only a simulated cluster has are `action`, `fault`, `session`, `watch`, `tool_write`,
`proposal_sent`, `request_delivered` and `replica`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from klamm.control_log import NO_CONTROL_LOG, Entry, to_json
from klamm.control_log.records import ControlRecord, Decision, ListedPartition, MetadataApplied, RoleChanged, first
from klamm.controller.effects import ActiveControllerChanged, Effect, LeadershipChanged, RegistrationsChanged, ZkMulti
from klamm.controller.events import ControllerEvent
from klamm.controller.journal import ControllerJournal, Sending, summary_of
from klamm.controller.replies import EventReply
from klamm.controller.requests import ControlRequest, LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from klamm.controller.responses import ControlResponse
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.sim.broker_model import BrokerModel
from klamm.sim.virtual_time import Scheduler


class Recording:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._sequence = 0
        self._replicas: dict[tuple[int, TopicPartition], tuple[Any, ...]] = {}
        self.lines: list[str] = []
        """One JSON object per record, in the order of time."""

    def add(self, kind: str, broker_id: int, **fields: Any) -> None:
        """Record one of the simulator's own kinds; broker -1 is ZooKeeper, or a tool."""
        self._sequence += 1
        common = {"kind": kind, "at_ms": self._scheduler.time_ms, "broker_id": broker_id, "sequence": self._sequence}
        self.lines.append(json.dumps({**common, **fields}, separators=(",", ":")))

    def record(self, broker_id: int, loop: str, record: ControlRecord) -> None:
        self._sequence += 1
        entry = Entry(self._sequence, self._scheduler.now_ms(), self._scheduler.monotonic(), record)
        self.lines.append(to_json(entry, broker_id, loop).decode())

    def sample_replicas(self, brokers: Mapping[int, BrokerModel]) -> None:
        """Record each replica whose role, ISR, log end or high watermark changed since the last sample."""
        for broker_id, broker in brokers.items():
            for tp, mine in broker.hosted.items():
                log_end = len(broker.disk.records.get(tp, ()))
                isr, pending = list(mine.isr), mine.pending_isr
                now = (mine.leader, mine.leader_epoch, isr, pending, log_end, mine.high_watermark)
                if self._replicas.get((broker_id, tp)) != now:
                    self._replicas[broker_id, tp] = now
                    self.add(
                        "replica",
                        broker_id,
                        topic=tp.topic,
                        partition=tp.partition,
                        leader=mine.leader,
                        leader_epoch=mine.leader_epoch,
                        isr=isr,
                        pending_isr=pending,
                        log_end=log_end,
                        high_watermark=mine.high_watermark,
                    )


class _Log:
    """The control log of one simulated broker."""

    is_enabled = True

    def __init__(self, recording: Recording, broker_id: int) -> None:
        self._recording = recording
        self._broker_id = broker_id

    def record(self, record: ControlRecord) -> None:
        self._recording.record(self._broker_id, "control", record)


class NodeJournal:
    """The records of one process's controller: production's journal, with the numbers that its event manager gives."""

    def __init__(self, recording: Recording | None, broker_id: int, scheduler: Scheduler) -> None:
        self._recording = recording
        self._broker_id = broker_id
        self._scheduler = scheduler
        self.log = ControllerJournal(NO_CONTROL_LOG if recording is None else _Log(recording, broker_id))
        self.correlation_ids: dict[int, int] = {}
        """The last one per broker; they continue when a channel is replaced."""
        self._waiting: deque[tuple[ControllerEvent, int, int]] = deque()
        self._count = 0
        self._current: tuple[ControllerEvent, int, int] | None = None

    @property
    def cause(self) -> str:
        """The event that is being processed, as the cause of others."""
        return "this broker" if self._current is None else f"event {self._current[1]}"

    def queued(self, event: ControllerEvent, cause: str) -> None:
        self._count += 1
        self._waiting.append((event, self._count, self._scheduler.time_ms))
        self.log.event_queued(event, self._count, cause, len(self._waiting))

    def started(self) -> None:
        event, number, since = self._current = self._waiting.popleft()
        now = self._scheduler.time_ms
        self._current = (event, number, now)
        self.log.event_started(event, number, now - since)

    def done(self, outcome: str = "done") -> None:
        if self._current is not None:
            event, number, since = self._current
            self.log.event_done(event, number, self._scheduler.time_ms - since, outcome)
            self._current = None

    def cleared(self) -> None:
        for event, number, since in self._waiting:
            self.log.event_done(event, number, self._scheduler.time_ms - since, "refused")
        self._waiting.clear()

    def on_effect(self, effect: Effect) -> None:
        if isinstance(effect, LeadershipChanged):
            self.log.leadership_changed(effect.changes)
        elif isinstance(effect, RegistrationsChanged):
            self.log.registrations_changed(effect.gone, effect.registered)
        elif isinstance(effect, ActiveControllerChanged):
            self.log.controller_changed(effect.controller_id, effect.controller_epoch)

    def on_zookeeper_answered(self, effect: object, asked_ms: int, error: Exception | None) -> None:
        if isinstance(effect, ZkMulti):
            self.log.znodes_written(effect.ops, error, self._scheduler.time_ms - asked_ms)

    def on_replied(self, event: ControllerEvent, value: EventReply) -> None:
        self.log.replied(event, -1 if self._current is None else self._current[1], value)


class SendRecorder(Protocol):
    """The receiver of a channel's reports about its requests."""

    def queued(self, request: ControlRequest, queue_size: int, is_coalesced: bool) -> None: ...

    @property
    def decision(self) -> Decision: ...

    def taken(self, decisions: tuple[Decision, ...]) -> None: ...

    def sent(self, request: ControlRequest, queue_ms: float) -> None: ...

    def delivered(self, request: ControlRequest, response: ControlResponse, broker: BrokerModel) -> None: ...

    def acknowledged(self, request: ControlRequest, response: ControlResponse) -> None: ...


class ChannelJournal:
    """The records of one channel, from the queue of the controller to the broker's answer."""

    def __init__(self, recording: Recording, journal: NodeJournal, source: int, target: int) -> None:
        self._recording = recording
        self._journal = journal.log
        self._correlation_ids = journal.correlation_ids
        self._source = source
        self._target = target
        self._put_count = self._send_number = self._attempt = 0
        self._correlation_id = self._correlation_ids.get(target, -1)
        self._decisions: tuple[Decision, ...] = ()
        self._updates = 0

    def queued(self, request: ControlRequest, queue_size: int, is_coalesced: bool) -> None:
        self._put_count += 1
        self._journal.request_queued(self._target, request, self._put_count, queue_size, is_coalesced)

    @property
    def decision(self) -> Decision:
        return self._journal.decision

    def taken(self, decisions: tuple[Decision, ...]) -> None:
        self._send_number += 1
        self._decisions = decisions
        self._attempt = 0

    def sent(self, request: ControlRequest, queue_ms: float) -> None:
        self._attempt += 1
        self._correlation_id += 1
        self._correlation_ids[self._target] = self._correlation_id
        self._journal.request_sent(self._sending(request), self._attempt, queue_ms)

    def _sending(self, request: ControlRequest) -> Sending:
        return Sending(self._target, request, self._send_number, self._correlation_id, self._decisions)

    def delivered(self, request: ControlRequest, response: ControlResponse, broker: BrokerModel) -> None:
        """The request has reached the broker, which obeys or refuses it."""
        head, summary = request.head, summary_of(self._target, request)
        refused = [(tp, error.name) for tp, error in response.partition_errors if error is not ErrorCode.NONE]
        self._recording.add(
            "request_delivered",
            self._target,
            source=self._source,
            api=summary.api,
            controller_epoch=head.controller_epoch,
            broker_epoch=head.broker_epoch,
            own_broker_epoch=broker.broker_epoch,
            own_controller_epoch=broker.controller_epoch,
            correlation_id=self._correlation_id,
            partitions=[partition._asdict() for partition in summary.partitions],
            error=response.error.name,
            partition_errors=[{"topic": tp.topic, "partition": tp.partition, "error": e} for tp, e in refused[:16]],
        )
        if response.error is ErrorCode.NONE:
            for record in self._effects(request, response, broker):
                self._recording.record(self._target, "broker", record)

    def _effects(
        self, request: ControlRequest, response: ControlResponse, broker: BrokerModel
    ) -> Iterable[ControlRecord]:
        head = request.head
        if isinstance(request, UpdateMetadataRequest):
            self._updates += 1
            states, live = request.body.partitions, tuple(b.id for b in request.body.live_brokers)
            listed = first(ListedPartition(*s.partition, s.leader, s.leader_epoch) for s in states)
            of = (head.controller_epoch, head.controller_id, self._correlation_id, self._updates)
            yield MetadataApplied(*of, live, len(states), listed)
            return
        obeyed = {tp for tp, error in response.partition_errors if error is ErrorCode.NONE}
        for state in request.partitions:
            if state.partition in obeyed:
                epoch = self._epoch_of(request, state)
                mine = broker.hosted.get(state.partition)
                role = "none" if mine is None else "leader" if mine.leader == self._target else "follower"
                yield RoleChanged(head.controller_epoch, self._correlation_id, state.partition, role, epoch)

    @staticmethod
    def _epoch_of(request: LeaderAndIsrRequest | StopReplicaRequest, state: Any) -> int:
        is_state = isinstance(request, LeaderAndIsrRequest)
        epoch: int = state.leader_and_isr.leader_epoch if is_state else state.leader_epoch
        return epoch

    def acknowledged(self, request: ControlRequest, response: ControlResponse) -> None:
        self._journal.request_acknowledged(self._sending(request), response, 0.0)
