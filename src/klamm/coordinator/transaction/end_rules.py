"""The rules of EndTxn: which end of a transaction is begun, repeated, or refused.

Two answers differ from Kafka's (decision 0028). While a transaction completes, every end is CONCURRENT_TRANSACTIONS. An
abort with the current epoch succeeds if nothing is open and the producer knows the outcome of its last transaction.

With KIP-890 part 2 (`version.bumps_epoch`) each end bumps the epoch, so a repeated request has the epoch before the
current one, and an abort with the current epoch belongs to a transaction that has no partitions.
"""

from __future__ import annotations

from dataclasses import replace

from klamm.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
    TransactionValue,
)
from klamm.coordinator.transaction.transaction_rules import NEEDS_PRODUCER_ID, Decision, check_producer
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ConnectionOrder, ProducerIdAndEpoch, TransactionVersion
from klamm.protocol.record_batch import NO_PRODUCER_ID


@lazy_dataclass(frozen=True, slots=True)
class EndTxn:
    """The request of a producer to end its transaction."""

    producer: ProducerIdAndEpoch
    commit: bool
    version: TransactionVersion
    origin: ConnectionOrder | None = None

    @property
    def prepared(self) -> TransactionState:
        return TransactionState.PREPARE_COMMIT if self.commit else TransactionState.PREPARE_ABORT

    @property
    def completed(self) -> TransactionState:
        return TransactionState.COMPLETE_COMMIT if self.commit else TransactionState.COMPLETE_ABORT


def end_transaction(txn: TransactionMetadata, request: EndTxn, *, new_producer_id: int | None, now_ms: int) -> Decision:
    """Return the transition, or an error. NONE means that the transaction has this outcome already."""
    if request.version.bumps_epoch:
        return _end_with_bump(txn, request, new_producer_id, now_ms)
    return _end_in_epoch(txn, request, now_ms)


def _end_in_epoch(txn: TransactionMetadata, request: EndTxn, now_ms: int) -> TransactionValue | ErrorCode:
    error = check_producer(txn, request.producer)
    if error is not ErrorCode.NONE:
        return error
    # An earlier request is waiting. If this abort succeeded first, that request could open a transaction that is never
    # ended.
    if txn.waiting:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if txn.pending is not None or txn.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if txn.state is TransactionState.ONGOING:
        return _prepare(txn, request, now_ms)
    if txn.state is request.completed:
        return ErrorCode.NONE
    if not request.commit and _knows_outcome(txn, request):
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _knows_outcome(txn: TransactionMetadata, request: EndTxn) -> bool:
    """Whether an abort cannot mean the last transaction.

    That one was committed: if its producer did not receive the answer, it would take a success for the abort of that
    transaction. Answers and requests of one connection are in order.
    """
    return txn.state is TransactionState.EMPTY or (request.origin is not None and request.origin == txn.answered_on)


def _end_with_bump(txn: TransactionMetadata, request: EndTxn, new_producer_id: int | None, now_ms: int) -> Decision:
    value, producer = txn.value, request.producer
    is_repeated = _is_repeated(txn, producer)
    if txn.state.is_prepared:
        # The next transaction may already be known to its producer under a new epoch, or a new id (KAFKA-18660).
        is_next = producer == value.identity or producer == (value.next_producer_id, 0)
        if is_repeated or is_next:
            return ErrorCode.CONCURRENT_TRANSACTIONS
    is_known = producer.producer_id in (value.producer_id, value.next_producer_id)
    if not is_repeated and (error := check_producer(txn, producer)) is not ErrorCode.NONE:
        return ErrorCode.PRODUCER_FENCED if is_known else error
    if txn.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if is_repeated:
        return ErrorCode.NONE if txn.state is request.completed else ErrorCode.INVALID_TXN_STATE
    is_empty = txn.state is not TransactionState.ONGOING
    if is_empty and request.commit:
        return ErrorCode.INVALID_TXN_STATE
    if txn.is_exhausted(value.producer_epoch) and new_producer_id is None:
        return NEEDS_PRODUCER_ID
    return _prepare_with_bump(txn, request, new_producer_id, now_ms)


def _is_repeated(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether the request repeats the end that gave the producer its present epoch."""
    value = txn.value
    is_ended = txn.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
    # Otherwise InitProducerId gave the epoch to another producer, and this request comes from the one before it.
    if not is_ended or not value.client_version.bumps_epoch:
        return False
    if producer.producer_id == value.producer_id:
        return producer.producer_epoch + 1 == value.producer_epoch
    is_before_overflow = producer.producer_epoch == txn.max_epoch - 1 and value.producer_epoch == 0
    return producer.producer_id == value.previous_producer_id and is_before_overflow


def _prepare(txn: TransactionMetadata, request: EndTxn, now_ms: int) -> TransactionValue:
    value = txn.value
    return txn.prepare(
        replace(
            value,
            state=request.prepared,
            previous_producer_id=value.producer_id,
            last_update_timestamp_ms=now_ms,
            client_version=request.version,
        )
    )


def _prepare_with_bump(
    txn: TransactionMetadata, request: EndTxn, new_producer_id: int | None, now_ms: int
) -> TransactionValue:
    value = txn.value
    is_exhausted = txn.is_exhausted(value.producer_epoch)
    is_empty = txn.state is not TransactionState.ONGOING
    return txn.prepare(
        replace(
            value,
            state=request.prepared,
            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),
            last_producer_epoch=value.producer_epoch,
            previous_producer_id=value.producer_id,
            next_producer_id=new_producer_id if is_exhausted and new_producer_id is not None else NO_PRODUCER_ID,
            start_timestamp_ms=now_ms if is_empty else value.start_timestamp_ms,
            last_update_timestamp_ms=now_ms,
            client_version=request.version,
        )
    )


def next_identity(value: TransactionValue) -> ProducerIdAndEpoch:
    """Return the id and epoch that the producer uses from now on: those of the next id, if it was given one."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(value.next_producer_id, 0)
    return value.identity
