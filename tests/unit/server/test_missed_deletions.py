"""A deposed controller may not have sent a deletion to all brokers, and the next one does not know the topic."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from klamm.metadata import missed_deletions
from klamm.metadata.cache import MetadataCache
from klamm.metadata.update import MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import TopicPartition
from klamm.server.missed_deletions import MissedDeletions
from klamm.zk.model.ops import GetChildren, GetChildrenResult, GetDataResult, ReadOp, ReadResult, Stat
from klamm.zk.model.znodes import encode_controller_epoch

STAT = Stat(*[0] * 11)


class Fixture:
    """A broker's cache with a scripted ZooKeeper."""

    def __init__(self, topics: list[str], epochs: list[int]) -> None:
        self.topics, self.epochs = topics, epochs
        self.seen_epoch = 0
        self.deleted: list[TopicPartition] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.listeners: list[Any] = []
        self.cache = MetadataCache(1)
        broker: Any = SimpleNamespace(
            metadata=self.cache,
            zk=SimpleNamespace(add_listener=self.listeners.append, read=self._read),
            replicas=SimpleNamespace(on_metadata_change=lambda: None),
            groups=SimpleNamespace(on_partitions_deleted=self.deleted.extend),
        )
        self.missed = MissedDeletions(broker, lambda task: self.tasks.append(asyncio.ensure_future(task)))
        self.missed.start()

    async def _read(self, op: ReadOp) -> ReadResult:
        """A server that lags knows no topic: an answer of it that counted would delete all."""
        if isinstance(op, GetChildren):
            is_lagging = self.seen_epoch < self.cache.snapshot.controller_epoch
            return GetChildrenResult(() if is_lagging else tuple(self.topics), STAT)
        self.seen_epoch = self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0]
        return GetDataResult(encode_controller_epoch(self.seen_epoch), STAT)

    def reported(self, epoch: int, *topics: str, broker_epoch: int = 1) -> None:
        updates = tuple(
            TopicUpdate(name, (PartitionState(name, 0, epoch, 1, 0, (1,), 0, (1,)),), UUID(int=ord(name)))
            for name in topics
        )
        self.cache.update(MetadataUpdate(1, epoch, (), updates, broker_epoch))

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)


async def _run(fixture: Fixture) -> None:
    fixture.reported(1, "a", "b")
    fixture.reported(2, "a", "c")
    await fixture.settle()


def test_a_new_controller_makes_the_broker_look_for_known_topics() -> None:
    fixture = Fixture(["a"], [2])
    asyncio.run(_run(fixture))
    assert fixture.deleted == [TopicPartition("b", 0)]
    assert sorted(fixture.cache.snapshot.topics) == ["a", "c"], "topics of the new controller are not searched for"


def test_a_server_that_has_not_seen_the_election_is_asked_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(missed_deletions, "RETRY_S", 0)
    fixture = Fixture(["a", "b"], [1, 1, 2])
    asyncio.run(_run(fixture))
    assert fixture.epochs == [2]
    assert not fixture.deleted


def test_updates_of_the_same_controller_cost_nothing() -> None:
    async def run() -> None:
        fixture.reported(1, "a")
        fixture.reported(1, "b")

    fixture = Fixture([], [1])
    asyncio.run(run())
    assert not fixture.tasks


def test_after_a_new_session_the_first_word_of_the_controller_is_waited_for() -> None:
    """A topic may be deleted after this broker registered and before the controller has seen that it did."""

    async def run() -> None:
        fixture.reported(1, "a", "b")
        for listener in fixture.listeners:
            listener.after_new_session()
        assert not fixture.tasks
        fixture.topics.remove("b")
        fixture.reported(1, broker_epoch=2)
        await fixture.settle()

    fixture = Fixture(["a", "b"], [1])
    asyncio.run(run())
    assert fixture.deleted == [TopicPartition("b", 0)]
