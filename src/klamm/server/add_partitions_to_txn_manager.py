"""Asks transaction coordinators on behalf of partition leaders: AddPartitionsToTxn v4 and later, in batches.

Kafka's AddPartitionsToTxnManager. One request per coordinator's broker is in flight; the questions that come meanwhile
leave together in the next one. Unlike Kafka, questions of one transaction about different partitions are joined: a
client may have sent a Produce request per partition. A failed request is not repeated here, because the producer
repeats its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import ConnectionTotals, outgoing_totals
from klamm.client.patience import TRANSACTION_VERIFICATION
from klamm.coordinator.partitioning import partition_for
from klamm.errors import ErrorCode
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import NO_LEADER, TRANSACTION_STATE_TOPIC, EndPoint, TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from klamm.security.outgoing import OutgoingSecurity

MAX_WAITING_PARTITIONS: Final = 100_000
"""Partitions that wait for one broker. Further questions get a retriable error."""
MAX_REQUEST_PARTITIONS: Final = 2_000
_FIRST_BATCHED: Final = 4
_TYPE: Final = ("kafka.server", "AddPartitionsToTxnManager")
_log = logging.getLogger(__name__)

Errors = dict[TopicPartition, ErrorCode]


class _Identity(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool


@dataclass(slots=True)
class _Question:
    """Partitions of one transaction, and the callers that wait for some of them each."""

    identity: _Identity
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    waiting: list[tuple[asyncio.Future[Errors], tuple[TopicPartition, ...]]] = field(default_factory=list)


class AddPartitionsToTxnManager:
    """Implements `AddPartitionsToTxn` of `klamm.replica.transaction_verification`. Lives on the broker loop."""

    def __init__(
        self,
        metadata: MetadataCache,
        listener: str,
        *,
        name: str,
        loop: asyncio.AbstractEventLoop,
        metrics: MetricsRegistry,
        outgoing: OutgoingSecurity | None = None,
    ) -> None:
        self._metadata = metadata
        self._outgoing = outgoing if outgoing is not None else OutgoingSecurity()
        self._listener = listener
        self._name = name
        self._loop = loop
        self._metrics = metrics
        self._failures = metrics.meter(*_TYPE, "VerificationFailureRate")
        self._times_ms = metrics.histogram(*_TYPE, "VerificationTimeMs")
        self._coordinators: dict[int, _Coordinator] = {}
        self._is_closed = False

    def __call__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> asyncio.Future[Errors]:
        answer: asyncio.Future[Errors] = self._loop.create_future()
        found = self._find(transactional_id)
        if found is None or self._is_closed:
            self._failures.mark(len(partitions))
            answer.set_result(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return answer
        broker_id, endpoint = found
        coordinator = self._coordinators.get(broker_id)
        if coordinator is None:
            totals = outgoing_totals(self._metrics, "add-partitions-to-txn", broker_id)
            coordinator = self._coordinators[broker_id] = _Coordinator(self._name, self._loop, self._outgoing, totals)
        began_s = self._loop.time()
        answer.add_done_callback(lambda done: self._measure(began_s, done))
        identity = _Identity(transactional_id, producer_id, producer_epoch, verify_only)
        coordinator.ask(endpoint, identity, tuple(partitions), answer)
        return answer

    async def close(self) -> None:
        self._is_closed = True
        for coordinator in self._coordinators.values():
            await coordinator.close()

    def _find(self, transactional_id: str) -> tuple[int, EndPoint] | None:
        """Return the broker that leads the transactional id's partition, and its address."""
        snapshot = self._metadata.snapshot
        topic = snapshot.topic(TRANSACTION_STATE_TOPIC)
        if topic is None or not topic.partitions:
            return None
        partition = snapshot.partition(TRANSACTION_STATE_TOPIC, partition_for(transactional_id, len(topic.partitions)))
        if partition is None or partition.leader == NO_LEADER:
            return None
        endpoint = snapshot.endpoint(partition.leader, self._listener)
        return None if endpoint is None else (partition.leader, endpoint)

    def _measure(self, began_s: float, done: asyncio.Future[Errors]) -> None:
        self._times_ms.update((self._loop.time() - began_s) * 1000)
        if not done.cancelled() and (failures := sum(error != ErrorCode.NONE for error in done.result().values())):
            self._failures.mark(failures)


class _Coordinator:
    """The questions for one broker, and the connection to it."""

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, outgoing: OutgoingSecurity, totals: ConnectionTotals
    ) -> None:
        self._name = name
        self._totals = totals
        self._loop = loop
        self._outgoing = outgoing
        self._questions: dict[_Identity, _Question] = {}
        self._waiting_partitions = 0
        self._sending: asyncio.Task[None] | None = None
        self._endpoint: EndPoint | None = None
        self._connection: BrokerConnection | None = None
        self._connected_to: EndPoint | None = None

    def ask(
        self,
        endpoint: EndPoint,
        identity: _Identity,
        partitions: tuple[TopicPartition, ...],
        answer: asyncio.Future[Errors],
    ) -> None:
        self._endpoint = endpoint
        if self._waiting_partitions + len(partitions) > MAX_WAITING_PARTITIONS:
            answer.set_result(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        question = self._questions.get(identity)
        if question is None:
            question = self._questions[identity] = _Question(identity)
        before = len(question.partitions)
        question.partitions.update(dict.fromkeys(partitions))
        question.waiting.append((answer, partitions))
        self._waiting_partitions += len(question.partitions) - before
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_all(), name="add-partitions-to-txn")

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})
        self._disconnect()
        for question in self._questions.values():
            _answer(question, dict.fromkeys(question.partitions, ErrorCode.NETWORK_EXCEPTION))
        self._questions.clear()

    # --- sending ---------------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while self._questions:
                await self._send(self._take())
        finally:
            self._sending = None

    def _take(self) -> list[_Question]:
        """Take the questions of one request. A transactional id occurs once in it: the answer names only that."""
        taken: dict[str, _Question] = {}
        room = MAX_REQUEST_PARTITIONS
        for identity, question in self._questions.items():
            if identity.transactional_id in taken:
                continue
            if taken and len(question.partitions) > room:
                break
            taken[identity.transactional_id] = question
            room -= len(question.partitions)
        for question in taken.values():
            del self._questions[question.identity]
            self._waiting_partitions -= len(question.partitions)
        return list(taken.values())

    async def _send(self, questions: list[_Question]) -> None:
        answers: dict[str, Errors] = {}
        failure = ErrorCode.NETWORK_EXCEPTION
        try:
            async with asyncio.timeout(TRANSACTION_VERIFICATION.request_ms / 1000):
                response = await self._exchange(questions)
            if response is None:
                failure = ErrorCode.NONE  # The broker is too old to verify, as Kafka before 3.5.
            elif response.error_code != ErrorCode.NONE:
                failure = _producer_error(ErrorCode.of(response.error_code))
                _log.warning("%s rejected AddPartitionsToTxn: %s", self._endpoint, failure.name)
            else:
                answers = _errors_by_transaction(response)
        except OSError as error:
            _log.warning("sending AddPartitionsToTxn to %s failed: %s", self._endpoint, error or "no answer in time")
            self._disconnect()
        except Exception:  # A bug. The other questions must not wait because of it.
            _log.exception("sending AddPartitionsToTxn to %s failed", self._endpoint)
            self._disconnect()
        finally:
            for question in questions:
                known = answers.get(question.identity.transactional_id, {})
                _answer(question, {tp: known.get(tp, failure) for tp in question.partitions})

    async def _exchange(self, questions: Iterable[_Question]) -> AddPartitionsToTxnResponse | None:
        """Return the answer; None if the broker does not serve the version and all questions only verify."""
        connection = await self._connected()
        versions = await connection.api_versions()
        version = versions.highest(AddPartitionsToTxnRequest)
        if version < _FIRST_BATCHED:
            if all(question.identity.verify_only for question in questions):
                return None
            raise ConnectionError("the broker cannot add partitions for another one")
        request = AddPartitionsToTxnRequest(transactions=[_transaction(question) for question in questions])
        response: AddPartitionsToTxnResponse = await connection.send(request, version)
        return response

    async def _connected(self) -> BrokerConnection:
        endpoint, connection = self._endpoint, self._connection
        assert endpoint is not None, "a question has an address"
        if connection is not None and not connection.is_closed and endpoint == self._connected_to:
            return connection
        self._disconnect()
        self._connected_to = endpoint
        self._connection = await BrokerConnection.connect(
            endpoint.host,
            endpoint.port,
            client_id=self._name,
            security=self._outgoing.of(endpoint.listener),
            totals=self._totals,
        )
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _transaction(question: _Question) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for tp in question.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    identity = question.identity
    return AddPartitionsToTxnTransaction(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        verify_only=identity.verify_only,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def _errors_by_transaction(response: AddPartitionsToTxnResponse) -> dict[str, Errors]:
    return {
        result.transactional_id: {
            TopicPartition(topic.name, row.partition_index): _producer_error(ErrorCode.of(row.partition_error_code))
            for topic in result.topic_results
            for row in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


def _producer_error(error: ErrorCode) -> ErrorCode:
    """Return the error for the Produce response. Errors about the rights of brokers do not concern producers.

    OPERATION_NOT_ATTEMPTED: the coordinator does not know another partition of the question yet. Questions are joined,
    so the producer may not have asked for that one in the same request, and nothing is wrong with this one.
    """
    match error:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.OPERATION_NOT_ATTEMPTED:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case _:
            return error


def _answer(question: _Question, errors: Errors) -> None:
    for answer, partitions in question.waiting:
        if not answer.done():
            answer.set_result({tp: errors[tp] for tp in partitions})
