"""Requests of a transactional producer that arrive too late, sent to real brokers: nothing hangs or joins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from klamm.client.blocking_connection import BlockingConnection
from klamm.errors import ErrorCode
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import TIMEOUT_S, RawClient, eventually

KLAMM_CLUSTER = {"brokers": 2, "broker_configs": CALM}
RETRIABLE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
NOT_YET = (*RETRIABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS)


@dataclass
class Producer:
    """One transactional producer that speaks the protocol of Kafka 3.9, with as many connections as a test wants."""

    cluster: LocalCluster
    topic: str
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1

    def __post_init__(self) -> None:
        self.any = RawClient(self.cluster.port(1))
        self.coordinator = RawClient(eventually(self._find_coordinator, "there is no coordinator"))
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=60_000)

        def init() -> InitProducerIdResponse | None:
            answer = self.coordinator.ask(request, 2, InitProducerIdResponse)
            return None if answer.error_code in NOT_YET else answer

        answer = eventually(init, "the coordinator gives no producer id")
        assert answer.error_code == 0
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def _find_coordinator(self) -> int | None:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        [found] = self.any.ask(request, 4, FindCoordinatorResponse).coordinators
        return found.port if found.error_code == 0 else None

    def connect(self) -> BlockingConnection:
        """Another connection to the leader of the partition."""
        port = self.cluster.port(self.cluster.leader(self.topic))
        return BlockingConnection(("127.0.0.1", port), client_id="test", timeout_ms=TIMEOUT_S * 1000)

    def add_partition(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[0])],
        )

        def add() -> bool | None:
            answer = self.coordinator.ask(request, 3, AddPartitionsToTxnResponse)
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            assert code in (0, *NOT_YET), ErrorCode(code)
            return code == 0 or None

        eventually(add, "the partition is not added")

    def end(self, *, commit: bool, version: int = 1) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

        def end() -> EndTxnResponse | None:
            answer = self.coordinator.ask(request, version, EndTxnResponse)
            assert answer.error_code in (0, *NOT_YET), ErrorCode(answer.error_code)
            return answer if answer.error_code == 0 else None

        return eventually(end, "the transaction does not end")

    def request(self, value: bytes, sequence: int) -> ProduceRequest:
        data = build_batch(
            [Record(timestamp=1_700_000_000_000, value=value)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        partition = PartitionProduceData(index=0, records=data)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=self.topic, partition_data=[partition])],
        )

    def produce(self, connection: BlockingConnection, value: bytes, sequence: int, version: int = 9) -> ErrorCode:
        """The answer to one batch, sent again while the coordinator is not ready."""

        def send() -> ErrorCode | None:
            answer = connection.ask(self.request(value, sequence), ProduceResponse, version)
            code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            return None if code in NOT_YET else code

        return eventually(send, "the coordinator is not ready")

    def values(self) -> list[bytes | None]:
        """The data records of the partition, visible or not."""
        client = RawClient(self.cluster.port(self.cluster.leader(self.topic)))
        return [value for _, value in client.read_all(self.topic) if value is None or not value.startswith(b"\0\0")]

    def is_stable(self) -> bool:
        """Whether no transaction is open: readers of committed records get to the end."""
        client = RawClient(self.cluster.port(self.cluster.leader(self.topic)))
        data = client.fetch(self.topic, 0)
        return data.last_stable_offset == data.high_watermark


@pytest.fixture
def producer(klamm_cluster: LocalCluster) -> Iterator[Producer]:
    topic = klamm_cluster.unique_topic_name()
    klamm_cluster.create_topic(topic, replication_factor=2)
    yield Producer(klamm_cluster, topic, f"{topic}-id")
    klamm_cluster.delete_topic(topic)


def test_a_batch_outside_of_a_transaction_begins_none(producer: Producer) -> None:
    with producer.connect() as connection:
        assert producer.produce(connection, b"early", 0) == ErrorCode.INVALID_TXN_STATE
        producer.add_partition()
        assert producer.produce(connection, b"a", 0) == 0
        producer.end(commit=True)
        eventually(producer.is_stable, "the marker does not arrive")
        assert producer.produce(connection, b"late", 1) == ErrorCode.INVALID_TXN_STATE
    assert producer.values() == [b"a"] and producer.is_stable()


def test_pipelined_batches_keep_their_order(producer: Producer) -> None:
    producer.add_partition()
    with producer.connect() as connection:
        for sequence in range(5):
            connection.send(producer.request(b"%d" % sequence, sequence), 9)
        for _ in range(5):
            answer = connection.receive()
            assert isinstance(answer, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
    producer.end(commit=True)
    assert producer.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_late_batch_of_an_abandoned_connection_does_not_join_the_next_transaction(producer: Producer) -> None:
    """A batch of the first transaction was held back in the network. The client uses its sequence number again."""
    with producer.connect() as old, producer.connect() as new:
        producer.add_partition()
        assert producer.produce(old, b"first", 0) == 0
        producer.end(commit=True)
        producer.add_partition()
        assert producer.produce(new, b"second", 1) == 0
        old.send(producer.request(b"late", 2), 9)
        with pytest.raises(ConnectionError):
            old.receive()
        assert producer.produce(new, b"third", 2) == 0, "the sequence was not taken"
        producer.end(commit=True)
    assert producer.values() == [b"first", b"second", b"third"]
    eventually(producer.is_stable, "the marker does not arrive")


def test_a_late_batch_does_not_join_before_the_first_batch_of_the_next_transaction(producer: Producer) -> None:
    """The client aborted without an answer to its batch, and keeps its epoch. The batch arrives first."""
    with producer.connect() as old:
        producer.add_partition()
        assert producer.produce(old, b"first", 0) == 0
        producer.end(commit=False)
        producer.add_partition()
        old.send(producer.request(b"late", 1), 9)
        with pytest.raises(ConnectionError):
            old.receive()
    with producer.connect() as new:
        assert producer.produce(new, b"second", 1) == 0, "the sequence was not taken"
        producer.end(commit=True)
    assert producer.values() == [b"first", b"second"]
    eventually(producer.is_stable, "the marker does not arrive")


def test_version_2_adds_partitions_and_bumps_the_epoch(producer: Producer) -> None:
    with producer.connect() as connection:
        for value in (b"a", b"b"):
            assert producer.produce(connection, value, 0, version=12) == 0
            assert not producer.is_stable()
            before = producer.epoch
            answer = producer.end(commit=True, version=5)
            eventually(producer.is_stable, "the marker does not arrive")
            assert producer.produce(connection, b"late", 1, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
            producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
            assert producer.epoch == before + 1
    assert producer.values() == [b"a", b"b"]
