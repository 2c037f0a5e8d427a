"""Writes record batches in one transaction and leaves it open: somebody else decides how it ends.

At most one batch per partition is unacknowledged, so a retry keeps the order. Requests to different leaders are in
flight at the same time, and the caller prepares the next batches meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from klamm.client.blocking_connection import Address, BlockingConnection
from klamm.client.client_errors import ProduceError, ProducerFencedError, RetriableError, error_name, is_retriable
from klamm.client.cluster_client import ClusterClient
from klamm.client.patience import DELIVERY, Patience
from klamm.client.transaction_client import Transaction, TransactionClient
from klamm.clock import Clock, SystemClock
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from klamm.protocol.produced_batch import transactional_batch
from klamm.protocol.record_batch import increment_sequence
from klamm.protocol.wire import BytesLike

_ALL_REPLICAS: Final = -1
_ADDS_NO_PARTITIONS: Final = 11
"""From version 12 on, Produce adds partitions to the transaction by itself, in another protocol of transactions."""
_FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""The transaction is lost. Out of order: a leader forgot earlier batches, so the transaction is not whole."""
_WRITTEN: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class RecordSet(NamedTuple):
    """Encoded records of one partition, with offset deltas from 0."""

    data: BytesLike
    rows: int


class Codec(NamedTuple):
    """How batches are compressed."""

    kind: CompressionType = CompressionType.NONE
    level: int | None = None


class _InFlight(NamedTuple):
    connection: BlockingConnection
    tps: tuple[TopicPartition, ...]


class TransactionalProducer:
    """`brokers` is used for nothing else meanwhile: a connection with a request in flight cannot be shared."""

    def __init__(
        self,
        client: TransactionClient,
        brokers: ClusterClient,
        transaction: Transaction,
        *,
        codec: Codec | None = None,
        patience: Patience = DELIVERY,
        clock: Clock | None = None,
    ) -> None:
        assert client.cluster is not brokers, "requests to coordinators would end requests in flight"
        self.transaction = transaction
        self._client = client
        self._brokers = brokers
        self._codec = codec or Codec()
        self._patience = patience
        self._clock = clock or SystemClock()
        self._added: set[TopicPartition] = set()
        self._sequences: dict[TopicPartition, int] = {}
        self._unacknowledged: dict[TopicPartition, bytes] = {}
        self._in_flight: dict[Address, _InFlight] = {}

    def send(self, records: Mapping[TopicPartition, RecordSet]) -> None:
        """Send one batch per partition. Waits for earlier requests to the same leaders, and for nothing else.

        Raises ProducerFencedError, ProduceError, or ClientError after the deadline.
        """
        for address in {self._brokers.known_leader(tp) for tp in records}:
            if address is not None:
                self._finish(address)
        if any(tp in self._unacknowledged for tp in records):
            self.flush()  # the leader has moved since
        if new := [tp for tp in records if tp not in self._added]:
            self._client.add_partitions(self.transaction, new)
            self._added.update(new)
        for tp, each in records.items():
            self._unacknowledged[tp] = self._batch(tp, each)
        for address, tps in self._by_leader(records).items():
            self._start(address, tps)

    def flush(self) -> None:
        """Wait until the leaders have acknowledged all batches, and send again those that they have not written."""
        for address in list(self._in_flight):
            self._finish(address)
        if self._unacknowledged:
            with self._brokers.within(self._patience):
                self._brokers.retry("the acknowledgement of records", self._send_again)

    # --- inside ---

    def _batch(self, tp: TopicPartition, records: RecordSet) -> bytes:
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = increment_sequence(sequence, records.rows)
        return transactional_batch(
            records.data,
            records.rows,
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.producer_epoch,
            base_sequence=sequence,
            timestamp_ms=self._clock.now_ms(),
            codec=self._codec.kind,
            level=self._codec.level,
        )

    def _by_leader(self, tps: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
        """Partitions whose leader is unknown are left out: `flush` looks them up."""
        found: dict[Address, list[TopicPartition]] = {}
        for tp in tps:
            if (address := self._brokers.known_leader(tp)) is not None:
                found.setdefault(address, []).append(tp)
        return found

    def _start(self, address: Address, tps: list[TopicPartition]) -> None:
        try:
            connection = self._brokers.connection(address)
            connection.send(self._request(tps), connection.version(ProduceRequest, _ADDS_NO_PARTITIONS))
        except OSError:
            for tp in tps:
                self._brokers.lost_leader(tp)
        else:
            self._in_flight[address] = _InFlight(connection, tuple(tps))

    def _request(self, tps: Iterable[TopicPartition]) -> ProduceRequest:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for tp in tps:
            part = PartitionProduceData(index=tp.partition, records=self._unacknowledged[tp])
            by_topic.setdefault(tp.topic, []).append(part)
        return ProduceRequest(
            transactional_id=self.transaction.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._patience.request_ms,
            topic_data=[TopicProduceData(name=name, partition_data=parts) for name, parts in by_topic.items()],
        )

    def _finish(self, address: Address) -> None:
        """Receive the response of a leader. Batches that it did not write stay unacknowledged."""
        if (pending := self._in_flight.pop(address, None)) is None:
            return
        try:
            response = pending.connection.receive(extra_ms=self._patience.request_ms)
        except OSError:
            for tp in pending.tps:
                self._brokers.lost_leader(tp)
            return
        assert isinstance(response, ProduceResponse)
        self._learn(response)

    def _learn(self, response: ProduceResponse) -> str | None:
        """Forget written batches and return the problem of another one, if there is any."""
        problem: str | None = None
        for tp, part in _results(response):
            if part.error_code in _WRITTEN:
                self._unacknowledged.pop(tp, None)
            elif part.error_code in _FENCED:
                raise ProducerFencedError(
                    f"The transaction {self.transaction.transactional_id} is lost: {tp} answered "
                    f"{error_name(part.error_code)}."
                )
            elif not is_retriable(part.error_code):
                raise ProduceError(tp, part.error_code, part.error_message)
            else:
                self._brokers.lost_leader(tp)
                problem = f"{tp}: {error_name(part.error_code)}"
        return problem

    def _send_again(self) -> None:
        by_leader: dict[Address, list[TopicPartition]] = {}
        for tp in self._unacknowledged:
            by_leader.setdefault(self._brokers.leader_address(tp)[1:], []).append(tp)
        problem: str | None = None
        for address, tps in by_leader.items():
            try:
                connection = self._brokers.connection(address)
                version = connection.version(ProduceRequest, _ADDS_NO_PARTITIONS)
                problem = self._learn(connection.ask(self._request(tps), ProduceResponse, version)) or problem
            except OSError as error:
                for tp in tps:
                    self._brokers.lost_leader(tp)
                problem = str(error)
        if problem is not None or self._unacknowledged:
            raise RetriableError(problem or "a leader did not answer for all partitions")


def _results(response: ProduceResponse) -> Iterator[tuple[TopicPartition, PartitionProduceResponse]]:
    for topic in response.responses:
        for part in topic.partition_responses:
            yield TopicPartition(topic.name, part.index), part
