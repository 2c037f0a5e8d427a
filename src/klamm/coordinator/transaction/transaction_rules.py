"""The rules of transactions: functions of (transaction, request, now) that begin a transition or return an error.

A rule that needs a new producer id returns NEEDS_PRODUCER_ID; its caller gets one and applies the rule again, because
the transaction may have changed meanwhile. A transition that a rule returns is pending; its caller writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from klamm.coordinator.transaction.transaction_metadata import (
    NO_PARTITIONS,
    NO_TIMESTAMP,
    TransactionMetadata,
    TransactionState,
    TransactionValue,
)
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from klamm.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class Need(Enum):
    PRODUCER_ID = "a producer id"


NEEDS_PRODUCER_ID: Final = Need.PRODUCER_ID
Decision = TransactionValue | ErrorCode | Need
"""A transition that was begun, the answer to the request, or what the rule needs first."""


def init_producer_id(
    txn: TransactionMetadata,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    *,
    server_version: TransactionVersion,
    new_producer_id: int | None,
    now_ms: int,
) -> Decision:
    """Give the producer a later epoch. An open transaction is aborted first, with a transition to PREPARE_ABORT.

    `expected` is the id and epoch of a producer that recovers from an error (KIP-360).
    """
    if txn.pending is not None or txn.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    value = txn.value
    if expected is not None and not _may_continue(txn, expected):
        return ErrorCode.PRODUCER_FENCED
    if expected is not None and _is_late(txn, expected):
        return ErrorCode.PRODUCER_FENCED
    if value.state is TransactionState.ONGOING:
        return fence(txn, server_version=server_version, new_producer_id=new_producer_id, now_ms=now_ms)
    epochs = _next_epochs(txn, expected)
    if isinstance(epochs, ErrorCode):
        return epochs
    if epochs is NEEDS_PRODUCER_ID and new_producer_id is None:
        return NEEDS_PRODUCER_ID
    producer_id = value.producer_id
    if isinstance(epochs, Need):
        assert new_producer_id is not None
        producer_id = new_producer_id
        epochs = 0, NO_PRODUCER_EPOCH if expected is None else value.producer_epoch
    return txn.prepare(
        replace(
            value,
            state=TransactionState.EMPTY,
            producer_id=producer_id,
            producer_epoch=epochs[0],
            last_producer_epoch=epochs[1],
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_timestamp_ms=NO_TIMESTAMP,
            last_update_timestamp_ms=now_ms,
        )
    )


def _may_continue(txn: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether no other producer was initialised since `expected`, judged by the id.

    An id that has just been created has no epoch: then its producer recovers from an expired transactional id. If the
    id was replaced because its epochs were used up, the request may be a retry of the one that replaced it.
    """
    value = txn.value
    return (
        value.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == value.producer_id
        or (expected.producer_id == value.previous_producer_id and txn.is_exhausted(expected.producer_epoch))
    )


def _is_late(txn: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer has already used an epoch after `expected`.

    Then the request was repeated and answered, or comes from a deposed producer. An epoch of which no producer knows is
    not used: the coordinator takes one when it aborts an open transaction, and an end of level 2 reserves the next one.
    """
    value = txn.value
    if expected == value.identity or value.state is TransactionState.EMPTY:
        return False
    return value.state is TransactionState.ONGOING or not value.client_version.bumps_epoch


def _next_epochs(txn: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> tuple[int, int] | ErrorCode | Need:
    """Return the epoch to give and the one before it, for retries (-1 if a retry would be another producer)."""
    value = txn.value
    is_current = expected is None or expected.producer_epoch == value.producer_epoch
    if is_current and txn.is_exhausted(value.producer_epoch):
        return NEEDS_PRODUCER_ID
    bumped = value.producer_epoch + 1
    if expected is None:
        return bumped, NO_PRODUCER_EPOCH
    if value.producer_epoch == NO_PRODUCER_EPOCH or is_current:
        return bumped, value.producer_epoch
    # A retry of a successful call. The epoch for fencing is never given to a producer.
    if expected.producer_epoch == value.last_producer_epoch and value.producer_epoch < txn.max_epoch:
        return value.producer_epoch, value.last_producer_epoch
    return ErrorCode.PRODUCER_FENCED


def fence(
    txn: TransactionMetadata, *, server_version: TransactionVersion, new_producer_id: int | None, now_ms: int
) -> TransactionValue | Need:
    """Abort the open transaction in the next epoch, so that requests of its producer are refused.

    The epoch is bumped once, whatever the version (KAFKA-19367). A stored epoch that is already the last one cannot be
    bumped: no producer has it, so the markers use it as it is (KAFKA-20090).
    """
    value = txn.value
    assert value.state is TransactionState.ONGOING and txn.pending is None
    bumps = server_version.bumps_epoch
    if bumps and txn.is_exhausted(value.producer_epoch) and new_producer_id is None:
        return NEEDS_PRODUCER_ID
    is_exhausted = bumps and txn.is_exhausted(value.producer_epoch)
    return txn.prepare(
        replace(
            value,
            state=TransactionState.PREPARE_ABORT,
            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),
            last_producer_epoch=value.producer_epoch if bumps else NO_PRODUCER_EPOCH,
            previous_producer_id=value.producer_id,
            next_producer_id=new_producer_id if is_exhausted and new_producer_id is not None else NO_PRODUCER_ID,
            last_update_timestamp_ms=now_ms,
            # A marker of the repaired protocol must have a later epoch than the records.
            client_version=server_version if value.producer_epoch < txn.max_epoch else TransactionVersion.TV_0,
        )
    )


def add_partitions(
    txn: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    version: TransactionVersion,
    now_ms: int,
) -> TransactionValue | ErrorCode:
    """Open the transaction, or let it grow. NONE: all of `partitions` are in it already."""
    # First of all: the id and epoch of the next transaction are valid only once this one has ended (KAFKA-18660).
    if txn.pending is not None or txn.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    value = txn.value
    error = check_producer(txn, producer)
    if error is not ErrorCode.NONE:
        return error
    is_open = value.state is TransactionState.ONGOING
    if is_open and all(tp in value.partitions for tp in partitions):
        return ErrorCode.NONE
    return txn.prepare(
        replace(
            value,
            state=TransactionState.ONGOING,
            partitions={**(value.partitions if is_open else NO_PARTITIONS), **dict.fromkeys(partitions)},
            start_timestamp_ms=value.start_timestamp_ms if is_open else now_ms,
            last_update_timestamp_ms=now_ms,
            previous_producer_id=value.producer_id,
            client_version=version,
        )
    )


def verify_partitions(
    txn: TransactionMetadata, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    """Report for each partition whether it belongs to the producer's open transaction (KIP-890 part 1)."""
    error = check_producer(txn, producer)
    if error is ErrorCode.NONE and txn.state.is_prepared:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    if error is not ErrorCode.NONE:
        return dict.fromkeys(partitions, error)
    known = txn.value.partitions if txn.state is TransactionState.ONGOING else NO_PARTITIONS
    return {tp: ErrorCode.NONE if tp in known else ErrorCode.TRANSACTION_ABORTABLE for tp in partitions}


def check_producer(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> ErrorCode:
    if producer.producer_id != txn.value.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != txn.value.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def completion(txn: TransactionMetadata, now_ms: int) -> TransactionValue:
    """All markers are written, or will be before this is: begin the last transition."""
    value = txn.value
    assert value.state.is_prepared
    is_commit = value.state is TransactionState.PREPARE_COMMIT
    next_id = value.next_producer_id
    return txn.prepare(
        replace(
            value,
            state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
            producer_id=value.producer_id if next_id == NO_PRODUCER_ID else next_id,
            producer_epoch=value.producer_epoch if next_id == NO_PRODUCER_ID else 0,
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
            last_update_timestamp_ms=now_ms,
        )
    )


def is_timed_out(txn: TransactionMetadata, now_ms: int) -> bool:
    value = txn.value
    return (
        value.state is TransactionState.ONGOING
        and txn.pending is None
        and value.start_timestamp_ms + value.timeout_ms < now_ms
    )


def is_expired(txn: TransactionMetadata, expiration_ms: int, now_ms: int) -> bool:
    """Whether the transactional id has been idle for so long that it is forgotten."""
    value = txn.value
    return txn.pending is None and value.state.may_expire and value.last_update_timestamp_ms <= now_ms - expiration_ms


def expire(txn: TransactionMetadata) -> TransactionValue:
    """Begin the end of an idle transactional id; its caller writes a tombstone."""
    return txn.prepare(replace(txn.value, state=TransactionState.DEAD, partitions=NO_PARTITIONS))
