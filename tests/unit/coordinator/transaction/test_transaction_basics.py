"""Transactions from begin to end: states, epochs, records and answers, as Kafka's clients see them."""

from __future__ import annotations

import pytest

from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_metadata import (
    VALID_PREVIOUS_STATES,
    TransactionState,
    TransactionValue,
)
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch
from tests.unit.coordinator.transaction.txn_harness import FIRST_ID, T0, T1, TIMEOUT_MS, TXN, TxnHarness

NONE = ErrorCode.NONE
STATES = TransactionState


def test_a_commit_passes_through_all_states_and_marks_each_partition_once() -> None:
    broker = TxnHarness().start(epoch=7)
    producer = broker.new_producer()
    assert producer == (FIRST_ID, 0)
    assert broker.add(producer, T0) is NONE
    assert broker.add(producer, T0, T1) is NONE
    assert broker.commit(producer) is NONE
    assert [value.state for value in broker.stored() if value is not None] == [
        STATES.EMPTY,
        STATES.ONGOING,
        STATES.ONGOING,
        STATES.PREPARE_COMMIT,
        STATES.COMPLETE_COMMIT,
    ]
    assert [(m.tp, m.commit, m.producer, m.coordinator_epoch) for m in broker.leaders.received] == [
        (T0, True, producer, 7),
        (T1, True, producer, 7),
    ]
    assert broker.identity == producer and not broker.txn.value.partitions


def test_an_abort_marks_its_partitions_as_aborted_and_the_next_transaction_may_begin() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    assert broker.abort(producer) is NONE
    assert broker.state() is STATES.COMPLETE_ABORT
    assert [m.commit for m in broker.leaders.received] == [False]
    assert broker.add(producer, T1) is NONE
    assert list(broker.txn.value.partitions) == [T1]


def test_partitions_that_are_in_the_transaction_already_are_not_written_again() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0, T1)
    before = len(broker.stored())
    assert broker.add(producer, T1) is NONE
    assert len(broker.stored()) == before


def test_requests_of_other_ids_and_epochs_are_refused() -> None:
    broker = TxnHarness().start()
    old = broker.new_producer()
    new = broker.new_producer()
    assert new == (old.producer_id, old.producer_epoch + 1)
    stranger = ProducerIdAndEpoch(old.producer_id + 99, 0)
    for producer, error in ((old, ErrorCode.PRODUCER_FENCED), (stranger, ErrorCode.INVALID_PRODUCER_ID_MAPPING)):
        assert broker.add(producer) is error
        assert broker.commit(producer) is error
        assert broker.coordinator.verify_partitions(TXN, *producer, [T0]) == {T0: error}
    assert broker.add(new) is NONE


def test_an_unknown_transactional_id_has_no_producer() -> None:
    broker = TxnHarness().start()
    producer = ProducerIdAndEpoch(1, 0)
    assert broker.add(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.commit(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_timeout_of_a_producer_is_checked() -> None:
    broker = TxnHarness(TransactionConfig(max_timeout_ms=1_000)).start()
    for timeout_ms in (-1, 0, 1_001):
        assert broker.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert broker.init(timeout_ms=1_000).error is NONE
    assert broker.init(transactional_id="").error is ErrorCode.INVALID_REQUEST


def test_another_producer_aborts_the_open_transaction_and_takes_its_id_over() -> None:
    broker = TxnHarness().start()
    old = broker.new_producer()
    broker.add(old, T0)
    broker.holds = True
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.state() is STATES.PREPARE_ABORT
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.commit(old) is ErrorCode.PRODUCER_FENCED
    broker.deliver()
    assert broker.leaders.received[0].producer == (old.producer_id, old.producer_epoch + 1)
    assert broker.new_producer() == (old.producer_id, old.producer_epoch + 2)
    assert broker.add(old) is ErrorCode.PRODUCER_FENCED


def test_while_a_transition_is_written_other_requests_are_concurrent() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.log.holds = True
    first = broker.coordinator.add_partitions(TXN, *producer, [T0])
    assert not first.done
    assert broker.add(producer, T1) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.commit(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.log.release()
    assert first.value is NONE
    broker.log.holds = False
    assert broker.add(producer, T1) is NONE


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_transition_that_is_not_written_is_cancelled(error: ErrorCode, reported: ErrorCode) -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.log.error = error
    assert broker.add(producer) is reported
    assert broker.state() is STATES.EMPTY and broker.txn.pending is None
    broker.log.error = NONE
    assert broker.add(producer) is NONE
    broker.log.error = error
    assert broker.commit(producer) is reported
    assert broker.state() is STATES.ONGOING
    broker.log.error = NONE
    assert broker.commit(producer) is NONE


def test_an_id_that_could_not_be_stored_is_forgotten() -> None:
    broker = TxnHarness().start()
    broker.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert broker.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.log.error = NONE
    assert not broker.partition.transactions
    assert broker.init().error is NONE


def test_producer_ids_that_are_not_available_yet_delay_the_answer() -> None:
    broker = TxnHarness().start()
    waiting = broker.holds_ids = []
    result = broker.coordinator.init_producer_id(TXN, TIMEOUT_MS)
    second = broker.coordinator.init_producer_id(TXN, TIMEOUT_MS)
    waiting[0].complete(5)
    waiting[1].complete(6)
    assert (result.value.producer_id, result.value.producer_epoch) == (5, 0)
    assert (second.value.producer_id, second.value.producer_epoch) == (5, 1)
    failed = broker.coordinator.init_producer_id("other", TIMEOUT_MS)
    waiting[2].complete(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert failed.value.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_verification_knows_the_partitions_of_the_open_transaction_only() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    verify = broker.coordinator.verify_partitions
    assert verify(TXN, *producer, [T0]) == {T0: ErrorCode.TRANSACTION_ABORTABLE}
    broker.add(producer, T0)
    assert verify(TXN, *producer, [T0, T1]) == {T0: NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    broker.holds = True
    broker.commit(producer)
    assert verify(TXN, *producer, [T0]) == {T0: ErrorCode.CONCURRENT_TRANSACTIONS}
    broker.deliver()
    assert verify(TXN, *producer, [T0]) == {T0: ErrorCode.TRANSACTION_ABORTABLE}


# --- EndTxn ------------------------------------------------------------------------------------------------------


def test_a_repeated_end_succeeds_and_the_opposite_one_does_not() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer)
    assert broker.commit(producer, origin=1) is NONE
    assert broker.commit(producer, origin=2) is NONE
    broker.add(producer)
    broker.abort(producer)
    assert broker.abort(producer) is NONE
    assert broker.commit(producer) is ErrorCode.INVALID_TXN_STATE


def test_every_end_is_concurrent_while_the_previous_transaction_completes() -> None:
    for commit in (True, False):
        broker = TxnHarness().start()
        producer = broker.new_producer()
        broker.add(producer)
        broker.holds = True
        assert broker.end(producer, commit=commit).error is NONE
        assert broker.commit(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert broker.abort(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert broker.add(producer) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_abort_with_nothing_open_succeeds_in_the_current_epoch() -> None:
    broker = TxnHarness().start()
    old = broker.new_producer()
    producer = broker.new_producer()
    assert broker.abort(producer) is NONE
    assert broker.abort(old) is ErrorCode.PRODUCER_FENCED
    assert broker.commit(producer) is ErrorCode.INVALID_TXN_STATE
    assert broker.state() is STATES.EMPTY


def test_an_abort_after_a_commit_succeeds_only_if_the_producer_knows_that_it_committed() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=1)
    broker.add(producer, origin=1)
    assert broker.commit(producer, origin=1) is NONE
    assert broker.abort(producer, origin=1) is NONE
    assert broker.abort(producer, origin=2) is ErrorCode.INVALID_TXN_STATE
    # The answer to a repeated commit lets the producer know, too.
    assert broker.commit(producer, origin=3) is NONE
    assert broker.abort(producer, origin=3) is NONE


def test_after_a_take_over_no_producer_is_known_to_know_the_outcome() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer(origin=1)
    broker.add(producer, origin=1)
    broker.commit(producer, origin=1)
    broker = broker.take_over()
    assert broker.abort(producer, origin=1) is ErrorCode.INVALID_TXN_STATE


# --- KIP-360 -----------------------------------------------------------------------------------------------------


def test_a_producer_that_names_its_epoch_gets_the_next_one() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    result = broker.init(producer)
    assert (result.error, result.producer_id, result.producer_epoch) == (NONE, producer.producer_id, 1)
    # A repeated request gets the same answer, any other is fenced.
    again = broker.init(producer)
    assert (again.error, again.producer_epoch) == (NONE, 1)
    broker.new_producer()
    assert broker.init(producer).error is ErrorCode.PRODUCER_FENCED
    assert broker.init(ProducerIdAndEpoch(producer.producer_id + 1, 0)).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_of_a_forgotten_transactional_id_gets_a_new_id() -> None:
    broker = TxnHarness().start()
    result = broker.init(ProducerIdAndEpoch(17, 3))
    assert (result.error, result.producer_id, result.producer_epoch) == (NONE, FIRST_ID, 0)


# --- states ------------------------------------------------------------------------------------------------------


def test_names_and_numbers_of_the_states_are_those_of_kafka() -> None:
    assert [(state.value, state.title) for state in TransactionState] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]
    assert TransactionState.of_title("ongoing") is None


def test_a_transition_must_be_valid() -> None:
    broker = TxnHarness().start()
    broker.new_producer()
    value = TransactionValue(FIRST_ID, 0, TransactionState.COMPLETE_COMMIT)
    assert broker.state() not in VALID_PREVIOUS_STATES[value.state]
    with pytest.raises(AssertionError):
        broker.txn.prepare(value)


def test_the_number_of_transactional_ids_is_bounded_by_memory() -> None:
    broker = TxnHarness(TransactionConfig(transactions_max_bytes=2_500)).start()
    assert broker.init(transactional_id="a").error is NONE
    assert broker.init(transactional_id="b").error is NONE
    assert broker.init(transactional_id="c").error is ErrorCode.POLICY_VIOLATION
    assert broker.init(transactional_id="a").error is NONE


def test_requests_elsewhere_and_after_the_end_are_refused() -> None:
    broker = TxnHarness()
    assert broker.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.coordinator.startup()
    assert broker.init().error is ErrorCode.NOT_COORDINATOR
    broker.elect(0)
    producer = broker.new_producer()
    broker.coordinator.shutdown()
    assert broker.add(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_producer_has_its_answer_before_the_markers_are_sent() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    broker.log.holds = True
    seen: list[tuple[ErrorCode, int]] = []
    ending = broker.coordinator.end_transaction(TXN, *producer, commit=True)
    ending.then(lambda result: seen.append((result.error, len(broker.leaders.received))))
    broker.log.holds = False
    broker.log.release()
    assert seen == [(NONE, 0)]
    assert broker.state() is STATES.COMPLETE_COMMIT and len(broker.leaders.received) == 1
