"""Brokers that copy from each other without a network: real logs, real handlers, and a fetcher moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from klamm import apis
from klamm.log.log import Log
from klamm.model import TopicPartition
from klamm.protocol.record_batch import batches, records
from klamm.protocol.wire import Message
from klamm.replica.fetch_state import PartitionFetchState
from klamm.replica.fetcher import ReplicaFetcher
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.partition import Partition
from tests.support.one_broker import OneBroker, batch

TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=99)
BY_KEY = {api.key: api for api in apis.ALL}


class DirectConnection:
    """Hands a request to another broker's handlers, through its encoding; `cut` makes every request fail."""

    def __init__(self, leader: OneBroker, loop: asyncio.AbstractEventLoop) -> None:
        self._leader = leader
        self._loop = loop
        self.is_cut = False
        self.sent: list[tuple[Message, int]] = []

    def send(self, request: Message, version: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self.sent.append((request, version))
        if self.is_cut:
            future.set_exception(ConnectionError("cut"))
        else:
            future.set_result(self._leader.ask(BY_KEY[request.KEY], request, version))
        return future

    def close(self) -> None:
        return None


class Brokers:
    """`ids` are the replicas of the partition t-0. A leader epoch begins with `elect`."""

    def __init__(
        self, tmp_path: Path, ids: Sequence[int] = (1, 2), *, topic_id: UUID = TOPIC_ID, **config: Any
    ) -> None:
        self.ids = tuple(ids)
        self.topic_id = topic_id
        self.config = config
        self.leader = 0
        self.leader_epoch = -1
        self.brokers = {i: OneBroker(tmp_path / str(i), broker_id=i) for i in self.ids}
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self.connections: dict[int, DirectConnection] = {}

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()

    def partition(self, broker_id: int) -> Partition:
        return self.brokers[broker_id].broker.replicas.partitions[TP]

    def log(self, broker_id: int) -> Log:
        log = self.partition(broker_id).log
        assert log is not None
        return log

    def elect(self, leader: int, isr: Sequence[int] | None = None, *, notify: Sequence[int] | None = None) -> None:
        """A new leader epoch, sent to all brokers or to those named."""
        self.leader = leader
        self.leader_epoch += 1
        for broker_id in self.ids if notify is None else notify:
            self.notify(broker_id, isr)

    def notify(self, broker_id: int, isr: Sequence[int] | None = None) -> None:
        """The LeaderAndIsr of the current epoch reaches one broker."""
        broker = self.brokers[broker_id]
        broker.lead(
            "t",
            topic_id=self.topic_id,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            isr=self.ids if isr is None else isr,
            replicas=self.ids,
            partition_epoch=self.leader_epoch,
        )
        self.fetchers.pop(broker_id, None)
        if broker_id != self.leader:
            self._follow(broker_id)

    def _follow(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        config = FetcherConfig(broker_id=broker_id, **{"max_wait_ms": 0, "backoff_ms": 0, **self.config})
        connection = self.connections[broker_id] = DirectConnection(self.brokers[self.leader], broker.loop)

        async def connect(leader_id: int) -> DirectConnection:
            assert leader_id == self.leader
            return connection

        fetcher = ReplicaFetcher(
            "fetcher",
            self.leader,
            config,
            replicas=broker.broker.replicas,
            connect=connect,
            broker_epoch=lambda: 7,
            loop=broker.loop,
        )
        state = PartitionFetchState(self.partition(broker_id), truncates_on_fetch=config.truncates_on_fetch)
        fetcher.add([state])
        self.fetchers[broker_id] = fetcher

    def append(self, *values: bytes, to: int | None = None) -> None:
        partition = self.partition(self.leader if to is None else to)
        result = partition.append_records_to_leader(batch(*values), 1, 0)
        assert not isinstance(result, int) and result.error == 0

    def can_fetch(self, broker_id: int) -> bool:
        """Whether a round has something to ask, of the leader of now."""
        fetcher = self.fetchers.get(broker_id)
        return fetcher is not None and bool(fetcher.states) and fetcher.leader_id == self.leader

    def round(self, broker_id: int) -> None:
        """One round of a follower's fetcher."""
        self.brokers[broker_id].loop.run_until_complete(self.fetchers[broker_id].do_work())

    def catch_up(self, broker_id: int, rounds: int = 40) -> None:
        """Rounds until the follower has all that its leader has, and has said so."""
        for _ in range(rounds):
            before = self.log(broker_id).log_end_offset
            self.round(broker_id)
            state = self.fetchers[broker_id].states.get(TP)
            remote = self.partition(self.leader).remotes[broker_id]
            if state is not None and before == remote.log_end_offset == self.log(self.leader).log_end_offset:
                return
        raise AssertionError(f"{self.log(broker_id)} did not catch up with {self.log(self.leader)}")

    def contents(self, broker_id: int) -> list[tuple[int, int, bytes | None]]:
        """(offset, leader epoch, value) of every record."""
        log = self.log(broker_id)
        out: list[tuple[int, int, bytes | None]] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            found = log.read(offset, 1 << 20, max_offset=log.log_end_offset)
            assert not isinstance(found, int)
            for each in batches(memoryview(found.records)):
                out += [(r.offset, each.partition_leader_epoch, _bytes(r.value)) for r in records(each)]
                offset = each.next_offset
        return out

    def values(self, broker_id: int) -> list[bytes | None]:
        return [value for _, _, value in self.contents(broker_id)]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
