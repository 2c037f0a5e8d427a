"""A coordinator that may have a successor gives no answer from memory that a producer would rely on (decision 0042)."""

from __future__ import annotations

import pytest

from klamm.coordinator.transaction.transaction_results import TransactionDescription
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch, TransactionVersion
from tests.unit.coordinator.transaction.txn_harness import T0, T1, TV_0, TV_2, TXN, TxnHarness

NONE, NOT_COORDINATOR = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR


def committed(version: TransactionVersion) -> tuple[TxnHarness, ProducerIdAndEpoch]:
    """A coordinator with one committed transaction, and the producer as it continues."""
    broker = TxnHarness(version=version).start()
    producer = broker.new_producer()
    assert broker.add(producer, T0, version=version) is NONE
    result = broker.end(producer, commit=True, version=version)
    assert result.error is NONE
    return broker, ProducerIdAndEpoch(result.producer_id, result.producer_epoch)


@pytest.mark.parametrize(
    ("version", "known"), [(TV_0, ErrorCode.NONE), (TV_2, ErrorCode.INVALID_TXN_STATE)], ids=["old", "repaired"]
)
def test_a_commit_is_not_judged_by_the_last_transaction(version: TransactionVersion, known: ErrorCode) -> None:
    """The successor may have the next transaction, which has the epoch of this request."""
    broker, producer = committed(version)
    assert broker.end(producer, commit=True, version=version).error is known
    broker.log.is_doubtful = True
    result = broker.end(producer, commit=True, version=version)
    assert (result.error, result.producer_id) == (NOT_COORDINATOR, -1)


def test_no_producer_is_fenced_or_unknown() -> None:
    broker, producer = committed(TV_0)
    stranger = producer._replace(producer_epoch=producer.producer_epoch + 1)
    assert broker.add(stranger, T0) is ErrorCode.PRODUCER_FENCED
    broker.log.is_doubtful = True
    assert broker.add(stranger, T0) is NOT_COORDINATOR
    assert broker.end(stranger, commit=True).error is NOT_COORDINATOR
    assert broker.init(expected=stranger).error is NOT_COORDINATOR
    unknown = broker.coordinator.add_partitions("unknown", *producer, [T0])
    assert unknown.value is NOT_COORDINATOR
    assert broker.coordinator.describe("unknown").error is NOT_COORDINATOR


def test_no_transaction_is_described() -> None:
    """Spark's sink decides a batch if all its transactions are open: one that its successor has aborted is not."""
    broker, producer = committed(TV_0)
    assert broker.add(producer, T0) is NONE
    assert broker.coordinator.describe(TXN).error is NONE
    broker.log.is_doubtful = True
    assert broker.coordinator.describe(TXN) == TransactionDescription(NOT_COORDINATOR)


def test_no_partition_is_confirmed_or_refused() -> None:
    broker, producer = committed(TV_0)
    assert broker.add(producer, T0) is NONE
    expected = {T0: NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    assert broker.coordinator.verify_partitions(TXN, *producer, [T0, T1]) == expected
    broker.log.is_doubtful = True
    expected = {T0: NOT_COORDINATOR, T1: NOT_COORDINATOR}
    assert broker.coordinator.verify_partitions(TXN, *producer, [T0, T1]) == expected
    assert broker.add(producer, T0) is NOT_COORDINATOR


def test_a_decision_is_written_and_not_doubted() -> None:
    """Only a leader whose followers follow it can write."""
    broker, producer = committed(TV_2)
    broker.log.is_doubtful = True
    assert broker.add(producer, T0, version=TV_2) is NONE
    broker.holds = True
    assert broker.end(producer, commit=True, version=TV_2).error is NONE
    early = broker.end(producer, commit=True, version=TV_2).error
    assert early is ErrorCode.CONCURRENT_TRANSACTIONS, "the producer asks again"
