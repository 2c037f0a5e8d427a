"""The protection of producers whose epoch stays the same: requests on connections that were given up are refused."""

from __future__ import annotations

import pytest

from klamm.coordinator.transaction.transaction_coordinator import GIVEN_UP
from klamm.coordinator.transaction.transaction_metadata import TransactionState
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch, TransactionVersion
from tests.unit.coordinator.transaction.txn_harness import T0, T1, TIMEOUT_MS, TV_0, TV_2, TxnHarness

NONE = ErrorCode.NONE


def test_an_end_that_was_held_back_does_not_end_the_next_transaction() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=1)
    broker.add(producer, T0, origin=1)
    # The commit on connection 1 is held back; the client gives the connection up and repeats it on connection 2.
    assert broker.commit(producer, origin=2) is NONE
    assert broker.add(producer, T1, origin=2) is NONE
    assert broker.commit(producer, origin=1) is GIVEN_UP
    assert broker.state() is TransactionState.ONGOING
    assert broker.abort(producer, origin=2) is NONE
    assert [marker.commit for marker in broker.leaders.received] == [True, False]


def test_partitions_that_were_held_back_do_not_open_a_transaction() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=1)
    assert broker.abort(producer, origin=2) is NONE
    assert broker.add(producer, T0, origin=1) is GIVEN_UP
    assert broker.state() is TransactionState.EMPTY


def test_the_connection_may_stay_the_same() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=4)
    for _ in range(2):
        assert broker.add(producer, T0, origin=4) is NONE
        assert broker.commit(producer, origin=4) is NONE


def test_another_epoch_begins_without_a_history() -> None:
    broker = TxnHarness().start()
    first = broker.new_producer(origin=9)
    broker.add(first, T0, origin=9)
    broker.commit(first, origin=9)
    # Another process had connected earlier; it fences the first one.
    second = broker.new_producer(origin=5)
    assert broker.add(second, T0, origin=5) is NONE
    assert broker.add(first, T0, origin=9) is ErrorCode.PRODUCER_FENCED


def test_after_an_election_connections_from_before_it_are_refused() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=1)
    broker.add(producer, T0, origin=1)
    broker = broker.take_over(last_connection=20)
    # An end from an earlier time when this broker was the coordinator, on a connection of that time.
    assert broker.commit(producer, origin=20) is GIVEN_UP
    assert broker.state() is TransactionState.ONGOING
    assert broker.commit(producer, origin=21) is NONE


def test_a_connection_from_before_the_election_may_begin_an_epoch() -> None:
    broker = TxnHarness(last_connection=20).start()
    producer = broker.new_producer(origin=3)
    assert broker.add(producer, T0, origin=3) is NONE
    assert broker.commit(producer, origin=3) is NONE


def test_a_recovery_on_an_older_connection_is_refused() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=1)
    broker.add(producer, T0, origin=2)
    assert broker.init(producer, origin=1).error is GIVEN_UP
    assert broker.state() is TransactionState.ONGOING


def recovered(broker: TxnHarness) -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch]:
    """A producer that recovers on connection 2; its first attempt, on connection 1, is still on its way.

    Returns the producer as that attempt names it, and as it continues.
    """
    before = broker.new_producer(origin=1)
    result = broker.init(before, origin=2)
    assert result.error is NONE
    return before, ProducerIdAndEpoch(result.producer_id, result.producer_epoch)


@pytest.mark.parametrize("version", [TV_0, TV_2], ids=["old", "repaired"])
def test_a_recovery_that_was_repeated_does_not_abort_the_next_transaction(version: TransactionVersion) -> None:
    broker = TxnHarness(version=version).start()
    before, producer = recovered(broker)
    assert broker.add(producer, T0, origin=2, version=version) is NONE
    assert broker.init(before, origin=1).error is ErrorCode.PRODUCER_FENCED
    assert broker.state() is TransactionState.ONGOING
    assert broker.end(producer, commit=True, origin=2, version=version).error is NONE


def test_a_recovery_that_was_repeated_does_not_hide_a_commit() -> None:
    """Otherwise the producer, which lost the answer to its commit, would take an empty abort for that of the commit."""
    broker = TxnHarness().start()
    before, producer = recovered(broker)
    broker.add(producer, T0, origin=2)
    assert broker.commit(producer, origin=2) is NONE
    assert broker.init(before, origin=1).error is ErrorCode.PRODUCER_FENCED
    assert broker.abort(producer, origin=3) is ErrorCode.INVALID_TXN_STATE
    assert broker.commit(producer, origin=3) is NONE


def test_a_recovery_that_was_repeated_does_not_admit_older_connections() -> None:
    broker = TxnHarness().start()
    before, producer = recovered(broker)
    assert broker.abort(producer, origin=3) is NONE
    assert broker.init(before, origin=1).producer_epoch == producer.producer_epoch
    assert broker.add(producer, T0, origin=2) is GIVEN_UP


def test_a_deposed_producer_does_not_recover_by_an_abort_of_its_successor() -> None:
    broker = TxnHarness().start()
    first = broker.new_producer(origin=1)
    second = broker.new_producer(origin=2)
    broker.add(second, T0, origin=2)
    assert broker.init(first, origin=3).error is ErrorCode.PRODUCER_FENCED
    assert broker.commit(second, origin=2) is NONE


@pytest.mark.parametrize("version", [TV_0, TV_2], ids=["old client", "new client"])
def test_a_producer_whose_transaction_timed_out_recovers(version: TransactionVersion) -> None:
    """The coordinator of level 2 has raised the epoch, but no producer has used it."""
    broker = TxnHarness(version=TV_2).start()
    producer = broker.new_producer(origin=1)
    broker.add(producer, T0, origin=1, version=version)
    broker.pass_ms(2 * TIMEOUT_MS)
    assert broker.state() is TransactionState.COMPLETE_ABORT
    for origin in (1, 2):  # the answer to the first request is lost
        result = broker.init(producer, origin=origin)
        assert (result.error, result.producer_epoch) == (NONE, producer.producer_epoch + 1)
    assert broker.add(broker.identity, T0, origin=2, version=version) is NONE
    assert broker.init(producer, origin=1).error is ErrorCode.PRODUCER_FENCED


def test_the_repaired_protocol_needs_no_protection() -> None:
    broker = TxnHarness(version=TV_2).start()
    producer = broker.new_producer(origin=5)
    broker.add(producer, T0, version=TV_2)
    assert broker.end(producer, commit=True, version=TV_2, origin=1).error is NONE


def test_brokers_are_not_compared() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=5)
    assert broker.add(producer, T0, origin=5) is NONE
    assert broker.add(producer, T1) is NONE
