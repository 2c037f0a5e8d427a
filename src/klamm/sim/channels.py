"""The controller's senders in the simulator: the real queue, one request in flight, repeated until it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from klamm.controller.config import ControllerConfig, InterBrokerProtocol
from klamm.controller.events import ControllerEvent
from klamm.controller.requests import ControlRequest, StopReplicaRequest
from klamm.controller.responses import ControlResponse, response_event
from klamm.controller.send_queue import SendQueue
from klamm.model import EndPoint
from klamm.sim.broker_model import BrokerModel
from klamm.sim.coalescing import DeliveryTwins
from klamm.sim.recording import SendRecorder
from klamm.sim.virtual_time import Scheduler

RETRY_MS = 100


class Target(Protocol):
    """The process that a channel sends to."""

    alive: bool
    paused_until_ms: int
    config: ControllerConfig
    broker: BrokerModel


class ChannelWorld(Protocol):
    """`klamm.sim.world.World`, as far as channels use it."""

    protocol: InterBrokerProtocol
    scheduler: Scheduler

    @property
    def nodes(self) -> Mapping[int, Target]: ...

    def network_delay_ms(self, kind: str = ...) -> int: ...

    def answer_is_lost(self) -> bool: ...

    def is_held_up(self) -> bool: ...

    def is_overtaken(self) -> bool: ...

    def is_cut(self, source: int, target: int) -> bool: ...

    def deliver(self, source: int, target: int, request: ControlRequest) -> ControlResponse: ...


class Channel:
    """From one controller to one broker, in any incarnation. After close nothing more is sent."""

    def __init__(
        self,
        world: ChannelWorld,
        source: int,
        target: int,
        endpoints: tuple[EndPoint, ...],
        on_event: Callable[[ControllerEvent], None],
        recorder: SendRecorder | None = None,
    ) -> None:
        self._world = world
        self._source = source
        self._target = target
        self._on_event = on_event
        self._recorder = recorder
        self._queue_ms = 0.0
        self._has_stop_epochs = has_stop_epochs = world.protocol.stop_replica_version >= 3
        self._queue = SendQueue(stop_flags=has_stop_epochs)
        self._twins = DeliveryTwins(target, stop_epochs=has_stop_epochs)
        self._in_flight: ControlRequest | None = None
        self.endpoints = endpoints
        """Address of the broker for the next attempt."""
        self.closed = False
        self.broker_epoch: int | None = None
        """The incarnation that this channel serves, from the first request on."""

    @property
    def is_idle(self) -> bool:
        return not len(self._queue) and self._in_flight is None

    def send(self, request: ControlRequest) -> None:
        self._twins.put(request)
        coalesced = self._queue.coalesced
        decision = None if self._recorder is None else self._recorder.decision
        self._queue.put(request, self._world.scheduler.monotonic(), decision)
        if self._recorder is not None:
            self._recorder.queued(request, len(self._queue), self._queue.coalesced > coalesced)
        self._pump()

    def close(self) -> None:
        """Queued requests are dropped; a request on the wire may still arrive, even much later."""
        self.closed = True
        self._queue.clear()

    def _pump(self) -> None:
        if len(self._queue) and self._in_flight is None and not self.closed:
            item = self._queue.take()
            self._in_flight = request = item.request
            self._queue_ms = (self._world.scheduler.monotonic() - item.enqueue_s) * 1000
            if self._recorder is not None:
                self._recorder.taken(item.decisions)
            self._twins.taken(request, is_last=not len(self._queue), coalesced=self._queue.coalesced)
            self._transmit(request)

    def _transmit(self, request: ControlRequest) -> None:
        if self._recorder is not None:
            self._recorder.sent(request, self._queue_ms)
        self._world.scheduler.at(self._world.network_delay_ms(), self._arrive, request, self.endpoints)

    def _arrive(self, request: ControlRequest, endpoints: tuple[EndPoint, ...]) -> None:
        if self.closed and self._world.is_held_up():
            delay = self._world.scheduler.rng.randint(50, 500)
            self._world.scheduler.at(delay, self._arrive, request, endpoints)
            return
        target = self._world.nodes[self._target]
        serves = target.alive and target.broker.broker_epoch >= 0  # a broker answers only when it is registered
        moved = endpoints != target.config.endpoints
        if not serves or moved or self._world.is_cut(self._source, self._target):
            self._world.scheduler.at(RETRY_MS, self._retry, request)
        elif target.paused_until_ms > self._world.scheduler.time_ms:
            wait = target.paused_until_ms - self._world.scheduler.time_ms
            self._world.scheduler.at(wait, self._arrive, request, endpoints)
        elif self._reveals_order(request) and self._world.is_overtaken():
            self._world.scheduler.at(RETRY_MS, self._retry, request)
            self._world.scheduler.at(self._world.scheduler.rng.randint(RETRY_MS, 600), self._arrive_late, request)
        else:
            response = self._deliver(request, target)
            delay = self._world.network_delay_ms("late replies")
            if self._world.answer_is_lost():
                self._world.scheduler.at(delay, self._retry, request)
            else:
                self._world.scheduler.at(delay, self._answered, request, response)

    def _reveals_order(self, request: ControlRequest) -> bool:
        """A StopReplica with known leader epochs. For other requests a broker cannot detect that they were
        overtaken."""
        if not isinstance(request, StopReplicaRequest) or not self._has_stop_epochs:
            return False
        return all(state.leader_epoch >= 0 for state in request.partitions)

    def _arrive_late(self, request: ControlRequest) -> None:
        """Over a connection that its sender has abandoned: the answer is ignored."""
        target = self._world.nodes[self._target]
        if target.alive and target.broker.broker_epoch >= 0:
            self._deliver(request, target)

    def _deliver(self, request: ControlRequest, target: Target) -> ControlResponse:
        response = self._world.deliver(self._source, self._target, request)
        if self._recorder is not None:
            self._recorder.delivered(request, response, target.broker)
        return response

    def _retry(self, request: ControlRequest) -> None:
        if not self.closed:
            self._transmit(request)

    def _answered(self, request: ControlRequest, response: ControlResponse) -> None:
        if self.closed:
            return
        assert self._in_flight is request
        self._in_flight = None
        if self._recorder is not None:
            self._recorder.acknowledged(request, response)
        event = response_event(self._target, request, response)
        if event is not None:
            self._on_event(event)
        self._pump()
