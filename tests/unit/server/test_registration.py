"""Joining a cluster: an id that is taken, and a controller that never sends anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.controller.controller_runner import ControllerHandle
from klamm.controller.replies import BrokerRegistration
from klamm.errors import ErrorCode, KlammError
from klamm.metadata import MetadataCache, MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import BrokerEndPoints, EndPoint
from klamm.server import registration

TAKEN = BrokerRegistration(error=ErrorCode.DUPLICATE_BROKER_REGISTRATION, message="it is taken")
HERE = EndPoint("INTERNAL", "somewhere", 9093)


class Controller:
    """Gives one answer after the other, the last one for ever."""

    def __init__(self, *answers: BrokerRegistration) -> None:
        self._answers = list(answers)
        self.asked = 0

    def submit(self, event: object) -> asyncio.Future[Any]:
        self.asked += 1
        future = asyncio.get_running_loop().create_future()
        future.set_result(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        return future


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration, "RETRY_S", 0.001)
    yield


def register(controller: Controller, wait_ms: int) -> BrokerRegistration:
    return asyncio.run(registration.register(cast(ControllerHandle, controller), wait_ms))


def test_an_id_that_is_taken_is_refused_at_once() -> None:
    controller = Controller(TAKEN)
    assert register(controller, 0) is TAKEN and controller.asked == 1


def test_an_id_that_may_be_our_own_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    free = BrokerRegistration(7)
    controller = Controller(TAKEN, TAKEN, TAKEN, free)
    assert register(controller, 60_000) is free and controller.asked == 4
    assert [record.getMessage() for record in caplog.records if "it is taken" in record.getMessage()] == [
        "it is taken. The last shutdown was unclean; waiting up to 60 s for that session to end"
    ]


def test_it_is_waited_for_no_longer_than_that() -> None:
    assert register(Controller(TAKEN), 20) is TAKEN


def test_another_error_is_not_waited_for() -> None:
    failed = BrokerRegistration(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="broken")
    assert register(Controller(failed), 60_000) is failed


def test_the_controller_never_comes(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KlammError, match=r"within 0\.02 s at INTERNAL://somewhere:9093: correct advertised\.listeners"):
        asyncio.run(registration.until_known(MetadataCache(1), HERE, warn_s=0.01, limit_s=0.02))
    assert [r.levelno for r in caplog.records if "INTERNAL://somewhere:9093" in r.getMessage()] == [logging.WARNING]


@pytest.mark.parametrize("warn_s", [0.0, 60.0])
def test_the_controller_comes(warn_s: float) -> None:
    async def scenario() -> None:
        metadata = MetadataCache(1)
        waiting = asyncio.ensure_future(registration.until_known(metadata, HERE, warn_s=warn_s, limit_s=120))
        await asyncio.sleep(0)
        metadata.update(MetadataUpdate(2, 1, (BrokerEndPoints(1, (HERE,)),)))
        await waiting

    asyncio.run(scenario())


def test_the_list_of_partitions_is_waited_for() -> None:
    """A new controller sends the list of live brokers first."""

    async def scenario() -> None:
        metadata, there, asked = MetadataCache(1), ["t"], asyncio.Event()

        async def children(_: str) -> tuple[str, ...]:
            asked.set()
            return tuple(there)

        zk: Any = SimpleNamespace(get_children=children)
        metadata.update(MetadataUpdate(2, 1, (BrokerEndPoints(1, (HERE,)),)))
        await registration.until_partitions_known(metadata, zk, limit_s=0.01)
        asked.clear()
        waiting = asyncio.ensure_future(registration.until_partitions_known(metadata, zk, limit_s=120))
        await asked.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        topic = TopicUpdate("t", (PartitionState("t", 0, 1, 1, 0, (1,), 0, (1,)),))
        metadata.update(MetadataUpdate(2, 1, (BrokerEndPoints(1, (HERE,)),), (topic,)))
        await waiting
        there.clear()
        await registration.until_partitions_known(MetadataCache(1), zk)

    asyncio.run(scenario())


def test_zookeeper_is_not_waited_for_longer_than_the_partitions() -> None:
    async def scenario() -> None:
        answer: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        zk: Any = SimpleNamespace(get_children=lambda _: answer)
        async with asyncio.timeout(15):
            await registration.until_partitions_known(MetadataCache(1), zk, limit_s=0.01)
        assert answer.cancelled()

    asyncio.run(scenario())
