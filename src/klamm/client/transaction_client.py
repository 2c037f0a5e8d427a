"""Transactions of producers, request by request: another process than the one that wrote may end a transaction.

Each transaction has its own epoch: `begin` runs InitProducerId. A request that was delayed on a connection
therefore never acts on a later transaction of the same id, which the protocol of Kafka 3.9 alone does not prevent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from klamm.client.blocking_connection import Address, BlockingConnection
from klamm.client.client_errors import (
    ClientError,
    ProducerFencedError,
    RetriableError,
    TransactionTimeoutError,
    error_name,
    is_retriable,
)
from klamm.client.cluster_client import TRANSACTION, ClusterClient
from klamm.client.patience import TRANSACTION_END, TRANSACTION_STEP
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

T = TypeVar("T")

OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
ONGOING: Final = "Ongoing"
_ADD_OF_PRODUCERS: Final = 3
"""Later versions of AddPartitionsToTxn are for brokers."""
_END_KEEPS_EPOCH: Final = 4
"""EndTxn 5 changes the epoch. Here every transaction has its own epoch anyway, and an end must be repeatable."""
ENDS_IN_FLIGHT: Final = 100
"""EndTxn requests that are sent to a coordinator before their answers are read."""
_FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)


class Transaction(NamedTuple):
    """A transaction, by the only epoch of its producer in which it can be open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Ended(Enum):
    """The result of an EndTxn."""

    DONE = "done"
    FENCED = "fenced"
    """The coordinator has aborted the transaction before, because of its timeout or for another producer."""
    UNKNOWN = "unknown"
    """The coordinator no longer knows the id; how the transaction ended cannot be learned."""


class TransactionState(NamedTuple):
    """A transaction as its coordinator describes it."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int


def end_result(code: int) -> Ended | None:
    """Classify the error code of an EndTxn; None: try again. Raises ClientError for a code that no retry changes."""
    if code == ErrorCode.NONE:
        return Ended.DONE
    if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE):
        return Ended.FENCED
    if code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
        return Ended.UNKNOWN
    if is_retriable(code):
        return None
    raise ClientError(f"The coordinator did not end a transaction: {error_name(code)}.")


def _end_request(transaction: Transaction, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=commit,
    )


class TransactionClient:
    """Requests to transaction coordinators, which are looked up again when they have moved."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self._coordinators: dict[str, Address] = {}

    def begin(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """Take over the id: an open transaction of its former producer is aborted. Raises TransactionTimeoutError."""
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

        def attempt() -> Transaction:
            response = self._coordinator(transactional_id).ask(request, InitProducerIdResponse)
            if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise TransactionTimeoutError(
                    f"The brokers do not accept a transaction timeout of {timeout_ms} ms: it is longer than their "
                    "transaction.max.timeout.ms."
                )
            self._check(transactional_id, response.error_code)
            return Transaction(transactional_id, response.producer_id, response.producer_epoch)

        return self._retry(f"a producer id for {transactional_id}", transactional_id, attempt)

    def add_partitions(self, transaction: Transaction, tps: Iterable[TopicPartition]) -> None:
        """Add partitions before their first batch. Raises ProducerFencedError."""
        by_topic: dict[str, list[int]] = {}
        for tp in tps:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transaction.transactional_id,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=parts) for name, parts in by_topic.items()
            ],
        )

        def attempt() -> None:
            connection = self._coordinator(transaction.transactional_id)
            version = connection.version(AddPartitionsToTxnRequest, _ADD_OF_PRODUCERS)
            response = connection.ask(request, AddPartitionsToTxnResponse, version)
            codes = {
                result.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }
            # Partitions that the broker did not try, because of the others, have a code of their own.
            for code in sorted(codes - {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}):
                self._check(transaction.transactional_id, code)

        self._retry(f"partitions of {transaction.transactional_id}", transaction.transactional_id, attempt)

    def end(self, transaction: Transaction, *, commit: bool) -> Ended:
        return self.end_all([transaction], commit=commit)[transaction]

    def end_all(self, transactions: Sequence[Transaction], *, commit: bool) -> dict[Transaction, Ended]:
        """End transactions, those of one coordinator in one go. A repeated end has the result of the first."""
        ended: dict[Transaction, Ended] = {}

        def attempt() -> dict[Transaction, Ended]:
            left = [transaction for transaction in transactions if transaction not in ended]
            problem: Exception | None = None
            for address, those in self._by_coordinator(left).items():
                try:
                    self._end_at(address, those, commit, ended)
                except (RetriableError, OSError) as error:
                    problem = error
            for transaction in transactions:
                if transaction not in ended:
                    self._coordinators.pop(transaction.transactional_id, None)
                    problem = problem or RetriableError(f"{transaction.transactional_id} is not ended yet")
            if problem is not None:
                raise problem
            return ended

        if not transactions:
            return ended
        with self.cluster.within(TRANSACTION_END):
            return self.cluster.retry(f"the end of {len(transactions)} transactions", attempt)

    def _end_at(
        self, address: Address, transactions: Sequence[Transaction], commit: bool, ended: dict[Transaction, Ended]
    ) -> None:
        """Add the results to `ended`. With too many requests in flight, both sides would stop reading."""
        connection = self.cluster.connection(address)
        version = connection.version(EndTxnRequest, _END_KEEPS_EPOCH)
        for start in range(0, len(transactions), ENDS_IN_FLIGHT):
            some = transactions[start : start + ENDS_IN_FLIGHT]
            for transaction in some:
                connection.send(_end_request(transaction, commit), version)
            for transaction in some:
                response = connection.receive()
                assert isinstance(response, EndTxnResponse)
                if (result := end_result(response.error_code)) is not None:
                    ended[transaction] = result

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionState]:
        """Return the states of ids; ids that the coordinators do not know are left out."""
        found: dict[str, TransactionState] = {}

        def attempt() -> dict[str, TransactionState]:
            for address, ids in self._ids_by_coordinator(transactional_ids).items():
                request = DescribeTransactionsRequest(transactional_ids=ids)
                for each in (
                    self.cluster.connection(address).ask(request, DescribeTransactionsResponse).transaction_states
                ):
                    if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                        continue
                    self._check(each.transactional_id, each.error_code)
                    found[each.transactional_id] = TransactionState(
                        each.transaction_state,
                        each.producer_id,
                        each.producer_epoch,
                        each.transaction_timeout_ms,
                        each.transaction_start_time_ms,
                    )
            return found

        def forgetful() -> dict[str, TransactionState]:
            try:
                return attempt()
            except (RetriableError, OSError):
                for transactional_id in transactional_ids:
                    self._coordinators.pop(transactional_id, None)
                raise

        if not transactional_ids:
            return found
        with self.cluster.within(TRANSACTION_STEP):
            return self.cluster.retry("the state of transactions", forgetful)

    def open_ids(self, prefix: str) -> list[str]:
        """Return the ids with this prefix whose transaction is open, from all brokers that answer."""
        request = ListTransactionsRequest(state_filters=list(OPEN_STATES))

        def attempt() -> list[str]:
            self.cluster.metadata(())
            found: set[str] = set()
            for address in self.cluster.addresses().values():
                response = self.cluster.connection(address).ask(request, ListTransactionsResponse)
                if response.error_code != ErrorCode.NONE:
                    raise RetriableError(f"ListTransactions: {error_name(response.error_code)}")
                found.update(each.transactional_id for each in response.transaction_states)
            return sorted(name for name in found if name.startswith(prefix))

        with self.cluster.within(TRANSACTION_STEP):
            return self.cluster.retry("the open transactions", attempt)

    # --- coordinators ---

    def _retry(self, what: str, transactional_id: str, attempt: Callable[[], T]) -> T:
        def forgetful() -> T:
            try:
                return attempt()
            except (RetriableError, OSError):
                self._coordinators.pop(transactional_id, None)
                raise

        with self.cluster.within(TRANSACTION_STEP):
            return self.cluster.retry(what, forgetful)

    def _coordinator(self, transactional_id: str) -> BlockingConnection:
        self._find([transactional_id])
        return self.cluster.connection(self._coordinators[transactional_id])

    def _find(self, transactional_ids: Iterable[str]) -> None:
        if missing := [each for each in transactional_ids if each not in self._coordinators]:
            self._coordinators |= self.cluster.coordinators(missing, TRANSACTION)

    def _ids_by_coordinator(self, transactional_ids: Sequence[str]) -> dict[Address, list[str]]:
        self._find(transactional_ids)
        found: dict[Address, list[str]] = {}
        for each in transactional_ids:
            found.setdefault(self._coordinators[each], []).append(each)
        return found

    def _by_coordinator(self, transactions: Iterable[Transaction]) -> Mapping[Address, list[Transaction]]:
        listed = list(transactions)
        self._find(transaction.transactional_id for transaction in listed)
        found: dict[Address, list[Transaction]] = {}
        for transaction in listed:
            found.setdefault(self._coordinators[transaction.transactional_id], []).append(transaction)
        return found

    def _check(self, transactional_id: str, code: int) -> None:
        """Raise RetriableError, ProducerFencedError or ClientError unless the code is NONE."""
        if code == ErrorCode.NONE:
            return
        problem = f"{transactional_id}: {error_name(code)}"
        if code in _FENCED:
            raise ProducerFencedError(f"The producer {problem}: its transaction was aborted or another has its id.")
        raise RetriableError(problem) if is_retriable(code) else ClientError(f"The coordinator rejected {problem}.")
