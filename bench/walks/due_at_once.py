"""Periodic tasks and control requests with very many partitions, groups or transactions that are due at the same time.

Most rows of `broker_turns` measure tasks that find nothing to do. Here they find all there is. The work is prepared
before each measurement. Expiry runs when a row asks for it, not at its interval.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bench.frames import batch
from klamm.broker import Broker
from klamm.errors import ErrorCode
from klamm.model import BrokerEndPoints, EndPoint, TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from klamm.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.wire import Message, decode
from klamm.replica.fetcher_manager import ReplicaFetcherManager
from klamm.replica.state_change import StateChangeResult, StopReplica, stop_replicas
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import encode_broker
from klamm.zk.model.ops import Create, Delete

SETTINGS: Final = {
    "replica.lag.time.max.ms": "5000",
    "transactional.id.expiration.ms": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
}
PARTITIONS: Final = 2_000
"""Of a row with logs: klamm's controller sends no more at once, and flushing 20,000 logs takes minutes."""
PER_TOPIC: Final = 1_000
WIDE_TOPICS: Final = 5
"""One commit is one batch of at most `max.message.bytes`."""
GROUPS: Final = 5_000
TRANSACTIONS: Final = 5_000
OTHER: Final = 3
"""A broker that is registered and does not exist."""
LIMIT_S: Final = 60.0
PAUSE_S: Final = 0.2


class Client(Protocol):
    """The driver: it asks the broker from another thread."""

    loop: asyncio.AbstractEventLoop
    broker: Broker

    def ask(self, request: Message, version: int) -> bytes: ...

    def ask_all(self, requests: Iterable[Message], version: int) -> list[bytes]: ...

    def run_task(self, name: str) -> None: ...

    def wait_for_control_log(self) -> None: ...

    def write(self, *operations: Any) -> None: ...

    def alter(self, kind: int, name: str, key: str, value: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Row:
    """`prepare` and `act` are called with the number of the round."""

    name: str
    prepare: Callable[[int], object]
    act: Callable[[int], object]
    clean_up: Callable[[], object] = lambda: None


class DueAtOnce:
    def __init__(self, client: Client) -> None:
        self._client = client

    def rows(self) -> Iterator[Row]:
        yield Row(
            f"flush.ms is over for {PARTITIONS:,} logs",
            self._append_to_all,
            self._flush,
            lambda: self._client.alter(4, "", "log.flush.interval.ms", ""),
        )
        yield Row(f"followers of {PARTITIONS:,} partitions leave the ISR", self._let_lag, self._shrink, self._end_lag)
        yield Row(
            f"num.replica.fetchers changes with {PARTITIONS:,} followed partitions",
            self._follow,
            self._resize,
            self._end_following,
        )
        yield Row(f"{GROUPS:,} groups expire", self._commit_in_groups, lambda _: self._expire_offsets())
        yield Row(
            f"the offsets of a group for {WIDE_TOPICS * PER_TOPIC:,} partitions expire",
            self._commit_everywhere,
            lambda _: self._expire_offsets(),
        )
        yield Row(f"{TRANSACTIONS:,} transactional ids expire", self._make_ids, lambda _: self._expire_ids())
        yield Row(f"{TRANSACTIONS:,} transactions time out", self._begin_transactions, lambda _: self._abort())
        yield Row(f"StopReplica of {PARTITIONS:,} partitions, without deletion", lambda _: None, lambda _: self._stop())

    # Logs.

    def _append_to_all(self, _: int) -> None:
        """An append to each partition of a few topics. Nothing is due before `_flush`."""
        self._client.alter(4, "", "log.flush.interval.ms", "100000000")
        records = batch(200, 100)
        for topic in range(PARTITIONS // PER_TOPIC):
            data = [PartitionProduceData(index=index, records=records) for index in range(PER_TOPIC)]
            topics = [TopicProduceData(name=f"t{topic}", partition_data=data)]
            self._client.ask(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics), 7)

    def _flush(self, _: int) -> None:
        self._client.alter(4, "", "log.flush.interval.ms", "1")
        time.sleep(PAUSE_S)
        logs = self._client.broker.logs.logs
        some = [log for tp, log in logs.items() if tp.topic in {f"t{n}" for n in range(PARTITIONS // PER_TOPIC)}]
        self._client.run_task("log-flusher")
        _wait_until(lambda: all(log.recovery_point == log.log_end_offset for log in some))

    # Replicas.

    def _let_lag(self, number: int) -> None:
        """The follower never fetches. Its registration lets the controller begin with it in the ISR."""
        if not number:
            self._register_other()
        self._create(f"lag-{number}", [self._client.broker.id, OTHER])

    def _register_other(self) -> None:
        """The control log must have its topic before, because the other broker would lead some of its partitions."""
        self._client.wait_for_control_log()
        address = BrokerEndPoints(OTHER, (EndPoint("PLAINTEXT", "127.0.0.1", 1),))
        self._client.write(Create(paths.broker_path(OTHER), encode_broker(address, 0)))
        time.sleep(1)

    def _create(self, name: str, broker_ids: list[int]) -> None:
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=broker_ids) for index in range(PARTITIONS)
        ]
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[])
        self._client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)

    def _shrink(self, number: int) -> None:
        replicas = self._client.broker.replicas
        hosted = [partition for tp, partition in list(replicas.partitions.items()) if tp.topic == f"lag-{number}"]
        assert len(hosted) == PARTITIONS, "the topic is not here yet"

        def are_alone() -> bool:
            self._client.run_task("isr-expiration")
            return all(len(partition.isr) == 1 and partition.pending_isr is None for partition in hosted)

        _wait_until(are_alone)

    def _end_lag(self) -> None:
        self._client.write(Delete(paths.broker_path(OTHER)))
        time.sleep(1)

    def _follow(self, number: int) -> None:
        """The leader has no port: nothing is fetched."""
        if not number:
            self._register_other()
            self._create("followed", [OTHER, self._client.broker.id])
            _wait_until(lambda: self._shares() == [PARTITIONS])

    def _resize(self, number: int) -> None:
        """To two fetchers or back to one."""
        num_fetchers = 2 - number % 2
        self._client.alter(4, "", "num.replica.fetchers", str(num_fetchers))
        _wait_until(lambda: self._shares() == [PARTITIONS // num_fetchers] * num_fetchers)

    def _shares(self) -> list[int]:
        """The number of partitions of each fetcher."""
        manager = self._client.broker.replicas.fetchers
        assert isinstance(manager, ReplicaFetcherManager)
        return [len(fetcher.states) for fetcher in manager.fetchers if fetcher.states]

    def _end_following(self) -> None:
        self._client.alter(4, "", "num.replica.fetchers", "1")
        self._end_lag()

    def _stop(self) -> None:
        """Only a proven broker may send the request, so this is what its handler does."""
        replicas = self._client.broker.replicas
        epoch = replicas.controller_epoch
        stops = [
            StopReplica(TopicPartition(f"t{topic}", index))
            for topic in range(PARTITIONS // PER_TOPIC)
            for index in range(PER_TOPIC)
        ]

        async def stop() -> StateChangeResult:
            result = replicas.exclusively(lambda: stop_replicas(replicas, epoch, stops))
            return await result if isinstance(result, asyncio.Future) else result

        done: Future[StateChangeResult] = asyncio.run_coroutine_threadsafe(stop(), self._client.loop)
        assert not any(done.result(LIMIT_S).partitions.values()), "a replica was not stopped"

    # Groups.

    def _commit_in_groups(self, _: int) -> None:
        self._wait_for_coordinator(0)
        some = [self._partition(0)]
        self._client.ask_all((self._commit(f"group-{n}", {"t0": some}) for n in range(GROUPS)), 4)

    def _commit_everywhere(self, _: int) -> None:
        self._wait_for_coordinator(0)
        topics = {f"t{n}": [self._partition(index) for index in range(PER_TOPIC)] for n in range(WIDE_TOPICS)}
        answer, _ = decode(OffsetCommitResponse, 4, self._client.ask(self._commit("wide", topics), 4), 4)
        errors = Counter(partition.error_code for topic in answer.topics for partition in topic.partitions)
        assert errors == {ErrorCode.NONE: WIDE_TOPICS * PER_TOPIC}, f"the offsets were not committed: {errors}"

    def _partition(self, index: int) -> OffsetCommitRequestPartition:
        return OffsetCommitRequestPartition(partition_index=index, committed_offset=0, committed_metadata="")

    def _commit(self, group: str, topics: dict[str, list[OffsetCommitRequestPartition]]) -> OffsetCommitRequest:
        named = [OffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
        return OffsetCommitRequest(group_id=group, retention_time_ms=1, topics=named)

    def _expire_offsets(self) -> None:
        manager = self._client.broker.groups._manager
        self._run(manager.expire_offsets)
        _wait_until(lambda: all(not group.offsets.committed for group in manager.groups()))

    # Transactions.

    def _make_ids(self, _: int) -> list[InitProducerIdResponse]:
        self._wait_for_coordinator(1)
        named = (f"id-{number}" for number in range(TRANSACTIONS))
        requests = (InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1) for name in named)
        return [decode(InitProducerIdResponse, 1, answer, 4)[0] for answer in self._client.ask_all(requests, 1)]

    def _begin_transactions(self, _: int) -> None:
        made = self._make_ids(0)
        requests = (
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=f"id-{number}",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="t0", partitions=[number % PER_TOPIC])],
            )
            for number, producer in enumerate(made)
        )
        self._client.ask_all(requests, 2)

    def _expire_ids(self) -> None:
        manager = self._client.broker.transactions._manager
        self._run(manager.remove_expired)
        _wait_until(lambda: not any(True for _ in manager.transactions()))

    def _abort(self) -> None:
        coordinator = self._client.broker.transactions
        self._run(coordinator._abort_timed_out)
        _wait_until(lambda: all(txn.value.state.may_expire for txn in coordinator._manager.transactions()))

    def _wait_for_coordinator(self, kind: int) -> None:
        """The first request creates the topic of the coordinator."""

        def is_there() -> bool:
            answer = self._client.ask(FindCoordinatorRequest(key="first", key_type=kind), 1)
            error: int = struct.unpack_from(">h", answer, 8)[0]
            return error == ErrorCode.NONE

        _wait_until(is_there)
        time.sleep(1)  # the partitions are loaded

    def _run(self, job: Callable[[], Iterator[None]]) -> None:
        async def steps() -> None:
            for _ in job():
                await asyncio.sleep(0)

        done: Future[None] = asyncio.run_coroutine_threadsafe(steps(), self._client.loop)
        done.result(LIMIT_S)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the broker has not finished in time")
        time.sleep(PAUSE_S)
