"""The controller's senders in the simulator: a queue a broker, one request in flight, retried until it is answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.controller.events import ControllerEvent
from klamm.controller.requests import ControlRequest
from klamm.controller.responses import ControlResponse, response_event

if TYPE_CHECKING:
    from klamm.sim.world import World

RETRY_MS = 100


class Channel:
    """From one controller to one broker, whatever incarnation of it answers. Closed: nothing more is sent."""

    def __init__(self, world: World, source: int, target: int, on_event: Callable[[ControllerEvent], None]) -> None:
        self._world = world
        self._source = source
        self._target = target
        self._on_event = on_event
        self._queue: deque[ControlRequest] = deque()
        self._in_flight = False
        self.closed = False

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def send(self, request: ControlRequest) -> None:
        self._queue.append(request)
        self._pump()

    def close(self) -> None:
        """What is queued is dropped; what is on the wire may still arrive."""
        self.closed = True
        self._queue.clear()

    def _pump(self) -> None:
        if self._queue and not self._in_flight and not self.closed:
            self._in_flight = True
            self._transmit(self._queue[0])

    def _transmit(self, request: ControlRequest) -> None:
        self._world.scheduler.at(self._world.network_delay_ms(), self._arrive, request)

    def _arrive(self, request: ControlRequest) -> None:
        target = self._world.nodes[self._target]
        serves = target.alive and target.broker.broker_epoch >= 0  # a broker answers only when it is registered
        if not serves or self._world.is_cut(self._source, self._target):
            self._world.scheduler.at(RETRY_MS, self._retry, request)
        elif target.paused_until_ms > self._world.scheduler.time_ms:
            wait = target.paused_until_ms - self._world.scheduler.time_ms
            self._world.scheduler.at(wait, self._arrive, request)
        else:
            response = self._world.deliver(self._source, self._target, request)
            delay = self._world.network_delay_ms()
            if self._world.answer_is_lost():
                self._world.scheduler.at(delay, self._retry, request)
            else:
                self._world.scheduler.at(delay, self._answered, request, response)

    def _retry(self, request: ControlRequest) -> None:
        if not self.closed:
            self._transmit(request)

    def _answered(self, request: ControlRequest, response: ControlResponse) -> None:
        if self.closed:
            return
        assert self._queue[0] is request
        self._queue.popleft()
        self._in_flight = False
        event = response_event(self._target, request, response)
        if event is not None:
            self._on_event(event)
        self._pump()
