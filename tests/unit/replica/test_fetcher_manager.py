"""Which fetcher copies which partition, and when fetchers come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.wire import Message
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.fetcher_manager import ReplicaFetcherManager, connect_by_metadata
from tests.support.one_broker import OneBroker
from tests.support.waiting import until


class Silent:
    """A leader without news: it holds every fetch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_closed = False
        self.sent: list[Message] = []

    def send(self, request: Message, version: int) -> asyncio.Future[Any]:
        self.sent.append(request)
        future: asyncio.Future[Any] = self._loop.create_future()
        if len(self.sent) == 1:
            future.set_result(FetchResponse(session_id=0, responses=()))
        return future

    def close(self) -> None:
        self.is_closed = True


class Setting:
    def __init__(self, tmp_path: Path, num_fetchers: int = 1) -> None:
        self.one = OneBroker(tmp_path)
        self.connections: list[tuple[int, Silent]] = []
        self.unreachable: set[int] = set()
        self.attempts = 0
        replicas = self.one.broker.replicas
        self.manager = ReplicaFetcherManager(
            FetcherConfig(broker_id=1, num_fetchers=num_fetchers, backoff_ms=60_000),
            replicas=replicas,
            loop=self.one.loop,
            connect=self._connect,
            broker_epoch=lambda: 1,
        )
        replicas.fetchers = self.manager

    async def _connect(self, leader_id: int) -> Silent:
        self.attempts += 1
        if leader_id in self.unreachable:
            raise ConnectionRefusedError("nobody there")
        connection = Silent(self.one.loop)
        self.connections.append((leader_id, connection))
        return connection

    def follow(self, topic: str, leader: int, partitions: int = 1, leader_epoch: int = 0) -> None:
        self.one.leader_and_isr(
            {topic: list(range(partitions))},
            leader=leader,
            leader_epoch=leader_epoch,
            replicas=(1, 2, 3),
            isr=(1, 2, 3),
        )

    def until(self, condition: Callable[[], object]) -> None:
        self.one.run(asyncio.ensure_future(until(condition), loop=self.one.loop))

    def leaders(self) -> list[int]:
        return sorted(fetcher.leader_id for fetcher in self.manager.fetchers)

    def close(self) -> None:
        self.one.run(asyncio.ensure_future(self.manager.close(), loop=self.one.loop))
        self.one.close()


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    yield made
    made.close()


def test_one_fetcher_a_leader_and_idle_ones_end(setting: Setting) -> None:
    setting.follow("a", 2, 3)
    setting.follow("b", 3)
    assert setting.leaders() == [2, 3]
    setting.until(lambda: len(setting.connections) == 2)
    setting.follow("b", 2, leader_epoch=1)
    setting.one.spin()
    assert setting.leaders() == [2]
    old = next(connection for leader, connection in setting.connections if leader == 3)
    setting.until(lambda: old.is_closed)
    setting.one.stop_replica("a", 0)
    assert [len(fetcher.states) for fetcher in setting.manager.fetchers] == [3]


def test_a_fetcher_that_gets_new_work_at_once_continues(setting: Setting) -> None:
    setting.follow("a", 2)
    (before,) = setting.manager.fetchers
    setting.follow("a", 2, leader_epoch=1)
    setting.one.spin()
    assert setting.manager.fetchers == (before,) and len(before.states) == 1


def test_a_replica_that_leads_or_has_no_leader_fetches_nothing(setting: Setting) -> None:
    setting.follow("a", 2)
    setting.follow("a", 1, leader_epoch=1)
    setting.follow("b", -1)
    setting.one.spin()
    assert setting.manager.fetchers == ()


def test_a_leader_without_an_address_is_tried_when_brokers_change(setting: Setting) -> None:
    setting.unreachable.add(2)
    setting.follow("a", 2)
    setting.until(lambda: setting.attempts >= 2)
    setting.unreachable.clear()
    setting.one.update_metadata({}, brokers=(1, 2))
    setting.until(lambda: setting.connections)
    assert setting.connections[0][0] == 2
    setting.until(lambda: setting.connections[0][1].sent)
    assert isinstance(setting.connections[0][1].sent[0], FetchRequest)


def test_the_metadata_names_the_address(setting: Setting) -> None:
    connect = connect_by_metadata(FetcherConfig(broker_id=1), setting.one.broker.metadata, setting.one.broker.metrics)
    with pytest.raises(ConnectionError, match="no address of broker 2"):
        setting.one.run(asyncio.ensure_future(connect(2), loop=setting.one.loop))


def test_more_fetchers_share_the_partitions(setting: Setting) -> None:
    setting.follow("a", 2, 8)
    setting.manager.resize(4)
    setting.one.spin()
    assert [len(fetcher.states) for fetcher in setting.manager.fetchers] == [2, 2, 2, 2]
    setting.manager.resize(1)
    setting.one.spin()
    assert [len(fetcher.states) for fetcher in setting.manager.fetchers] == [8]


def test_gauges_and_meters(setting: Setting) -> None:
    setting.follow("a", 2)
    setting.until(lambda: setting.connections and len(setting.connections[0][1].sent) == 2)
    text = setting.one.broker.metrics.exposition().lower()
    for name in ("maxlag", "minfetchrate", "failedpartitionscount", "deadthreadcount"):
        assert f"kafka_server_replicafetchermanager_{name}" in text
    assert "kafka_server_fetcherstats_requests" in text
