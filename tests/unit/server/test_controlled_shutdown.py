"""Controlled shutdown if the controller does not answer or refuses it: log lines and actions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.broker import Broker
from klamm.client.asyncio_connection import BrokerConnection
from klamm.config import KafkaConfig
from klamm.controller.replies import ControlledShutdownResult
from klamm.errors import ErrorCode
from klamm.metadata import MetadataCache, MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import BrokerEndPoints, EndPoint, TopicPartition
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.security.outgoing import OutgoingSecurity
from klamm.server import controlled_shutdown as module
from klamm.server.controlled_shutdown import controlled_shutdown
from klamm.server.controller_channel import ControllerChannel
from klamm.zk.client.zk_session import SessionListener, SessionState


class Session:
    """As much of a ZkSession as a controlled shutdown looks at."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self.listeners: list[SessionListener] = []
        self.add_listener = self.listeners.append

    def lose_connection(self) -> None:
        self._become(SessionState.SUSPENDED)

    def reconnect(self) -> None:
        self._become(SessionState.CONNECTED)

    def _become(self, state: SessionState) -> None:
        self.state = state
        for listener in self.listeners:
            assert listener.on_state is not None
            listener.on_state(self.state)


def metadata() -> MetadataCache:
    cache = MetadataCache(1)
    cache.update(MetadataUpdate(2, 1, (BrokerEndPoints(2, (EndPoint("PLAINTEXT", "a", 9092),)),)))
    return cache


def broker(zk: Session, controller: Any) -> Broker:
    config = KafkaConfig({"controlled.shutdown.max.retries": 2, "controlled.shutdown.retry.backoff.ms": 0})
    parts = {"id": 1, "broker_epoch": 7, "config": config, "controller_id": 2, "metadata": metadata()}
    return cast(Broker, SimpleNamespace(zk=zk, controller=controller, outgoing=OutgoingSecurity(), **parts))


async def refuse(*_: object, **__: object) -> BrokerConnection:
    raise ConnectionError


def test_a_failure_without_a_text(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(BrokerConnection, "connect", refuse)
    asked = broker(Session(), SimpleNamespace(is_active=False))
    assert not asyncio.run(controlled_shutdown(asked))
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["the controller did not answer the controlled shutdown: time ran out"] * 2


def test_a_channel_names_a_failure_without_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerConnection, "connect", refuse)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        channel = ControllerChannel(metadata(), "PLAINTEXT", name="test", loop=loop, timeout_ms=60)
        with pytest.raises(TimeoutError, match="could not be asked: it does not answer"):
            await channel.send(ControlledShutdownRequest(broker_id=1, broker_epoch=7), 3)
        await channel.close()

    asyncio.run(scenario())


def test_zookeeper_goes_while_the_controller_is_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> bool:
        zk = Session()

        def submit(event: object) -> asyncio.Future[Any]:
            asyncio.get_running_loop().call_soon(zk.lose_connection)
            return asyncio.get_running_loop().create_future()

        return await controlled_shutdown(broker(zk, SimpleNamespace(is_active=True, submit=submit)))

    monkeypatch.setattr(module, "_WITHOUT_ZOOKEEPER_S", 0.01)
    assert not asyncio.run(scenario())
    assert "this broker is the controller and ZooKeeper is unreachable" in caplog.text


class Timers:
    """`call_later` of a loop, by hand: those that were not cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._handles: list[asyncio.TimerHandle] = []
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def later(delay: float, callback: Any, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            if delay != module._WITHOUT_ZOOKEEPER_S:
                return call_later(delay, callback, *args, **kwargs)
            self._handles.append(asyncio.TimerHandle(loop.time(), callback, args, loop))
            return self._handles[-1]

        monkeypatch.setattr(loop, "call_later", later)

    def waiting(self) -> list[asyncio.TimerHandle]:
        return [handle for handle in self._handles if not handle.cancelled()]

    def fire(self) -> None:
        for handle in self.waiting():
            handle._run()


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_connection_that_comes_back_ends_the_wait(is_controller: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loss of ZooKeeper starts a full time limit, and after a timeout the broker tries again."""

    async def scenario() -> bool:
        zk, timers = Session(), Timers(monkeypatch)
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def ask(*_: object, **__: object) -> asyncio.Future[Any]:
            asked.set_result(None)
            return answer

        monkeypatch.setattr(module, "_ask", ask_with(ask))
        leaving = asyncio.ensure_future(controlled_shutdown(broker(zk, SimpleNamespace(is_active=is_controller))))
        await asked
        for _ in range(3):
            zk.lose_connection()
            assert len(timers.waiting()) == 1, "one for this time, none of those before"
            zk.reconnect()
            assert not timers.waiting()
        zk.lose_connection()
        timers.fire()
        zk.reconnect()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not leaving.done(), "it is connected again before anybody has looked"
        answer.set_result((ErrorCode.NONE, ()))
        return await leaving

    assert asyncio.run(scenario())


def ask_with(answer: Any) -> Any:
    async def ask(asking: Broker) -> Any:
        return await answer(asking)

    return ask


def test_zookeeper_is_away_and_the_controller_is_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait for minutes: the controller has no ZooKeeper either, and answers when it has."""

    async def never(*_: object, **__: object) -> BrokerConnection:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def scenario() -> bool:
        zk = Session()
        zk.state = SessionState.SUSPENDED
        return await controlled_shutdown(broker(zk, SimpleNamespace(is_active=False)))

    monkeypatch.setattr(BrokerConnection, "connect", never)
    monkeypatch.setattr(module, "_WITHOUT_ZOOKEEPER_S", 0.01)
    assert not asyncio.run(scenario())
    said = "leaves without a controlled shutdown: ZooKeeper is unreachable, and the controller does not answer"
    assert said in caplog.text


@pytest.mark.parametrize(
    "replicas", [(1, 3), (1, 2), None], ids=["one that starts again", "a live broker", "nobody knows them"]
)
def test_partitions_remain(replicas: tuple[int, ...] | None, caplog: pytest.LogCaptureFixture) -> None:
    """It asks as often as it is configured to: a replica that is not there now may be back the next time."""
    times: list[object] = []

    async def scenario() -> bool:
        def submit(event: object) -> asyncio.Future[Any]:
            times.append(event)
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_result(ControlledShutdownResult(remaining=tuple(TopicPartition("t", p) for p in range(7))))
            return answer

        leaving = broker(Session(), SimpleNamespace(is_active=True, submit=submit))
        if replicas is not None:
            states = tuple(PartitionState("t", p, 2, 1, 0, (1,), 0, replicas) for p in range(7))
            live = (BrokerEndPoints(2, (EndPoint("PLAINTEXT", "a", 9092),)),)
            leaving.metadata.update(MetadataUpdate(2, 2, live, (TopicUpdate("t", states),)))
        return await controlled_shutdown(leaving)

    assert not asyncio.run(scenario())
    assert len(times) == 2
    said = "controlled shutdown: no other replica in sync can lead t-0, t-1, t-2, t-3, t-4 and 2 more partitions yet"
    assert caplog.text.count(said) == 2
    assert "controlled shutdown failed: leaders move" in caplog.text
