"""The control loop in its thread, over the embedded ZooKeeper, sending to brokers on loopback."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from klamm.clock import SystemClock
from klamm.control_log import ControlLogBuffer
from klamm.control_log.records import SessionChanged
from klamm.controller.config import ControllerConfig
from klamm.controller.controller_runner import ControllerRunner, registration_pause_s
from klamm.controller.events import (
    AllocateProducerIds,
    ControllerEvent,
    CreatableTopic,
    CreateTopics,
    DeleteTopics,
    ListPartitionReassignments,
    Startup,
)
from klamm.controller.replies import BrokerRegistration, EventReply
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import GetData
from klamm.zk.model.znodes import decode_controller, decode_topic
from klamm.zk.server.server import EmbeddedZooKeeper
from tests.unit.controller.fake_broker import FakeBroker


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 100)

    asyncio.run(bounded())


@dataclass
class Cluster:
    zk: EmbeddedZooKeeper
    session: ZkSession
    runner: ControllerRunner
    broker: FakeBroker
    recorded: ControlLogBuffer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Polls: the condition is met by other threads and by ZooKeeper."""
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One broker: its controller is real, its handlers are the test's."""
    zk = await EmbeddedZooKeeper(tmp_path, fsync=False, min_session_timeout_ms=200).start()
    session = await ZkSession(zk.address, 30_000).start()
    await session.ensure_paths(paths.PERSISTENT_PATHS)
    clock = SystemClock()
    recorded = ControlLogBuffer("control", 1000, clock)
    runner = ControllerRunner(
        zk=session,
        clock=clock,
        rng=random.Random(1),
        metrics=MetricsRegistry(clock),
        loop=asyncio.get_running_loop(),
        control_log=recorded,
    )
    async with FakeBroker(1) as broker:
        runner.start(ControllerConfig(1, endpoints=broker.endpoints.endpoints))
        try:
            yield Cluster(zk, session, runner, broker, recorded)
        finally:
            await runner.stop()
            await session.close()
            await zk.stop()


def test_one_broker_registers_leads_and_creates_a_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as it:
            handle = it.runner.handle
            registration = await handle.submit(Startup())
            assert registration.error is ErrorCode.NONE and registration.broker_epoch > 0
            created = await handle.submit(CreateTopics((CreatableTopic("t", 2, 1),)))
            assert created.topics[0].error is ErrorCode.NONE
            assert handle.is_active and handle.active_controller_id == 1
            assert handle.broker_epoch == registration.broker_epoch
            names = [type(r).__name__ for r in await it.broker.received(3)]
            assert names[:3] == ["UpdateMetadataRequest", "LeaderAndIsrRequest", "UpdateMetadataRequest"]
            assert all(r.broker_epoch == registration.broker_epoch for r in it.broker.requests)
            stored = await it.session.read(GetData(paths.topic_path("t")))
            assert decode_topic("t", stored.data).topic_id == created.topics[0].topic_id
            block = await handle.submit(AllocateProducerIds(1, registration.broker_epoch))
            assert (block.start, block.length) == (0, 1000)

    run(scenario)


def test_a_deleted_topic_goes_when_the_broker_has_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as it:
            handle = it.runner.handle
            await handle.submit(Startup())
            await handle.submit(CreateTopics((CreatableTopic("t", 1, 1),)))
            deleted = await handle.submit(DeleteTopics(("t", "unknown")))
            assert [t.error for t in deleted.topics] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            await it.until(lambda: it.zk.tree.stat(paths.topic_path("t")) is None)
            await it.until(lambda: it.zk.tree.stat(paths.delete_topic_path("t")) is None)
            again = await handle.submit(CreateTopics((CreatableTopic("t", 1, 1),)))
            assert again.topics[0].error is ErrorCode.NONE

    run(scenario)


def test_an_expired_session_ends_the_role_and_a_new_one_wins_it_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as it:
            handle = it.runner.handle
            first = await handle.submit(Startup())
            await handle.submit(CreateTopics((CreatableTopic("t", 1, 1),)))
            before = f"{it.session.session_id:#x}"
            it.zk.expire_session(it.session.session_id)
            await it.until(lambda: handle.broker_epoch > first.broker_epoch and handle.is_active)
            assert (await handle.submit(ListPartitionReassignments())).error is ErrorCode.NONE
            controller = await it.session.read(GetData(paths.CONTROLLER))
            assert decode_controller(controller.data).broker_id == 1
            epoch = await it.session.read(GetData(paths.CONTROLLER_EPOCH))
            assert epoch.data == b"2"
            await it.until(lambda: it.broker.requests[-1].broker_epoch == handle.broker_epoch)
            records = [entry.record for entry in it.recorded.take(1000)]
            sessions = [each for each in records if isinstance(each, SessionChanged)]
            assert [(each.session, each.session_id) for each in sessions] == [
                ("established", before),
                ("expired", before),
                ("established", f"{it.session.session_id:#x}"),
            ]

    run(scenario)


def test_a_stopped_runner_refuses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as it:
            await it.runner.handle.submit(Startup())
            await it.runner.stop()
            reply = await it.runner.handle.submit(CreateTopics((CreatableTopic("t", 1, 1),)))
            assert reply.error is ErrorCode.NOT_CONTROLLER

    run(scenario)


def test_a_control_loop_that_has_ended_by_itself_refuses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as it:
            await it.runner.handle.submit(Startup())
            assert it.runner._loop is not None and it.runner._manager is not None
            it.runner._loop.call_soon_threadsafe(it.runner._manager.close)
            await it.until(it.runner._loop.is_closed)
            reply = await it.runner.handle.submit(CreateTopics((CreatableTopic("t", 1, 1),)))
            assert reply.error is ErrorCode.NOT_CONTROLLER

    run(scenario)


class Registrations:
    """The event manager as the runner's registration sees it: it refuses a number of times."""

    is_closing = False

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.attempts = 0
        self.registered = asyncio.Event()

    def put(self, event: ControllerEvent, on_reply: Callable[[EventReply], object]) -> None:
        self.attempts += 1
        if self.attempts <= self.refusals:
            on_reply(BrokerRegistration(error=ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            on_reply(BrokerRegistration(5))
            self.registered.set()


def test_registration_is_retried_until_it_succeeds_and_logged_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        registry, loop = MetricsRegistry(clock), asyncio.get_running_loop()
        zk = SimpleNamespace(session_id=7)
        runner = ControllerRunner(zk=zk, clock=clock, rng=random.Random(1), metrics=registry, loop=loop)  # type: ignore[arg-type]
        manager = Registrations(20)
        runner._manager = manager  # type: ignore[assignment]
        runner._after_new_session()
        await manager.registered.wait()
        assert manager.attempts == 21
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == 5 and "attempt 16" in warnings[-1] and "UNKNOWN_SERVER_ERROR" in warnings[0]
        zk.session_id = 8
        runner._register(7, 1)
        assert manager.attempts == 21

    pauses = [registration_pause_s(attempt) for attempt in range(1, 100)]
    assert pauses == sorted(pauses) and pauses[0] < 1 < pauses[-1]
    monkeypatch.setattr("klamm.controller.controller_runner.REGISTRATION_RETRY_S", 0.0)
    run(scenario)
