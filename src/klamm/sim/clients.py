"""Clients of a simulated cluster: idempotent producers with acks=all, and consumers that read everything.

They use klamm's own client connection and act like real clients: ask any broker for metadata, send to leaders, and
retry after timeouts and retriable errors with the same sequence numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from klamm.client.asyncio_connection import BrokerConnection
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import Record, batches, build_batch, records
from klamm.protocol.wire import Message
from klamm.security.client_security import PLAINTEXT, ClientSecurity
from klamm.sim.checkers import Violation, require
from klamm.sim.history import History, value_of

RETRIABLE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
TIMEOUT_MS: Final = 1_500
LATEST_TIMESTAMP: Final = -1
RETRY_S: Final = (0.02, 0.25)
Addresses = Mapping[int, tuple[str, int]]


class Client:
    """Connections per broker, and the leaders of the last metadata."""

    def __init__(
        self, name: str, addresses: Addresses, rng: random.Random, security: ClientSecurity = PLAINTEXT
    ) -> None:
        self.name = name
        self._security = security
        self.rng = rng
        self._addresses = addresses
        self._connections: dict[int, BrokerConnection] = {}
        self._connected = 0
        self._numbers: dict[int, int] = {}
        self._leaders: dict[TopicPartition, tuple[int, int]] = {}
        self._epochs: dict[TopicPartition, int] = {}

    async def ask(self, broker_id: int, request: Message, version: int, *, timeout_ms: int = TIMEOUT_MS) -> Any:
        """Raise OSError if there is no answer."""
        connection = await self._connection(broker_id, timeout_ms)
        return await connection.send(request, version, timeout_ms=timeout_ms)

    async def _connection(self, broker_id: int, timeout_ms: int) -> BrokerConnection:
        connection = self._connections.get(broker_id)
        if connection is None or connection.is_closed:
            host, port = self._addresses[broker_id]
            connection = await BrokerConnection.connect(
                host,
                port,
                timeout_ms=TIMEOUT_MS,
                client_id=self.name,
                request_timeout_ms=timeout_ms,
                security=self._security,
            )
            self._connections[broker_id] = connection
            self._connected += 1
            self._numbers[broker_id] = self._connected
        return connection

    def connection_number(self, broker_id: int) -> int:
        """Unique per connection: the same process answers over one connection."""
        return self._numbers.get(broker_id, 0)

    def any_broker(self) -> int:
        return self.rng.choice(list(self._addresses))

    async def rest(self) -> None:
        await asyncio.sleep(self.rng.uniform(*RETRY_S))

    async def leader(self, tp: TopicPartition) -> tuple[int, int]:
        """Return the leader and its epoch; asks until there is one."""
        while tp not in self._leaders:
            with contextlib.suppress(OSError):
                await self._refresh(tp.topic)
            if tp not in self._leaders:
                await self.rest()
        return self._leaders[tp]

    def forget_leader(self, tp: TopicPartition) -> None:
        self._leaders.pop(tp, None)

    async def _refresh(self, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        response = await self.ask(self.any_broker(), request, 9)
        known = {broker.node_id for broker in response.brokers}
        for found in response.topics:
            for partition in found.partitions:
                tp = TopicPartition(topic, partition.partition_index)
                is_old = partition.leader_epoch < self._epochs.get(
                    tp, -1
                )  # from a broker that lags behind; handled like in the Java client
                if partition.leader_id in known and not is_old:
                    self._leaders[tp] = (partition.leader_id, partition.leader_epoch)
                    self._epochs[tp] = partition.leader_epoch


async def create_topic(
    client: Client,
    topic: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Wait until the topic exists."""
    wanted = CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=(),
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
    )
    while True:
        try:
            request = CreateTopicsRequest(topics=[wanted], timeout_ms=1_000)
            response = await client.ask(client.any_broker(), request, 5)
        except OSError:
            await client.rest()
            continue
        if response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await client.rest()


class Producer:
    """Sends to every partition, one batch at a time each, while `may_go_on` is true. A started batch is finished.

    At least one batch per partition is sent, even if the cluster becomes available only later.
    """

    def __init__(
        self,
        client: Client,
        tps: Sequence[TopicPartition],
        history: History,
        may_go_on: Callable[[], bool],
        is_leader: Callable[[TopicPartition, int], bool],
    ) -> None:
        self._client = client
        self._tps = tps
        self._history = history
        self._may_go_on = may_go_on
        self._is_leader = is_leader
        """Whether this broker leads the partition now, in the epoch that ZooKeeper has."""
        self._producer_id = -1
        self._producer_epoch = -1

    async def run(self) -> None:
        await self._init_producer_id()
        await asyncio.gather(*(self._produce_all(tp) for tp in self._tps))

    async def _init_producer_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        while self._producer_id < 0:
            try:
                response = await self._client.ask(self._client.any_broker(), request, 4)
            except OSError:
                await self._client.rest()
                continue
            if response.error_code == ErrorCode.NONE:
                self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
            else:
                await self._client.rest()

    async def _produce_all(self, tp: TopicPartition) -> None:
        rng, number = self._client.rng, 0
        while number == 0 or self._may_go_on():
            values = [value_of(self._client.name, tp, number + i) for i in range(rng.randint(1, 3))]
            since_s = asyncio.get_running_loop().time()
            base_offset = await self._deliver(tp, values, number)
            self._history.on_acknowledged(tp, base_offset, values, since_s)
            number += len(values)
            await asyncio.sleep(rng.uniform(0.02, 0.4))

    async def _deliver(self, tp: TopicPartition, values: list[bytes], sequence: int) -> int:
        """Send the same batch until it is acknowledged; returns its base offset."""
        batch = build_batch(
            [Record(timestamp=1_700_000_000_000, value=value) for value in values],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        data = TopicProduceData(name=tp.topic, partition_data=[PartitionProduceData(index=tp.partition, records=batch)])
        request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data])
        while True:
            leader, _ = await self._client.leader(tp)
            try:
                response = await self._client.ask(leader, request, 9)
            except OSError:
                self._client.forget_leader(tp)
                await self._client.rest()
                continue
            result = response.responses[0].partition_responses[0]
            if result.error_code == ErrorCode.NONE:
                return int(result.base_offset)
            if result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return -1
            # A deposed leader lacks the records that its successor acknowledged, and does not know it. A Produce has no
            # leader epoch, so Kafka gives the same answer, and Java's producer retries. From the current leader it is
            # an error.
            is_gap = result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            is_retriable = result.error_code in RETRIABLE or (is_gap and not self._is_leader(tp, leader))
            if not is_retriable:
                name = ErrorCode(result.error_code).name
                raise Violation(f"{self._client.name} was answered {name} for sequence {sequence} of {tp}")
            self._client.forget_leader(tp)
            await self._client.rest()


class Consumer:
    """Reads one partition from its beginning, forever, and regularly asks for its end offset.

    Answers must agree: the end never goes back, and a broker that moved to a newer leader epoch never serves an older
    one.
    """

    def __init__(self, client: Client, tp: TopicPartition, history: History, rack: str = "") -> None:
        self._client = client
        self.tp = tp
        self._history = history
        self._rack = rack
        self._near: int | None = None
        """The follower that the leader referred it to."""
        self.near_records = 0
        """Number of responses with records from a follower."""
        self.offset = 0
        self._end = 0
        """The largest end offset that it received."""
        self._high_watermark = -1
        self._answered: tuple[int, int] = (-1, -1)
        """The connection and the leader epoch of the last answer. A leader that was killed and is back before the
        controller has noticed leads in the same epoch, and learns again what is committed."""

    async def run(self) -> None:
        while True:
            leader, epoch = await self._client.leader(self.tp)
            try:
                if self._near is None or self._near == leader:
                    await self._fetch(leader, epoch)
                else:
                    await self._fetch_near(self._near, epoch)
                if self._client.rng.random() < 0.1:
                    await self._list_end(leader, epoch)
                if self._client.rng.random() < 0.05:
                    await self._ask_in_the_past(leader, epoch)
            except OSError:
                await self._start_again()

    async def _fetch(self, leader: int, epoch: int) -> None:
        response = await self._client.ask(leader, self._request(epoch), 11)
        result = response.responses[0].partitions[0]
        if await self._is_answer(result.error_code):
            before, now = self._high_watermark, result.high_watermark
            message = f"the high watermark of {self.tp} went from {before} to {now} in epoch {epoch}"
            answered = (self._client.connection_number(leader), epoch)
            require(answered != self._answered or now >= before, message)
            self._answered, self._high_watermark = answered, now
            self._near = result.preferred_read_replica if result.preferred_read_replica >= 0 else None
            self._take(result.records, result.high_watermark)

    async def _fetch_near(self, follower: int, epoch: int) -> None:
        """Handle records of a follower. It may lag behind its leader, but never return uncommitted records."""
        response = await self._client.ask(follower, self._request(epoch), 11)
        result = response.responses[0].partitions[0]
        if await self._is_answer(result.error_code):
            self._take(result.records, result.high_watermark)
            self.near_records += result.records is not None and bool(len(result.records))

    async def _list_end(self, leader: int, epoch: int) -> None:
        partition = ListOffsetsPartition(
            partition_index=self.tp.partition, current_leader_epoch=epoch, timestamp=LATEST_TIMESTAMP
        )
        topic = ListOffsetsTopic(name=self.tp.topic, partitions=[partition])
        response = await self._client.ask(leader, ListOffsetsRequest(replica_id=-1, topics=[topic]), 5)
        result = response.topics[0].partitions[0]
        if await self._is_answer(result.error_code):
            self._end = max(self._end, self.offset)
            require(result.offset >= self._end, f"{self.tp} ended at {self._end} and now ends at {result.offset}")
            self._end = result.offset

    async def _ask_in_the_past(self, leader: int, epoch: int) -> None:
        """A broker that has just answered in `epoch` must refuse the previous epoch."""
        answered = (self._client.connection_number(leader), epoch)
        if epoch == 0 or self._answered != answered:
            return
        response = await self._client.ask(leader, self._request(epoch - 1), 11)
        code = response.responses[0].partitions[0].error_code
        if self._client.connection_number(leader) == answered[0]:
            require(code != ErrorCode.NONE, f"{self.tp} is served in leader epoch {epoch - 1} after {epoch}")

    async def _is_answer(self, code: int) -> bool:
        if code == ErrorCode.NONE:
            return True
        if code not in RETRIABLE and code != ErrorCode.OFFSET_OUT_OF_RANGE:
            name = ErrorCode(code).name
            raise Violation(f"{self._client.name} was answered {name} for offset {self.offset} of {self.tp}")
        await self._start_again()
        return False

    async def _start_again(self) -> None:
        self._near = None
        self._client.forget_leader(self.tp)
        await self._client.rest()

    def _request(self, epoch: int) -> FetchRequest:
        partition = FetchPartition(
            partition=self.tp.partition,
            current_leader_epoch=epoch,
            fetch_offset=self.offset,
            partition_max_bytes=10_000,
        )
        topic = FetchTopic(topic=self.tp.topic, partitions=[partition])
        return FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=100_000, topics=[topic], rack_id=self._rack)

    def _take(self, data: Any, high_watermark: int) -> None:
        for batch in batches(bytes(data or b"")):
            for record in records(batch):
                if record.offset >= self.offset:
                    message = f"a consumer of {self.tp} was given {record.offset}, committed is {high_watermark}"
                    require(record.offset < high_watermark, message)
                    self._history.on_read(self.tp, record.offset, record.value or b"")
                    self.offset = record.offset + 1
