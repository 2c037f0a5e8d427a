"""Transactions step by step against a scripted broker: moved coordinators, lost answers, fenced producers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from klamm.client.blocking_connection import BlockingConnection
from klamm.client.client_errors import ClientError, ProduceError, ProducerFencedError, TransactionTimeoutError
from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.client.transaction_client import ENDS_IN_FLIGHT, Ended, Transaction, TransactionClient, end_result
from klamm.client.transactional_producer import Codec, RecordSet, TransactionalProducer
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.protocol.record_batch import Record, encode_record, next_batch, records
from klamm.protocol.wire import Message
from tests.support.scripted_broker import scripted_broker, view

TP = TopicPartition("orders", 0)
LOST = object()
"""An answer that never arrives."""


class Broker:
    """Coordinates and leads everything. `script` has the error codes to come, by request; then all goes well."""

    def __init__(self) -> None:
        self.script: dict[type[Message], deque[Any]] = {}
        self.requests: list[Message] = []
        self.address = ("", 0)

    def will_answer(self, request: type[Message], *codes: Any) -> None:
        self.script[request] = deque(codes)

    def of(self, kind: type[Message]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    def answer(self, request: Message) -> Message | None:
        self.requests.append(request)
        coming = self.script.get(type(request))
        code = coming.popleft() if coming else ErrorCode.NONE
        return None if code is LOST else ANSWERS[type(request)](self, request, code)


def api_versions(broker: Broker, request: Any, code: int) -> Message:
    kinds = (
        ApiVersionsRequest,
        MetadataRequest,
        FindCoordinatorRequest,
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        ProduceRequest,
        EndTxnRequest,
    )
    keys = [ApiVersion(api_key=k.KEY, min_version=k.VERSIONS[0], max_version=k.VERSIONS[-1]) for k in kinds]
    return ApiVersionsResponse(error_code=0, api_keys=keys)


def find_coordinator(broker: Broker, request: Any, code: int) -> Message:
    host, port = broker.address
    found = [
        Coordinator(key=key, node_id=0, host=host, port=port, error_code=code, error_message=None)
        for key in request.coordinator_keys
    ]
    return FindCoordinatorResponse(coordinators=found)


def add_partitions(broker: Broker, request: Any, code: int) -> Message:
    assert not request.transactions, "a producer's request is of version 3 at most"
    results = [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                for index in topic.partitions
            ],
        )
        for topic in request.v3_and_below_topics
    ]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def produce(broker: Broker, request: Any, code: int) -> Message:
    responses = [
        TopicProduceResponse(
            name=topic.name,
            partition_responses=[
                PartitionProduceResponse(index=part.index, error_code=code, base_offset=0)
                for part in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=responses)


ANSWERS: dict[type[Message], Callable[[Broker, Any, int], Message]] = {
    ApiVersionsRequest: api_versions,
    MetadataRequest: lambda broker, request, code: view({0: broker.address}, 0, {"orders": (0,)}),
    FindCoordinatorRequest: find_coordinator,
    InitProducerIdRequest: lambda broker, request, code: InitProducerIdResponse(
        error_code=code, producer_id=7, producer_epoch=len(broker.of(InitProducerIdRequest)) - 1
    ),
    AddPartitionsToTxnRequest: add_partitions,
    ProduceRequest: produce,
    EndTxnRequest: lambda broker, request, code: EndTxnResponse(error_code=code),
}


@contextmanager
def scripted() -> Iterator[tuple[Broker, TransactionClient, ClusterClient]]:
    broker = Broker()
    with scripted_broker(broker.answer) as address:
        broker.address = address
        config = ClientConfig(bootstrap=(address,))
        with ClusterClient(config, sleep=lambda _: None) as one, ClusterClient(config, sleep=lambda _: None) as other:
            yield broker, TransactionClient(one), other


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (ErrorCode.NONE, Ended.DONE),
        (ErrorCode.PRODUCER_FENCED, Ended.FENCED),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Ended.FENCED),
        (ErrorCode.INVALID_TXN_STATE, Ended.FENCED),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, Ended.UNKNOWN),
        (ErrorCode.CONCURRENT_TRANSACTIONS, None),
        (ErrorCode.NOT_COORDINATOR, None),
    ],
)
def test_the_end_of_a_transaction_is_classified(code: int, result: Ended | None) -> None:
    assert end_result(code) is result


def test_an_end_that_no_retry_changes_is_an_error() -> None:
    with pytest.raises(ClientError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        end_result(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_a_moved_coordinator_is_looked_up_and_a_busy_one_asked_again() -> None:
    with scripted() as (broker, client, _):
        broker.will_answer(
            InitProducerIdRequest, ErrorCode.NOT_COORDINATOR, LOST, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE
        )
        assert client.begin("sink.0", 1000) == Transaction("sink.0", 7, 3)
        assert len(broker.of(FindCoordinatorRequest)) == 4
        assert {request.key_type for request in broker.of(FindCoordinatorRequest)} == {1}


def test_a_timeout_that_the_broker_refuses_is_named() -> None:
    with scripted() as (broker, client, _):
        broker.will_answer(InitProducerIdRequest, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        with pytest.raises(TransactionTimeoutError, match=r"3600000 ms.*transaction\.max\.timeout\.ms"):
            client.begin("sink.0", 3_600_000)


def test_transactions_of_one_coordinator_end_in_one_go_and_the_rest_is_repeated() -> None:
    with scripted() as (broker, client, _):
        transactions = [Transaction(f"sink.{number}", 7, number) for number in range(4)]
        broker.will_answer(EndTxnRequest, 0, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED, 0, LOST, 0)
        ended = client.end_all(transactions, commit=True)
        assert [ended[each] for each in transactions] == [Ended.DONE, Ended.DONE, Ended.FENCED, Ended.DONE]
        assert [request.transactional_id for request in broker.of(EndTxnRequest)[4:]] == ["sink.1", "sink.1"]
        assert len(broker.of(FindCoordinatorRequest)) == 3, "once for all four, then for the one that is left"
        assert client.end_all([], commit=True) == {}


def test_many_ends_are_sent_a_few_at_a_time_and_none_twice_after_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_flight: list[int] = []
    send = BlockingConnection.send

    def sending(self: BlockingConnection, request: Message, version: int) -> None:
        send(self, request, version)
        in_flight.append(self.in_flight)

    monkeypatch.setattr(BlockingConnection, "send", sending)
    with scripted() as (broker, client, _):
        count, lost = 3 * ENDS_IN_FLIGHT, ENDS_IN_FLIGHT + 7
        transactions = [Transaction(f"sink.{number}", 7, number) for number in range(count)]
        broker.will_answer(EndTxnRequest, *[0] * lost, LOST)
        ended = client.end_all(transactions, commit=True)
        assert set(ended.values()) == {Ended.DONE} and len(ended) == count
        assert max(in_flight) == ENDS_IN_FLIGHT
        repeated = [request.transactional_id for request in broker.of(EndTxnRequest)[lost + 1 :]]
        done = {each.transactional_id for each in transactions[:ENDS_IN_FLIGHT]}
        assert done.isdisjoint(repeated)


def test_a_batch_is_sent_again_as_it_was_until_the_leader_has_it() -> None:
    with scripted() as (broker, client, brokers):
        transaction = client.begin("sink.0", 1000)
        producer = TransactionalProducer(client, brokers, transaction, codec=Codec(CompressionType.ZSTD))
        producer.send({TP: RecordSet(encode_record(Record(value=b"one"), 0, 0), 1)})
        producer.flush()
        broker.will_answer(
            ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, LOST, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0
        )
        producer.send({TP: RecordSet(encode_record(Record(value=b"two"), 0, 0), 1)})
        producer.send({TP: RecordSet(encode_record(Record(value=b"three"), 0, 0), 1)})
        producer.flush()
        sent = [request.topic_data[0].partition_data[0].records for request in broker.of(ProduceRequest)]
        assert len(sent) == 5 and sent[1] == sent[2] == sent[3] and len(broker.of(AddPartitionsToTxnRequest)) == 1
        found = []
        for data in (sent[0], sent[1], sent[4]):
            batch = next_batch(memoryview(data))
            assert batch is not None and batch.is_valid() and batch.is_transactional
            assert (batch.producer_id, batch.producer_epoch) == (7, 0)
            found.append((batch.base_sequence, [record.value for record in records(batch)]))
        assert found == [(0, [b"one"]), (1, [b"two"]), (2, [b"three"])]


def test_rejected_batches_and_lost_transactions_are_distinguished() -> None:
    with scripted() as (broker, client, brokers):
        producer = TransactionalProducer(client, brokers, client.begin("sink.0", 1000))
        batch = {TP: RecordSet(encode_record(Record(value=b"x"), 0, 0), 1)}
        broker.will_answer(ProduceRequest, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_PRODUCER_EPOCH)
        with pytest.raises(ProduceError, match="orders-0 rejected a batch: MESSAGE_TOO_LARGE"):
            producer.send(batch)
            producer.flush()
        producer = TransactionalProducer(client, brokers, client.begin("sink.0", 1000))
        with pytest.raises(ProducerFencedError, match="orders-0 answered INVALID_PRODUCER_EPOCH"):
            producer.send(batch)
            producer.flush()
        broker.will_answer(AddPartitionsToTxnRequest, ErrorCode.PRODUCER_FENCED)
        producer = TransactionalProducer(client, brokers, client.begin("sink.0", 1000))
        with pytest.raises(ProducerFencedError, match="another has its id"):
            producer.send(batch)
