"""Single requests over plain sockets: what a client library would hide, such as the answer to one Produce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode
from klamm.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from klamm.protocol.record_batch import Record, batches, build_batch, records
from klamm.protocol.wire import Message

T = TypeVar("T")
R = TypeVar("R", bound=Message)

EARLIEST, LATEST = -2, -1
TIMEOUT_S = 120.0
_NOT_YET = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)


def eventually(condition: Callable[[], T | None], problem: str) -> T:
    """The first result that is neither None nor False."""
    deadline = time.monotonic() + TIMEOUT_S
    while (result := condition()) is None or result is False:
        assert time.monotonic() < deadline, problem
        time.sleep(0.02)
    return result


def batch_of(
    values: Sequence[bytes],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    timestamp: int | None = None,
) -> bytes:
    """One batch with a record for each value; the time is now unless it is given."""
    timestamp = int(time.time() * 1000) if timestamp is None else timestamp
    return build_batch(
        [Record(timestamp=timestamp, value=value) for value in values],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )


def values_of(data: PartitionData) -> list[tuple[int, bytes | None]]:
    parts = data.records if isinstance(data.records, tuple) else (data.records or b"",)
    return [(r.offset, r.value) for part in parts for batch in batches(memoryview(part)) for r in records(batch)]


class RawClient:
    """A broker at one address; every request has a connection of its own."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.address = (host, port)

    def ask(self, request: Message, version: int, answer: type[R]) -> R:
        return ask_once(self.address, request, version, answer, TIMEOUT_S)

    def produce(self, topic: str, data: bytes, *, partition: int = 0, acks: int = -1) -> PartitionProduceResponse:
        sent = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=data)])
        request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[sent])
        return self.ask(request, 9, ProduceResponse).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0, max_wait_ms: int = 0) -> PartitionData:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )
        return self.ask(request, 11, FetchResponse).responses[0].partitions[0]

    def read_all(self, topic: str, *, partition: int = 0) -> list[tuple[int, bytes | None]]:
        """(offset, value) of everything between the start of the log and its end."""
        offset, end = self.offset(topic, EARLIEST, partition=partition), self.offset(topic, LATEST, partition=partition)
        found: list[tuple[int, bytes | None]] = []
        while offset < end:
            data = self.fetch(topic, offset, partition=partition)
            assert data.error_code == ErrorCode.NONE, ErrorCode(data.error_code)
            new = [pair for pair in values_of(data) if pair[0] >= offset]
            assert new, f"nothing at offset {offset} of {topic}, which ends at {end}"
            found += new
            offset = new[-1][0] + 1
        return found

    def offset(self, topic: str, timestamp: int, *, partition: int = 0) -> int:
        """Asks again, as clients do, while a broker that has just started does not lead the partition yet."""
        wanted = ListOffsetsTopic(
            name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
        )
        request = ListOffsetsRequest(replica_id=-1, topics=[wanted])

        def answer() -> int | None:
            found = self.ask(request, 5, ListOffsetsResponse).topics[0].partitions[0]
            if found.error_code in _NOT_YET:
                return None
            assert found.error_code == ErrorCode.NONE, ErrorCode(found.error_code)
            return found.offset

        return eventually(answer, f"{topic}-{partition} has no leader")

    def create_topic(self, name: str, *, timeout_ms: int = 30_000, **config: object) -> ErrorCode:
        """One partition; keys of `config` with underscores for dots."""
        configs = [CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in config.items()]
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=configs)
        answer = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 5, CreateTopicsResponse)
        return ErrorCode(answer.topics[0].error_code)

    def metadata(self, *topics: str) -> MetadataResponse:
        wanted = [MetadataRequestTopic(name=topic) for topic in topics]
        return self.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 7, MetadataResponse)

    def new_producer(self) -> tuple[int, int]:
        """(producer id, epoch) for an idempotent producer."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

        def given() -> tuple[int, int] | None:
            answer = self.ask(request, 1, InitProducerIdResponse)
            return (answer.producer_id, answer.producer_epoch) if answer.error_code == ErrorCode.NONE else None

        return eventually(given, "no producer id was given")
