"""Which fetcher copies which partition, and when fetchers come and go."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.wire import Message
from klamm.replica import fetcher_manager, replica_manager, state_change
from klamm.replica.fetch_state import PartitionFetchState
from klamm.replica.fetcher import ReplicaFetcher
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

    def turn(self) -> None:
        """One turn of the loop."""
        self.one.loop.call_soon(self.one.loop.stop)
        self.one.loop.run_forever()

    def idle(self) -> asyncio.Future[Any]:
        """Done when all changes of the replicas that were submitted before are applied."""
        done: asyncio.Future[Any] = self.one.loop.create_future()
        self.one.broker.replicas.exclusively(lambda: done.set_result(None))
        return done

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


class TestResizing:
    """20,000 partitions are not moved in one turn of the loop."""

    MANY = 40

    @pytest.fixture(autouse=True)
    def small_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetcher_manager, "MOVED_PER_SLICE", 3, raising=False)
        monkeypatch.setattr(fetcher_manager, "CHECKED_PER_SLICE", 10, raising=False)

    def states(self, setting: Setting) -> dict[TopicPartition, tuple[ReplicaFetcher, PartitionFetchState]]:
        """The fetcher and the state of each partition, which has one of each."""
        found = [(tp, (each, state)) for each in setting.manager.fetchers for tp, state in each.states.items()]
        assert len(found) == len(dict(found))
        for tp, (owner, state) in found:
            assert (
                setting.manager._owner[tp] is owner and state.is_current and state.partition.leader == owner.leader_id
            )
        return dict(found)

    def test_few_partitions_move_per_turn(self, setting: Setting) -> None:
        setting.follow("a", 2, self.MANY)
        for num_fetchers, moved in (4, self.MANY * 3 // 4), (1, self.MANY * 3 // 4):
            at_first = before = self.states(setting)
            setting.manager.resize(num_fetchers)
            turns: list[int] = []
            idle = setting.idle()
            while not turns or not idle.done():
                now = self.states(setting)
                assert len(now) == self.MANY, "each is copied all the time"
                turns.append(sum(now[tp] != before[tp] for tp in now))
                before = now
                setting.turn()
            assert before == self.states(setting)
            assert sum(turns) == moved and max(turns) <= 3
            unmoved = [tp for tp in before if before[tp][0] is at_first[tp][0]]
            assert len(unmoved) == self.MANY - moved, "those of the same fetcher stay"
            assert all(before[tp] == at_first[tp] for tp in unmoved), "and begin nothing again"
        setting.one.spin()
        assert [len(fetcher.states) for fetcher in setting.manager.fetchers] == [self.MANY]

    def test_many_partitions_that_stay_are_checked_in_several_turns(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        setting.follow("a", 2, self.MANY)
        setting.manager.resize(2)
        setting.one.run(setting.idle())
        for tp in [tp for tp in self.states(setting) if tp.partition % 2]:
            setting.one.stop_replica(*tp, delete=False)
        checked: list[int] = []
        key = ReplicaFetcherManager._key

        def count(manager: ReplicaFetcherManager, partition: Any) -> Any:
            checked[-1] += 1
            return key(manager, partition)

        monkeypatch.setattr(ReplicaFetcherManager, "_key", count)
        checked.append(0)
        setting.manager.resize(1)
        idle = setting.idle()
        while not idle.done():
            checked.append(0)
            setting.turn()
        assert sum(checked) >= self.MANY // 2 and max(checked) <= 10

    def test_a_leader_and_isr_in_between_wins(self, setting: Setting) -> None:
        setting.follow("a", 2, self.MANY)
        setting.manager.resize(4)
        setting.turn()
        setting.follow("a", 3, self.MANY // 2, leader_epoch=1)
        setting.one.run(setting.idle())
        owners = self.states(setting)
        assert len(owners) == self.MANY
        for tp, (owner, state) in owners.items():
            is_changed = tp.partition < self.MANY // 2
            assert (owner.leader_id, state.leader_epoch) == ((3, 1) if is_changed else (2, 0))
        setting.one.spin()
        assert [len(fetcher.states) for fetcher in setting.manager.fetchers] == [self.MANY // 8] * 8

    def test_partitions_of_a_failed_disk_do_not_return(self, setting: Setting) -> None:
        """They leave at once, without waiting for the changes of the controller."""
        setting.follow("a", 2, self.MANY)
        setting.manager.resize(4)
        setting.turn()
        gone = [TopicPartition("a", index) for index in range(0, self.MANY, 3)]
        setting.one.broker.replicas.take_offline(gone)
        setting.one.run(setting.idle())
        assert {*self.states(setting)} == {TopicPartition("a", index) for index in range(self.MANY)} - {*gone}

    def test_it_waits_for_a_change_that_is_half_applied(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state_change, "SLICE_S", -1.0)
        setting.one.elect()
        setting.follow("a", 2, self.MANY)
        setting.one.loop.call_soon(setting.manager.resize, 4)
        setting.one.loop.call_soon(setting.manager.resize, 2)
        setting.follow("a", 3, self.MANY, leader_epoch=1)
        setting.one.run(setting.idle())
        setting.one.spin()
        assert {state.leader_epoch for _, state in self.states(setting).values()} == {1}
        assert [len(fetcher.states) for fetcher in setting.manager.fetchers] == [self.MANY // 2] * 2

    def test_it_ends_with_the_manager(self, setting: Setting) -> None:
        setting.follow("a", 2, self.MANY)
        setting.manager.resize(4)
        setting.one.run(asyncio.ensure_future(setting.manager.close(), loop=setting.one.loop))
        setting.one.run(setting.idle())
        assert setting.manager.fetchers == ()


def test_a_follower_that_failed_starts_again_when_its_disk_has_room(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have not noticed the failure yet, and continue."""
    monkeypatch.setattr(replica_manager, "OFFLINE_PER_SLICE", 1)
    monkeypatch.setattr(setting.one, "_on_dir_failure", lambda log_dir: None)
    setting.follow("a", 2, 3)
    gone, healthy, failed = (TopicPartition("a", index) for index in range(3))
    (fetcher,) = setting.manager.fetchers
    logs, replicas, log_dir = setting.one.broker.logs, setting.one.broker.replicas, setting.one.log_dirs[0]
    logs.failed(log_dir, OSError(errno.ENOSPC, "No space left on device"), "testing")
    fetcher.remove([failed])
    fetcher.failed[failed] = ErrorCode.KAFKA_STORAGE_ERROR
    steps = replicas.log_dir_failure_pass(log_dir)
    next(steps)
    assert logs.passes.revival() == 1
    replicas.on_log_dir_revival(log_dir)
    for _ in steps:
        pass
    assert list(replicas.partitions) == list(fetcher.states) == [healthy]
    setting.follow("a", 2, 3)
    assert {*fetcher.states} == {gone, healthy, failed} and not fetcher.failed


def test_gauges_and_meters(setting: Setting) -> None:
    setting.follow("a", 2)
    setting.until(lambda: setting.connections and len(setting.connections[0][1].sent) == 2)
    text = setting.one.broker.metrics.exposition().lower()
    for name in ("maxlag", "minfetchrate", "failedpartitionscount", "deadthreadcount"):
        assert f"kafka_server_replicafetchermanager_{name}" in text
    assert "kafka_server_fetcherstats_requests" in text
