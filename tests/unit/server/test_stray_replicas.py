"""A replica was moved away while its broker could not be reached: its log is deleted, but only when that is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from klamm.metadata import MetadataUpdate, PartitionState, TopicUpdate
from klamm.metadata.update import MAX_PARTITIONS
from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from klamm.server.stray_replicas import StrayReplicas
from klamm.zk.model import paths
from klamm.zk.model.znodes import TopicZnode, encode_partition_state, encode_topic
from tests.support.one_broker import OneBroker

TP = TopicPartition("t", 0)
ID, OTHER_ID = UUID(int=7), UUID(int=8)
MINE, OTHERS = ReplicaAssignment((1, 2)), ReplicaAssignment((2, 3))


class Fixture:
    """Broker 1 has a log of `t` 0, beside a ZooKeeper that says what the test says."""

    def __init__(self, tmp_path: Path) -> None:
        self.one = OneBroker(tmp_path)
        self.znodes: dict[str, bytes] = {}
        self.before_answer: Callable[[], None] = lambda: None
        self.one.give(zk=SimpleNamespace(read_many=self._read_many))
        self._tasks: list[Any] = []
        StrayReplicas(self.one.broker, self._tasks.append).start()
        self.one.broker.logs.get_or_create_log(TP, ID)

    async def _read_many(self, wanted: Iterable[str]) -> list[Any]:
        self.before_answer()
        stat = SimpleNamespace(version=1)
        return [(self.znodes[path], stat) if path in self.znodes else None for path in wanted]

    def zookeeper_has(
        self, assignment: ReplicaAssignment, *, topic_id: UUID | None = ID, leader_epoch: int = 5
    ) -> None:
        self.znodes[paths.topic_path("t")] = encode_topic(TopicZnode({0: assignment}, topic_id))
        state = LeaderIsrAndControllerEpoch(LeaderAndIsr(2, leader_epoch, (2,), 1), 1)
        self.znodes[paths.partition_state_path("t", 0)] = encode_partition_state(state)

    def reported(self, *topics: TopicUpdate, epoch: int = 1, broker_epoch: int = 1) -> None:
        """By a controller: of another topic at least."""
        other = TopicUpdate("other", (PartitionState("other", 0, 1, 2, 0, (2,), 0, (2,)),))
        self.one.broker.metadata.update(MetadataUpdate(2, epoch, (), (other, *topics), broker_epoch))
        self.settle()

    def settle(self) -> None:
        for task in self._tasks:
            self.one.loop.run_until_complete(task)
        self._tasks.clear()

    @property
    def is_there(self) -> bool:
        return self.one.broker.logs.get_log(TP) is not None


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    made = Fixture(tmp_path)
    yield made
    made.one.close()


def test_a_replica_that_was_moved_away_is_deleted(fixture: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    fixture.zookeeper_has(OTHERS)
    fixture.reported()
    assert not fixture.is_there
    assert "1 replicas were moved away while this broker was offline or lagging: t-0" in caplog.text


def test_also_one_that_this_broker_follows_still(fixture: Fixture) -> None:
    """It was paused when the controller sent the request, and another controller was elected."""
    fixture.one.leader_and_isr({"t": [0]}, topic_id=ID, leader=2, leader_epoch=3, replicas=(1, 2))
    fixture.zookeeper_has(OTHERS, leader_epoch=4)
    fixture.reported(epoch=2)
    assert not fixture.is_there and TP not in fixture.one.broker.replicas.partitions


def test_a_replica_that_is_assigned_after_the_answer_of_zookeeper_is_kept(fixture: Fixture) -> None:
    """The server lags: it has not seen that this broker became a replica again."""
    fixture.one.leader_and_isr({"t": [0]}, topic_id=ID, leader=2, leader_epoch=6, replicas=(1, 2))
    fixture.zookeeper_has(OTHERS, leader_epoch=5)
    fixture.reported(epoch=2)
    assert fixture.is_there


def test_a_replica_that_is_assigned_during_the_question_is_kept(fixture: Fixture) -> None:
    def reported() -> None:
        fixture.one.leader_and_isr({"t": [0]}, topic_id=ID, leader=2, leader_epoch=4, replicas=(1, 2))

    fixture.zookeeper_has(OTHERS)
    fixture.before_answer = reported
    fixture.reported()
    assert fixture.is_there


@pytest.mark.parametrize(
    ("assignment", "topic_id"), [(MINE, ID), (ReplicaAssignment((1, 2), (1,)), ID), (OTHERS, OTHER_ID)]
)
def test_a_replica_of_this_broker_or_of_a_namesake_is_kept(
    fixture: Fixture, assignment: ReplicaAssignment, topic_id: UUID
) -> None:
    fixture.zookeeper_has(assignment, topic_id=topic_id)
    fixture.reported()
    assert fixture.is_there


def test_a_topic_that_zookeeper_does_not_know_is_kept(fixture: Fixture) -> None:
    fixture.reported()
    assert fixture.is_there


@pytest.mark.parametrize("path", [paths.topic_path("t"), paths.partition_state_path("t", 0)])
def test_a_damaged_znode_proves_nothing(fixture: Fixture, path: str, caplog: pytest.LogCaptureFixture) -> None:
    other = TopicPartition("u", 0)
    fixture.one.broker.logs.get_or_create_log(other, OTHER_ID)
    fixture.zookeeper_has(OTHERS)
    fixture.znodes[paths.topic_path("u")] = encode_topic(TopicZnode({0: OTHERS}, OTHER_ID))
    fixture.znodes[paths.partition_state_path("u", 0)] = fixture.znodes[paths.partition_state_path("t", 0)]
    fixture.znodes[path] = b"garbage"
    fixture.reported()
    assert fixture.is_there and f"belong to another broker: znode {path}: b'garbage' is not JSON" in caplog.text
    assert fixture.one.broker.logs.get_log(other) is None, "other logs are checked"


def test_an_assignment_without_replicas_proves_nothing(fixture: Fixture) -> None:
    """Every broker would delete its log of the partition."""
    fixture.zookeeper_has(OTHERS)
    path = paths.topic_path("t")
    fixture.znodes[path] = fixture.znodes[path].replace(b'"0":[2,3]', b'"0":[]')
    fixture.reported()
    assert b'{"0":[]}' in fixture.znodes[path] and fixture.is_there


def test_it_asks_once_for_a_controller_and_a_registration_and_only_when_something_is_missing(fixture: Fixture) -> None:
    asked: list[None] = []
    fixture.before_answer = lambda: asked.append(None)
    mine = TopicUpdate("t", (PartitionState("t", 0, 1, 2, 0, (2,), 0, (1, 2)),), ID)
    fixture.reported(mine)
    assert not asked
    fixture.reported(TopicUpdate("t", (PartitionState("t", 0, 1, 2, 1, (2,), 0, (2, 3)),), ID))
    assert not asked, "this controller reports its own moves"
    for epochs in ((2, 1), (2, 2)):
        asked.clear()
        fixture.reported(epoch=epochs[0], broker_epoch=epochs[1])
        assert asked
        asked.clear()
        fixture.reported(epoch=epochs[0], broker_epoch=epochs[1])
        assert not asked


def test_it_waits_until_the_controller_has_sent_everything(fixture: Fixture) -> None:
    asked: list[None] = []
    fixture.before_answer = lambda: asked.append(None)
    full = tuple(PartitionState("many", index, 1, 2, 0, (2,), 0, (2,)) for index in range(MAX_PARTITIONS))
    update = fixture.one.broker.metadata.update
    update(MetadataUpdate(2, 1, (), (), 1))
    update(MetadataUpdate(2, 1, (), (TopicUpdate("many", full),), 1, is_sliced=True))
    fixture.settle()
    assert not asked
    fixture.reported(TopicUpdate("t", (PartitionState("t", 0, 1, 2, 0, (2,), 0, (1, 2)),), ID))
    assert not asked


def test_nothing_is_deleted_in_the_middle_of_a_leader_and_isr(fixture: Fixture) -> None:
    fixture.zookeeper_has(OTHERS)
    asked: list[None] = []
    fixture.before_answer = lambda: asked.append(None)

    def slices() -> Generator[int]:
        while not asked:
            yield 1
        for _ in range(20):
            yield 1

    changing = fixture.one.broker.replicas.apply_in_slices(slices(), None)
    assert isinstance(changing, asyncio.Future)
    seen: list[bool] = []
    changing.add_done_callback(lambda _: seen.append(fixture.is_there))
    fixture.reported()
    assert seen == [True] and not fixture.is_there
