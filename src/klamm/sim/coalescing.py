"""Coalescing must change nothing: for every channel, one model broker receives all queued requests and another one the
sent requests."""

from __future__ import annotations

from klamm.controller.requests import ControlRequest
from klamm.sim.broker_model import BrokerModel, Disk
from klamm.sim.violation import require


class DeliveryTwins:
    """Whenever requests were merged and the queue is empty, both must have the same metadata and replicas.

    Until then requests are only stored, since most channels never merge. While both receive the same requests, one
    broker stands for both.
    """

    def __init__(self, broker_id: int, *, stop_epochs: bool) -> None:
        self._broker = BrokerModel(broker_id, Disk(), lambda *_: None, stop_epochs=stop_epochs)
        self._put: list[ControlRequest] = []
        self._taken: list[ControlRequest] = []
        self._compared = 0

    def put(self, request: ControlRequest) -> None:
        self._put.append(request)

    def taken(self, request: ControlRequest, *, is_last: bool, coalesced: int) -> None:
        """`coalesced` counts merged requests: without any there is nothing to compare."""
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
        plain, merged = _outcome(self._broker, self._put[same:]), _outcome(twin, self._taken[same:])
        require(plain == merged, f"coalescing changed what broker {self._broker.id} has: {plain} became {merged}")
        self._put, self._taken = [], []


def _outcome(broker: BrokerModel, requests: list[ControlRequest]) -> tuple[object, ...]:
    for request in requests:
        broker.handle(request)
    return _state(broker)


def _state(broker: BrokerModel) -> tuple[object, ...]:
    """An ISR that grew within a leader epoch is ignored: without coalescing it arrives too late to be applied."""
    hosted = {tp: (it.leader, it.leader_epoch, it.topic_id) for tp, it in broker.hosted.items()}
    return hosted, broker.disk.logs, broker.cache, dict(broker.live), broker.controller_epoch
