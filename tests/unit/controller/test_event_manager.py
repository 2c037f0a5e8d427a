"""The controller's event queue: order, preemption, an answer for every caller, errors that do not end it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.controller import event_manager
from klamm.controller.config import ControllerConfig
from klamm.controller.controller import KafkaController
from klamm.controller.effects import MultiResults, ReadResults
from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import (
    ControlledShutdown,
    ControllerEvent,
    DeleteTopics,
    Expire,
    ListPartitionReassignments,
    Reelect,
    Startup,
)
from klamm.controller.metrics import ControllerMetrics
from klamm.controller.replies import ControlledShutdownResult, EventReply, Reassignments, TopicResults
from klamm.controller.requests import ControlRequest
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import BrokerEndPoints, TopicPartition
from klamm.zk.model.ops import ReadOp, SessionExpired, WriteOp


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


class Stuck:
    """A ZooKeeper that answers only on demand, and then with an error."""

    session_id = 1

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.error: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def read(self, ops: tuple[ReadOp, ...]) -> ReadResults:
        self.asked.set()
        raise await self.error

    async def multi(self, ops: tuple[WriteOp, ...]) -> MultiResults:
        self.asked.set()
        raise await self.error


class NoChannels:
    def add_broker(self, broker: BrokerEndPoints) -> None: ...

    def remove_broker(self, broker_id: int) -> None: ...

    def remove_all(self) -> None: ...

    def send_request(self, broker_id: int, request: ControlRequest) -> None: ...

    def ask_log_ends(self, broker: BrokerEndPoints, partitions: tuple[tuple[TopicPartition, int], ...]) -> None: ...


class Setup:
    def __init__(self) -> None:
        clock = SystemClock()
        self.zk = Stuck()
        self.registry = MetricsRegistry(clock)
        controller = KafkaController(ControllerConfig(1), clock, Random(0))
        metrics = ControllerMetrics(self.registry, controller)
        self.manager = ControllerEventManager(controller, self.zk, NoChannels(), clock=clock, metrics=metrics)
        self.task = asyncio.get_running_loop().create_task(self.manager.run())

    def ask(self, event: ControllerEvent) -> asyncio.Future[EventReply]:
        future: asyncio.Future[EventReply] = asyncio.get_running_loop().create_future()
        self.manager.put(event, future.set_result)
        return future

    async def close(self) -> None:
        self.manager.close()
        await self.task


def test_a_broker_that_is_not_the_controller_refuses() -> None:
    async def scenario() -> None:
        it = Setup()
        reply = await it.ask(DeleteTopics(("t",)))
        assert isinstance(reply, TopicResults) and reply.topics[0].error is ErrorCode.NOT_CONTROLLER
        assert await it.ask(ListPartitionReassignments()) == Reassignments(error=ErrorCode.NOT_CONTROLLER)
        await it.close()

    run(scenario)


def test_expiry_clears_the_queue_and_answers_every_caller() -> None:
    async def scenario() -> None:
        it = Setup()
        busy = it.ask(Startup())
        await it.zk.asked.wait()
        waiting = [it.ask(ControlledShutdown(2, 5)), it.ask(DeleteTopics(("t",)))]
        expire = it.manager.clear_and_put(Expire())
        assert await waiting[0] == ControlledShutdownResult(ErrorCode.STALE_CONTROLLER_EPOCH)
        assert (await waiting[1]).error is ErrorCode.NOT_CONTROLLER  # type: ignore[union-attr]
        assert not busy.done() and not expire.spent
        it.zk.error.set_result(SessionExpired())
        await expire.await_processing()
        assert (await busy).error is ErrorCode.NOT_CONTROLLER  # type: ignore[union-attr]
        await it.close()

    run(scenario)


def test_an_unexpected_error_answers_the_caller_and_the_queue_continues(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        it = Setup()
        broken = it.ask(Startup())
        it.zk.error.set_result(RuntimeError("nobody thought of this"))
        assert (await broken).error is ErrorCode.UNKNOWN_SERVER_ERROR  # type: ignore[union-attr]
        assert await it.ask(ListPartitionReassignments()) == Reassignments(error=ErrorCode.NOT_CONTROLLER)
        await it.close()

    run(scenario)
    assert "[ControllerEventThread controllerId=1] Startup failed: giving up the role of controller" in caplog.messages


def test_after_close_everything_is_refused() -> None:
    async def scenario() -> None:
        it = Setup()
        await it.close()
        assert (await it.ask(DeleteTopics(("t",)))).error is ErrorCode.NOT_CONTROLLER  # type: ignore[union-attr]

    run(scenario)


def test_the_queue_is_measured() -> None:
    async def scenario() -> None:
        it = Setup()
        it.ask(Reelect())
        await it.zk.asked.wait()
        it.ask(ListPartitionReassignments())
        text = it.registry.exposition()
        assert "\nkafka_controller_controllereventmanager_eventqueuesize 1\n" in text
        assert "\nkafka_controller_kafkacontroller_controllerstate 1\n" in text
        replies = [it.ask(ListPartitionReassignments()) for _ in range(2)]
        assert "\nklamm_controller_controllereventmanager_eventqueuesizemax 3\n" in it.registry.exposition()
        it.zk.error.set_result(SessionExpired())
        await asyncio.gather(*replies)
        text = it.registry.exposition()
        assert "\nkafka_controller_controllereventmanager_eventqueuesize 0\n" in text
        assert "\nklamm_controller_controllereventmanager_eventqueuesizemax 3\n" in text, "a peak that is over"
        await it.close()

    run(scenario)


def test_a_failover_does_without_the_garbage_collector() -> None:
    async def scenario() -> None:
        it = Setup()
        it.ask(Reelect())
        await it.zk.asked.wait()
        assert not gc.isenabled()
        it.zk.error.set_result(SessionExpired())
        await it.close()
        assert gc.isenabled()

    run(scenario)


def test_a_failover_that_waits_for_zookeeper_gets_the_collector_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_manager, "COLLECTOR_OFF_S", 0.001)

    async def scenario() -> None:
        it = Setup()
        it.ask(Reelect())
        await it.zk.asked.wait()
        while not gc.isenabled():  # noqa: ASYNC110 - the collector has no event
            await asyncio.sleep(0.001)
        assert not it.task.done()
        it.zk.error.set_result(SessionExpired())
        await it.close()
        assert gc.isenabled()

    run(scenario)
