"""Coalescing must change nothing: beside every channel, one broker is told all that was put and one what was sent."""

from __future__ import annotations

from klamm.controller.requests import ControlRequest
from klamm.sim.broker_model import BrokerModel, Disk
from klamm.sim.violation import require


class DeliveryTwins:
    """Whenever something was merged and nothing waits, both must know the same and host the same.

    Until then requests are only kept: of most channels nothing is ever merged. And as long as both are told the same
    there is one broker for both.
    """

    def __init__(self, broker_id: int, *, stop_epochs: bool) -> None:
        self._broker = BrokerModel(broker_id, Disk(), lambda *_: None, stop_epochs=stop_epochs)
        self._put: list[ControlRequest] = []
        self._taken: list[ControlRequest] = []
        self._compared = 0

    def put(self, request: ControlRequest) -> None:
        self._put.append(request)

    def taken(self, request: ControlRequest, *, is_last: bool, coalesced: int) -> None:
        """`coalesced` counts what was merged so far: without anything merged there is nothing to compare."""
        self._taken.append(request)
        if is_last and coalesced > self._compared:
            self._compared = coalesced
            self._compare()

    def _compare(self) -> None:
        same = 0
        while same < min(len(self._put), len(self._taken)) and self._put[same] == self._taken[same]:
            self._broker.handle(self._put[same])
            same += 1
        twin = self._broker.copy()
        plain, merged = _told(self._broker, self._put[same:]), _told(twin, self._taken[same:])
        require(plain == merged, f"coalescing changed what broker {self._broker.id} has: {plain} became {merged}")
        self._put, self._taken = [], []


def _told(broker: BrokerModel, requests: list[ControlRequest]) -> tuple[object, ...]:
    for request in requests:
        broker.handle(request)
    return _state(broker)


def _state(broker: BrokerModel) -> tuple[object, ...]:
    """An ISR that grew within a leader epoch does not count: plainly told, it comes too late to be taken over."""
    hosted = {tp: (it.leader, it.leader_epoch, it.topic_id) for tp, it in broker.hosted.items()}
    return hosted, broker.disk.logs, broker.cache, dict(broker.live), broker.controller_epoch
