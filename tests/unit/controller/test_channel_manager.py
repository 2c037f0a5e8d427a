"""Senders against brokers on loopback: order, repetition, removal, and answers that become events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from klamm.clock import SystemClock
from klamm.controller import channel_manager, control_wire
from klamm.controller.channel_manager import ControllerChannelManager
from klamm.controller.config import ControllerConfig
from klamm.controller.events import ControllerEvent, LeaderAndIsrResponseReceived, UpdateMetadataResponseReceived
from klamm.controller.requests import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    RequestHead,
    UpdateMetadataBody,
    UpdateMetadataRequest,
)
from klamm.errors import ErrorCode
from klamm.metrics import Gauge, MetricsRegistry
from klamm.model import BrokerEndPoints, EndPoint, LeaderAndIsr, TopicPartition
from tests.unit.controller.fake_broker import FakeBroker, success


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


def update(epoch: int) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(RequestHead(0, epoch, 1), UpdateMetadataBody((), (), ()))


class Events:
    def __init__(self) -> None:
        self.seen: list[ControllerEvent] = []
        self._changed = asyncio.Event()

    def put(self, event: ControllerEvent) -> None:
        self.seen.append(event)
        self._changed.set()

    async def wait_for(self, count: int) -> list[ControllerEvent]:
        while len(self.seen) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.seen


def manager(events: Events) -> tuple[ControllerChannelManager, MetricsRegistry]:
    clock = SystemClock()
    metrics = MetricsRegistry(clock)
    return ControllerChannelManager(ControllerConfig(0), clock=clock, metrics=metrics, on_event=events.put), metrics


def test_requests_arrive_in_order_and_answers_become_events() -> None:
    async def scenario() -> None:
        events = Events()
        channels, _ = manager(events)
        topic_id, tp = UUID(int=5), TopicPartition("t", 0)
        state = LeaderAndIsrPartition(tp, LeaderAndIsr(1, 0, (1,)), 3, (1,))
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            channels.send_request(1, update(3))
            channels.send_request(1, LeaderAndIsrRequest(RequestHead(0, 3, 1), (state,), (("t", topic_id),)))
            channels.send_request(1, update(4))
            got = await events.wait_for(3)
            assert [type(r).__name__ for r in broker.requests] == [
                "UpdateMetadataRequest",
                "LeaderAndIsrRequest",
                "UpdateMetadataRequest",
            ]
            assert broker.client_ids == ["klamm-controller-0"] * 3
            head = RequestHead(0, 3, 1)
            assert got[:2] == [
                UpdateMetadataResponseReceived(1, head, ErrorCode.NONE),
                LeaderAndIsrResponseReceived(1, head, ErrorCode.NONE, ((tp, ErrorCode.NONE),), (0,)),
            ]
            await channels.shutdown()

    run(scenario)


def connection_metric(metrics: MetricsRegistry, name: str) -> int:
    gauge = metrics.find("kafka.server", "controller-channel-metrics", name, {"broker-id": "1"})
    assert isinstance(gauge, Gauge) and isinstance(gauge.value, int)
    return gauge.value


def test_the_same_request_is_repeated_until_it_is_answered() -> None:
    async def scenario() -> None:
        events = Events()
        channels, metrics = manager(events)
        refusals = [None, None]

        def answer(request: Any) -> Any:
            return refusals.pop() if refusals else success(request)

        async with FakeBroker(1, answer) as broker:
            channels.add_broker(broker.endpoints)
            channels.send_request(1, update(3))
            channels.send_request(1, update(4))
            await events.wait_for(2)
            assert [r.controller_epoch for r in broker.requests] == [3, 3, 3, 4]
            assert connection_metric(metrics, "connection-creation-total") == 3
            assert connection_metric(metrics, "connection-count") == 1
            assert connection_metric(metrics, "request-total") == 4
            assert connection_metric(metrics, "response-total") == 2
            assert (
                0
                < connection_metric(metrics, "incoming-byte-total")
                < connection_metric(metrics, "outgoing-byte-total")
            )
            await channels.shutdown()

    run(scenario)


def test_a_broker_that_is_down_delays_nobody_else_and_is_reached_at_its_new_address() -> None:
    async def scenario() -> None:
        events = Events()
        channels, metrics = manager(events)
        async with FakeBroker(1) as up, FakeBroker(2) as late:
            nowhere = BrokerEndPoints(2, (EndPoint("OTHER", "127.0.0.1", 1),), epoch=1)
            channels.add_broker(nowhere)
            channels.add_broker(up.endpoints)
            for broker_id in (2, 1):
                channels.send_request(broker_id, update(3))
            await up.received(1)
            channels.send_request(2, update(4))
            assert late.requests == []
            gauge = metrics.find("kafka.controller", "ControllerChannelManager", "QueueSize", {"broker-id": "2"})
            assert isinstance(gauge, Gauge) and gauge.value == 1
            channels.add_broker(late.endpoints)
            assert [r.controller_epoch for r in await late.received(2)] == [3, 4]
            await channels.shutdown()

    run(scenario)


def test_a_removed_broker_gets_nothing_more_and_leaves_no_metrics() -> None:
    async def scenario() -> None:
        events = Events()
        channels, metrics = manager(events)
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            channels.send_request(1, update(3))
            await events.wait_for(1)
            channels.remove_broker(1)
            channels.send_request(1, update(4))
            assert "broker_id" not in metrics.exposition()
            await channels.shutdown()
            assert len(broker.requests) == 1

    run(scenario)


def test_a_request_that_cannot_be_sent_or_whose_answer_cannot_be_read_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender never ends: later requests are sent, and the controller learns of both."""

    async def scenario() -> None:
        events = Events()
        channels, _ = manager(events)
        real = control_wire.decode_response

        def decode(request: Any, message: Any) -> Any:
            if request.head.controller_epoch == 4:
                raise ValueError("no answer at all")
            return real(request, message)

        monkeypatch.setattr(channel_manager, "decode_response", decode)
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            nobody: Any = ("no broker at all",)
            channels.send_request(1, UpdateMetadataRequest(RequestHead(0, 3, 1), UpdateMetadataBody((), (), nobody)))
            await events.wait_for(1)
            channels.send_request(1, update(4))
            channels.send_request(1, update(5))
            got = await events.wait_for(3)
            assert [event.error for event in got if isinstance(event, UpdateMetadataResponseReceived)] == [
                ErrorCode.UNKNOWN_SERVER_ERROR,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                ErrorCode.NONE,
            ]
            assert [r.controller_epoch for r in broker.requests] == [4, 5]
            await channels.shutdown()

    run(scenario)
    assert caplog.text.count("giving up a UpdateMetadataRequest for broker 1") == 2


def test_a_controller_that_cannot_hear_the_answer_hears_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        events = Events()
        channels, _ = manager(events)
        deaf = [True]

        def hear(event: ControllerEvent) -> None:
            if deaf.pop() if deaf else False:
                raise RuntimeError("not now")
            events.put(event)

        channels._on_event = hear
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            channels.send_request(1, update(3))
            await broker.received(1)
            channels.send_request(1, update(4))
            await events.wait_for(1)
            await channels.shutdown()

    run(scenario)
    assert "sending to broker 1 failed" in caplog.text


def test_how_far_a_broker_lags_is_told_until_it_has_acknowledged_everything() -> None:
    async def scenario() -> None:
        events = Events()
        channels, metrics = manager(events)

        def value(name: str) -> Any:
            gauge = metrics.find("klamm.controller", "ControllerChannelManager", name, {"broker-id": "1"})
            assert isinstance(gauge, Gauge)
            return gauge.value

        def standing() -> tuple[Any, ...]:
            return tuple(map(value, ("LastQueuedRequest", "LastAcknowledgedRequest", "MetadataLag")))

        async with FakeBroker(1) as broker:
            nowhere = BrokerEndPoints(1, (EndPoint("OTHER", "127.0.0.1", 1),), epoch=1)
            channels.add_broker(nowhere)
            assert standing() == (0, 0, 0)
            channels.send_request(1, update(3))
            await asyncio.sleep(0)
            assert standing() == (1, 0, 1), "in flight"
            for _ in range(3):
                channels.send_request(1, update(3))
            assert standing() == (4, 0, 4), "what is coalesced counts as well"
            channels.add_broker(broker.endpoints)
            await events.wait_for(2)
            assert standing() == (4, 4, 0)
            await channels.shutdown()

    run(scenario)
