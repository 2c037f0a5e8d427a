"""What is said and done when the controller does not answer, or cannot let the broker go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.controller.replies import ControlledShutdownResult
from klamm.metadata import MetadataCache, MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import BrokerEndPoints, EndPoint, TopicPartition
from klamm.network.client import BrokerConnection
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.server import controlled_shutdown as module
from klamm.server.controlled_shutdown import controlled_shutdown
from klamm.server.controller_channel import ControllerChannel
from klamm.zk.session import SessionListener, SessionState


class Session:
    """As much of a ZkSession as a controlled shutdown looks at."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self.listeners: list[SessionListener] = []
        self.add_listener = self.listeners.append

    def lose_connection(self) -> None:
        self.state = SessionState.SUSPENDED
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
    return cast(Broker, SimpleNamespace(zk=zk, controller=controller, **parts))


async def refuse(*_: object, **__: object) -> BrokerConnection:
    raise ConnectionError


def test_a_failure_without_a_text(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(BrokerConnection, "connect", refuse)
    asked = broker(Session(), SimpleNamespace(is_active=False))
    assert not asyncio.run(controlled_shutdown(asked))
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["The controller did not answer the controlled shutdown: time ran out"] * 2


def test_a_channel_names_a_failure_without_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerConnection, "connect", refuse)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        channel = ControllerChannel(metadata(), "PLAINTEXT", name="test", loop=loop, timeout_ms=60)
        with pytest.raises(TimeoutError, match="could not be asked: it does not answer"):
            await channel.send(ControlledShutdownRequest(broker_id=1, broker_epoch=7), 3)
        await channel.close()

    asyncio.run(scenario())


def test_zookeeper_goes_while_the_controller_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> bool:
        zk = Session()

        def submit(event: object) -> asyncio.Future[Any]:
            asyncio.get_running_loop().call_soon(zk.lose_connection)
            return asyncio.get_running_loop().create_future()

        return await controlled_shutdown(broker(zk, SimpleNamespace(is_active=True, submit=submit)))

    assert not asyncio.run(scenario())
    assert "this broker is the controller and ZooKeeper is away" in caplog.text


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
    assert "Leaving without a controlled shutdown: ZooKeeper is away, and the controller does not answer" in caplog.text


@pytest.mark.parametrize(("replicas", "asked"), [((1, 3), 1), ((1, 2), 2)], ids=["nobody", "a live broker"])
def test_partitions_remain(
    replicas: tuple[int, ...], asked: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It asks again only while there is a broker that could take over what remains."""
    times: list[object] = []

    async def scenario() -> bool:
        def submit(event: object) -> asyncio.Future[Any]:
            times.append(event)
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_result(ControlledShutdownResult(remaining=tuple(TopicPartition("t", p) for p in range(7))))
            return answer

        leaving = broker(Session(), SimpleNamespace(is_active=True, submit=submit))
        states = tuple(PartitionState("t", p, 2, 1, 0, (1,), 0, replicas) for p in range(7))
        live = (BrokerEndPoints(2, (EndPoint("PLAINTEXT", "a", 9092),)),)
        leaving.metadata.update(MetadataUpdate(2, 2, live, (TopicUpdate("t", states),)))
        return await controlled_shutdown(leaving)

    monkeypatch.setattr(module, "_LOOK_S", 0.001)
    assert not asyncio.run(scenario())
    assert len(times) == asked
    said = "Leaving: no other live broker has a replica of" if asked == 1 else "No other replica in sync can lead"
    assert f"{said} t-0, t-1, t-2, t-3, t-4 and 2 more partitions" in caplog.text
