"""Senders against brokers on loopback: order, repetition, removal, and answers that become events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from klamm.clock import SystemClock
from klamm.config import KafkaConfig
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
from klamm.model import BrokerEndPoints, EndPoint, LeaderAndIsr, SecurityProtocol, TopicPartition
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.client_security import ClientSecurity
from klamm.security.outgoing import OutgoingSecurity
from klamm.security.sasl.client_mechanisms import SaslCredentials
from klamm.security.sasl.mechanisms import OAUTHBEARER
from klamm.server import settings
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


def manager(events: Events, config: ControllerConfig | None = None) -> tuple[ControllerChannelManager, MetricsRegistry]:
    clock = SystemClock()
    metrics = MetricsRegistry(clock)
    return ControllerChannelManager(
        config or ControllerConfig(0), clock=clock, metrics=metrics, on_event=events.put
    ), metrics


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
            assert "Controller-0-to-broker-1-send-thread" in {task.get_name() for task in asyncio.all_tasks()}
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


def queue_size(
    metrics: MetricsRegistry, broker_id: int, group: str = "kafka.controller", name: str = "QueueSize"
) -> object:
    gauge = metrics.find(group, "ControllerChannelManager", name, {"broker-id": str(broker_id)})
    assert isinstance(gauge, Gauge)
    return gauge.value


def queue_peak(metrics: MetricsRegistry, broker_id: int) -> object:
    return queue_size(metrics, broker_id, "klamm.controller", "QueueSizeMax")


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


def test_request_timeout_ms_bounds_the_wait_for_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The sender resends over a new connection. With the default it would wait for 30 s, longer than this test."""

    async def scenario() -> None:
        connections: list[asyncio.StreamWriter] = []
        was_called = asyncio.Event()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            if len(connections) == 3:
                was_called.set()

        given = KafkaConfig({"request.timeout.ms": "20"})
        config = settings.controller(given, 0, (), unclean_shutdown=False, outgoing=OutgoingSecurity())
        channels, _ = manager(Events(), config)
        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            channels.add_broker(BrokerEndPoints(1, (EndPoint("PLAINTEXT", "127.0.0.1", port),), epoch=1))
            channels.send_request(1, update(3))
            await was_called.wait()
            await channels.shutdown()
            for writer in connections:
                writer.close()

    run(scenario)
    assert "sending UpdateMetadataRequest to broker 1 failed (attempt 2): the broker did not answer in" in caplog.text


def test_a_broker_that_is_down_delays_no_other_and_is_reached_at_its_new_address() -> None:
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
            assert queue_size(metrics, 2) == 1
            channels.send_request(2, update(5))
            channels.send_request(2, update(6))
            channels.add_broker(late.endpoints)
            assert [r.controller_epoch for r in await late.received(4)] == [3, 4, 5, 6]
            peaks = [queue_peak(metrics, broker_id) for broker_id in (1, 2)]
            assert queue_size(metrics, 2) == 0 and peaks == [1, 3], "a peak is seen after it is over"
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


def test_a_controller_that_misses_an_answer_receives_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        events = Events()
        channels, _ = manager(events)
        deaf = [True]

        def receive(event: ControllerEvent) -> None:
            if deaf.pop() if deaf else False:
                raise RuntimeError("not now")
            events.put(event)

        channels._on_event = receive
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            channels.send_request(1, update(3))
            await broker.received(1)
            channels.send_request(1, update(4))
            await events.wait_for(1)
            await channels.shutdown()

    run(scenario)
    assert "sending to broker 1 failed" in caplog.text


def test_the_lag_of_a_broker_is_reported_until_it_has_acknowledged_everything() -> None:
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


def test_a_failure_to_authenticate_again_costs_the_connection_only() -> None:
    """The sender waits until the connection is ready, so a failure that nobody expected must end it."""
    events = Events()
    tokens: list[int] = []

    def token() -> str:
        tokens.append(len(tokens))
        if len(tokens) == 2:
            raise RuntimeError("no token")
        return "a.b."

    login = ClientSecurity(SecurityProtocol.SASL_PLAINTEXT, sasl=SaslCredentials(OAUTHBEARER, token=token))
    channels, _ = manager(events, ControllerConfig(0, outgoing=OutgoingSecurity({"PLAINTEXT": login})))
    handshakes: list[int] = []

    def answer(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            handshakes.append(len(handshakes))
            if len(handshakes) == 2:
                channels.send_request(1, update(4))
            return SaslHandshakeResponse(error_code=0, mechanisms=[OAUTHBEARER])
        if isinstance(request, SaslAuthenticateRequest):
            lifetime_ms = 50 if len(handshakes) == 1 else 0
            return SaslAuthenticateResponse(
                error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=lifetime_ms
            )
        return success(request)

    async def scenario() -> None:
        async with FakeBroker(1, answer) as broker:
            channels.add_broker(broker.endpoints)
            channels.send_request(1, update(3))
            await events.wait_for(2)
            await channels.shutdown()

    run(scenario)
    assert len(tokens) == len(handshakes) == 3
