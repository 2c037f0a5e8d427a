"""Transactions as the brokers report them: coordinators, partition leaders, and the difference between the two."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, NoReturn, TypeVar

from klamm.client.blocking_connection import Address, connected
from klamm.client.client_errors import (
    ClientError,
    RetriableError,
    UnknownTopicError,
    UnreachableError,
    error_name,
    is_retriable,
)
from klamm.client.cluster_metadata import metadata_request
from klamm.client.connection_pool import ClientConfig
from klamm.client.missing_rights import MissingRight, hidden_transactions, transactions_probe
from klamm.client.patience import TRANSACTION_QUESTION, Deadline, Patience
from klamm.client.transaction_views import OPEN_STATES, STATES, Description, Listing, OpenTransaction, hanging
from klamm.clock import SystemClock
from klamm.errors import ErrorCode
from klamm.model import TRANSACTION_STATE_TOPIC, TopicPartition
from klamm.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from klamm.protocol.wire import Message

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_TRANSACTION: Final = 1
"""The key type of a transactional id in FindCoordinator."""
_MARKERS: Final = 1
"""WriteTxnMarkers v1: an operator does not know the transaction's version, which v2 carries."""
_PARTITIONS_PER_REQUEST: Final = 500
_METADATA: Final = 9
OnStep = Callable[[int, int], None]


def _ignore(done: int, total: int) -> None:
    """Report no progress."""


class Transactions:
    """The transactions of a cluster. A request is repeated within `patience` while coordinators or leaders move.

    With `on_problem`, lists leave out brokers that do not answer and report them there; otherwise they raise.
    """

    def __init__(
        self,
        config: ClientConfig,
        patience: Patience = TRANSACTION_QUESTION,
        *,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._patience = patience
        self._on_problem = on_problem
        self._answered: Address | None = None
        """The broker that answered last: it is asked first, so that a silent one costs its time once."""
        self._deadline: Deadline | None = None  # of the call in progress

    def listings(
        self,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
    ) -> list[Listing]:
        """Return the transactional ids of all coordinators, filtered by state, producer id or age."""
        request = ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=longer_than_ms
        )
        found: list[Listing] = []
        for broker_id, address in sorted(self._brokers().items()):
            try:
                answer = self._until_served(
                    partial(self._list, address, request), f"Broker {broker_id} did not list its transactions"
                )
            except ClientError as error:
                self._report(error)
                continue
            if answer.unknown_state_filters:
                unknown = answer.unknown_state_filters[0]
                _fail(f"{unknown!r} is not a state of a transaction. There are: {', '.join(STATES)}.")
            found += [
                Listing(each.transactional_id, broker_id, each.producer_id, each.transaction_state)
                for each in answer.transaction_states
            ]
        return sorted(found, key=lambda listing: listing.transactional_id)

    def describe(self, transactional_id: str) -> Description | None:
        """Return the coordinator's state of a transactional id; None if it has none."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

        def attempt() -> Description | None:
            coordinator, address = self._coordinator(transactional_id)
            answer = self._ask(address, request, DescribeTransactionsResponse)
            (state,) = answer.transaction_states
            if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            _check(state.error_code)
            return Description(
                transactional_id,
                coordinator,
                state.producer_id,
                state.producer_epoch,
                state.transaction_state,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms if state.transaction_state in OPEN_STATES else None,
                tuple(TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions),
            )

        return self._until_served(attempt, f"Transactional id {transactional_id} cannot be described")

    def open_transactions(
        self,
        topic: str | None = None,
        partition: int | None = None,
        broker_id: int | None = None,
        on_step: OnStep = _ignore,
    ) -> list[OpenTransaction]:
        """Return what is open in the logs of these partitions, as their leaders report it, or one broker.

        `on_step` receives how many of the partitions are known.
        """
        view = self._metadata(topic)
        addresses = {node.node_id: (node.host, node.port) for node in view.brokers}
        if broker_id is not None and broker_id not in addresses:
            _fail(f"There is no live broker {broker_id}.")
        by_broker: dict[int, list[TopicPartition]] = {}
        for each in view.topics:
            for part in each.partitions:
                if partition not in (None, part.partition_index):
                    continue
                if broker_id is None or broker_id in part.replica_nodes:
                    at = part.leader_id if broker_id is None else broker_id
                    by_broker.setdefault(at, []).append(TopicPartition(str(each.name), part.partition_index))
        if partition is not None and not by_broker and broker_id is None:
            _fail(f"Topic {topic} has no partition {partition}.")
        found: list[OpenTransaction] = []
        asked, total = 0, sum(map(len, by_broker.values()))
        for at, partitions in sorted(by_broker.items()):
            on_step(asked, total)
            asked += len(partitions)
            try:
                found += self._producers_at(addresses.get(at), partitions)
            except ClientError as error:
                self._report(error)
        return sorted(found, key=lambda each: (each.partition, each.start_offset))

    def _producers_at(self, address: Address | None, partitions: Sequence[TopicPartition]) -> list[OpenTransaction]:
        if address is None:
            _fail(f"{partitions[0]} has no leader, so its transactions are not known. Pass --broker-id of a replica.")
        slices = range(0, len(partitions), _PARTITIONS_PER_REQUEST)
        parts = (partitions[start : start + _PARTITIONS_PER_REQUEST] for start in slices)
        return [each for part in parts for each in self._producers(address, part)]

    def _producers(self, address: Address, partitions: Collection[TopicPartition]) -> list[OpenTransaction]:
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
        )

        def attempt() -> list[OpenTransaction]:
            answer = self._ask(address, request, DescribeProducersResponse)
            found = []
            for topic in answer.topics:
                for part in topic.partitions:
                    _check(part.error_code)
                    found += [
                        OpenTransaction(
                            TopicPartition(topic.name, part.partition_index),
                            producer.producer_id,
                            producer.producer_epoch,
                            producer.coordinator_epoch,
                            producer.current_txn_start_offset,
                            producer.last_timestamp,
                        )
                        for producer in part.active_producers
                        if producer.current_txn_start_offset >= 0
                    ]
            return found

        return self._until_served(attempt, f"The producers of {len(partitions)} partitions cannot be described")

    def find_hanging(self, candidates: Collection[OpenTransaction], on_step: OnStep = _ignore) -> list[OpenTransaction]:
        """Return the open transactions that no coordinator will end. `on_step` receives how many ids are described.

        A transaction that ends after its partition and before its coordinator was asked looks the same, and so does one
        that is open only in a replica that lags. So the leaders are asked again.
        """
        if not candidates or not self._all_coordinated() or not self._sees_all():
            return []
        listed = self.listings(producer_ids=sorted({each.producer_id for each in candidates}))
        ids = {listing.producer_id: listing.transactional_id for listing in listed}
        descriptions = []
        for number, transactional_id in enumerate(names := sorted(set(ids.values()))):
            on_step(number, len(names))
            descriptions.append(self.describe(transactional_id))
        found = hanging(candidates, ids, {each.transactional_id: each for each in descriptions if each is not None})
        still_open = {tp: self._open_now(tp) for tp in {each.partition: None for each in found}}
        return [each for each in found if (at := still_open[each.partition]) is None or each.identity in at]

    def _all_coordinated(self) -> bool:
        """Whether every transactional id has a coordinator. Transactions of the others would look as if they hang."""
        try:
            (topic,) = self._metadata(TRANSACTION_STATE_TOPIC).topics
        except UnknownTopicError:
            return True
        lost = [each.partition_index for each in topic.partitions if each.leader_id < 0]
        if lost:
            tp = TopicPartition(TRANSACTION_STATE_TOPIC, lost[0])
            self._report(ClientError(f"{tp} has no leader: whether a coordinator ends its transactions is unknown."))
        return not lost

    def _sees_all(self) -> bool:
        """Whether no transactional id is hidden. Transactions of hidden ones would look as if they hang."""
        missing = self.missing_rights()
        if missing:
            unknown = "Whether a coordinator will end a transaction is not known"
            self._report(ClientError(f"{unknown}: the user lacks {missing[0]}."))
        return not missing

    def missing_rights(self) -> list[MissingRight]:
        """Return the right without which transactional ids are left out of listings."""
        return hidden_transactions(self._ask_any(transactions_probe(), DescribeTransactionsResponse))

    def _open_now(self, tp: TopicPartition) -> set[tuple[int, int]] | None:
        """Return what is open in the leader's log; None if it cannot be asked."""
        try:
            return {each.identity for each in self._producers(self._leader(tp), [tp])}
        except (ClientError, RetriableError):
            return None

    def write_abort_marker(self, transaction: OpenTransaction) -> None:
        """End a transaction in the log of one partition, without its coordinator."""
        tp = transaction.partition
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )
        request = WriteTxnMarkersRequest(markers=[marker])

        def attempt() -> None:
            answer = self._ask(self._leader(tp), request, WriteTxnMarkersResponse, _MARKERS)
            for row in (row for each in answer.markers for topic in each.topics for row in topic.partitions):
                _check(row.error_code)

        self._until_served(attempt, f"The transaction of {tp} at offset {transaction.start_offset} was not aborted")

    def fence(self, description: Description) -> int:
        """Give the transactional id a new epoch, which aborts its transaction; return the epoch."""
        transactional_id = description.transactional_id
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=description.timeout_ms
        )

        def attempt() -> int:
            _, address = self._coordinator(transactional_id)
            answer = self._ask(address, request, InitProducerIdResponse)
            if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
                raise RetriableError("the transaction is being aborted")
            _check(answer.error_code)
            return answer.producer_epoch

        return self._until_served(attempt, f"The transaction of {transactional_id} was not aborted")

    # --- brokers ---------------------------------------------------------------------------------------------------

    def _brokers(self) -> dict[int, Address]:
        return {node.node_id: (node.host, node.port) for node in self._view(()).brokers}

    def _metadata(self, topic: str | None) -> MetadataResponse:
        view = self._view(None if topic is None else (topic,))
        for each in view.topics:
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopicError(f"There is no topic {each.name}.")
        return view

    def _view(self, topics: Iterable[str] | None) -> MetadataResponse:
        return self._ask_any(metadata_request(topics), MetadataResponse, _METADATA)

    def _ask_any(self, request: Message, answer: type[R], limit: int | None = None) -> R:
        """Ask the first broker that answers."""
        for address in self._in_order(self._config.bootstrap):
            try:
                return self._ask(address, request, answer, limit)
            except OSError:
                continue
        tried = ", ".join(f"{host}:{port}" for host, port in self._config.bootstrap)
        raise UnreachableError(
            f"No broker answers at {tried}. Check that the cluster runs and that this is its address."
        )

    def _leader(self, tp: TopicPartition) -> Address:
        view = self._metadata(tp.topic)
        leader = next(
            (p.leader_id for topic in view.topics for p in topic.partitions if p.partition_index == tp.partition), None
        )
        if leader is None:
            _fail(f"Topic {tp.topic} has no partition {tp.partition}.")
        address = next(((node.host, node.port) for node in view.brokers if node.node_id == leader), None)
        if address is None:
            raise RetriableError(f"{tp} has no leader")
        return address

    def _coordinator(self, transactional_id: str) -> tuple[int, Address]:
        request = FindCoordinatorRequest(key=transactional_id, key_type=_TRANSACTION)
        for address in self._in_order(self._brokers().values()):
            try:
                answer = self._ask(address, request, FindCoordinatorResponse, 3)
            except OSError:
                continue
            _check(answer.error_code)
            return answer.node_id, (answer.host, answer.port)
        raise RetriableError("no broker answers")

    def _until_served(self, attempt: Callable[[], T], what: str) -> T:
        """Repeat the attempt while its errors are temporary."""
        self._deadline = deadline = Deadline(self._patience, SystemClock())
        try:
            while True:
                try:
                    return attempt()
                except (RetriableError, OSError) as error:
                    if not deadline.may_repeat:
                        _fail(f"{what}{deadline.patience.window}: {error}.")
                time.sleep(self._patience.pause_s())
        finally:
            self._deadline = None

    def _ask(self, address: Address, request: Message, answer: type[R], limit: int | None = None) -> R:
        """Ask in the highest version, up to `limit`, that both sides have."""
        config = self._config
        deadline = self._deadline or Deadline(self._patience, SystemClock())
        connect_s = deadline.request_ms / 1000
        with connected(address, connect_s, client_id=config.client_id, security=config.security) as connection:
            connection.timeout_ms = deadline.request_ms
            connection.negotiate(config.software_name)
            connection.timeout_ms = deadline.request_ms
            try:
                version = connection.version(type(request), limit)
            except ConnectionError as error:
                _fail(f"{address[0]}:{address[1]}: {error}.")
            reply = connection.ask(request, answer, version)
        self._answered = address
        return reply

    def _in_order(self, addresses: Iterable[Address]) -> list[Address]:
        return sorted(addresses, key=lambda address: address != self._answered)

    def _list(self, address: Address, request: ListTransactionsRequest) -> ListTransactionsResponse:
        # The age came with v1; without it, v0 does, which older brokers serve.
        answer = self._ask(address, request, ListTransactionsResponse, None if request.duration_filter >= 0 else 0)
        _check(answer.error_code)
        return answer

    def _report(self, error: ClientError) -> None:
        if self._on_problem is None:
            raise error
        self._on_problem(str(error))


def _fail(sentence: str) -> NoReturn:
    raise ClientError(sentence)


def _check(code: int) -> None:
    if code == ErrorCode.NONE:
        return
    if is_retriable(code):
        raise RetriableError(error_name(code))
    _fail(f"The broker answered {error_name(code)}.")
