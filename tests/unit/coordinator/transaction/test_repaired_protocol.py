"""KIP-890 part 2: each end bumps the epoch. Every bug that Kafka had here is a test."""

from __future__ import annotations

import logging

import pytest

from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_metadata import TransactionState, TransactionValue
from klamm.coordinator.transaction.transaction_results import EndTxnResult, InitProducerIdResult
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch, TransactionVersion
from tests.unit.coordinator.transaction.txn_harness import FIRST_ID, T0, TIMEOUT_MS, TV_0, TV_2, TXN, TxnHarness

NONE = ErrorCode.NONE
STATES = TransactionState
MAX = 4
TINY = TransactionConfig(max_producer_epoch=MAX)
"""Epochs 0 to 3 are for producers, 4 is for fencing."""


def started(config: TransactionConfig | None = None) -> TxnHarness:
    return TxnHarness(config, version=TV_2).start()


def end(broker: TxnHarness, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnResult:
    return broker.end(producer, commit=commit, version=TV_2)


def after(result: EndTxnResult) -> ProducerIdAndEpoch:
    assert result.error is NONE
    return ProducerIdAndEpoch(result.producer_id, result.producer_epoch)


def run_transaction(broker: TxnHarness, producer: ProducerIdAndEpoch, *, commit: bool = True) -> ProducerIdAndEpoch:
    assert broker.add(producer, T0, version=TV_2) is NONE
    return after(end(broker, producer, commit=commit))


def test_each_end_bumps_the_epoch_and_markers_have_the_new_one() -> None:
    broker = started()
    producer = broker.new_producer()
    second = run_transaction(broker, producer)
    third = run_transaction(broker, second, commit=False)
    assert (producer, second, third) == ((FIRST_ID, 0), (FIRST_ID, 1), (FIRST_ID, 2))
    assert [(m.producer, m.commit) for m in broker.leaders.received] == [(second, True), (third, False)]


def test_a_late_end_of_the_previous_transaction_is_refused() -> None:
    broker = started()
    producer = broker.new_producer()
    second = run_transaction(broker, producer)
    broker.add(second, T0, version=TV_2)
    assert end(broker, producer, commit=True).error is ErrorCode.PRODUCER_FENCED
    assert broker.state() is STATES.ONGOING


def test_a_repeated_end_gets_the_same_answer() -> None:
    broker = started()
    producer = broker.new_producer()
    second = run_transaction(broker, producer)
    assert after(end(broker, producer, commit=True)) == second
    assert end(broker, producer, commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert after(end(broker.take_over(), producer, commit=True)) == second


def test_while_markers_are_written_ends_are_concurrent_for_the_old_and_the_new_epoch() -> None:
    broker = started()
    producer = broker.new_producer()
    broker.holds = True
    second = run_transaction(broker, producer)
    for each in (producer, second):
        assert end(broker, each, commit=True).error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert end(broker, each, commit=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.add(second, T0, version=TV_2) is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.deliver()
    assert broker.add(second, T0, version=TV_2) is NONE


def test_a_zombie_does_not_get_the_epoch_of_its_successor() -> None:
    # The epoch before the present one is a repeated end only if an end gave the present one.
    broker = started()
    zombie = broker.new_producer()
    successor = broker.new_producer()
    broker.add(successor, T0)
    assert broker.commit(successor) is NONE  # without a bump
    assert end(broker, zombie, commit=True).error is ErrorCode.PRODUCER_FENCED


def test_kafka_18401_the_end_of_an_empty_transaction() -> None:
    broker = started()
    producer = broker.new_producer()
    assert end(broker, producer, commit=True).error is ErrorCode.INVALID_TXN_STATE
    second = after(end(broker, producer, commit=False))
    assert second == (FIRST_ID, 1) and broker.state() is STATES.COMPLETE_ABORT
    third = after(end(broker, second, commit=False))
    fourth = run_transaction(broker, third)
    assert after(end(broker, fourth, commit=False)) == (FIRST_ID, 4)
    assert end(broker, fourth, commit=True).error is ErrorCode.INVALID_TXN_STATE
    assert len(broker.leaders.received) == 1


def test_a_refused_end_is_logged_with_the_state(caplog: pytest.LogCaptureFixture) -> None:
    broker = started()
    second = run_transaction(broker, broker.new_producer())
    caplog.clear()
    with caplog.at_level(logging.INFO, "klamm.coordinator.transaction"):
        assert end(broker, second, commit=True).error is ErrorCode.INVALID_TXN_STATE
    assert not caplog.messages
    with caplog.at_level(logging.DEBUG, "klamm.coordinator.transaction"):
        assert end(broker, second._replace(producer_epoch=0), commit=False).error is ErrorCode.INVALID_TXN_STATE
    sentence = (
        "refused the abort of producer 1000 with epoch 0: the state is CompleteCommit, with producer 1000 and epoch 1"
    )
    assert caplog.messages == [f"{TXN}: {sentence}"]


def test_kafka_18660_an_overflow_returns_the_new_id() -> None:
    broker = started(TINY)
    producer = broker.new_producer()
    for _ in range(MAX - 1):
        producer = run_transaction(broker, producer)
    assert producer == (FIRST_ID, MAX - 1)
    broker.holds = True
    renewed = run_transaction(broker, producer)
    assert renewed == (FIRST_ID + 1, 0)
    # The producer continues at once with the new id: it must not be fenced.
    assert broker.add(renewed, T0, version=TV_2) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert end(broker, renewed, commit=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert end(broker, producer, commit=True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.deliver()
    assert broker.leaders.received[-1].producer == (FIRST_ID, MAX)
    assert broker.identity == renewed
    assert after(end(broker, producer, commit=True)) == renewed
    assert broker.add(renewed, T0, version=TV_2) is NONE
    assert end(broker, producer, commit=True).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_an_overflow_survives_a_change_of_the_coordinator() -> None:
    broker = started(TINY)
    broker.store(TransactionValue(FIRST_ID, MAX - 1, STATES.EMPTY, TIMEOUT_MS))
    broker = broker.take_over()
    broker.holds = True
    renewed = run_transaction(broker, ProducerIdAndEpoch(FIRST_ID, MAX - 1))
    broker = broker.take_over(epoch=2)
    assert broker.state() is STATES.COMPLETE_COMMIT and broker.identity == renewed
    assert after(end(broker, ProducerIdAndEpoch(FIRST_ID, MAX - 1), commit=True)) == renewed


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_kafka_19367_a_new_producer_bumps_the_epoch_of_an_open_transaction_once(version: TransactionVersion) -> None:
    broker = TxnHarness(TINY, version=version).start()
    broker.store(TransactionValue(FIRST_ID, 1, STATES.ONGOING, TIMEOUT_MS, {T0: None}, 1, 1))
    broker = broker.take_over()
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.leaders.received[-1].producer == (FIRST_ID, 2)
    assert broker.init() == InitProducerIdResult(NONE, FIRST_ID, 3)


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_kafka_19367_the_last_epoch_of_an_open_transaction_does_not_overflow(version: TransactionVersion) -> None:
    broker = TxnHarness(TINY, version=version).start()
    broker.store(TransactionValue(FIRST_ID, MAX - 1, STATES.ONGOING, TIMEOUT_MS, {T0: None}, 1, 1))
    broker = broker.take_over()
    new_id = broker.next_id
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.leaders.received[-1].producer == (FIRST_ID, MAX)
    # With bumps, the end of the transaction gives the new id its first epoch. Otherwise the initialisation does.
    assert broker.identity == ((new_id, 0) if version is TV_2 else (FIRST_ID, MAX))
    assert broker.init() == InitProducerIdResult(NONE, new_id, 1 if version is TV_2 else 0)


@pytest.mark.parametrize("version", [TV_0, TV_2])
@pytest.mark.parametrize("state", [STATES.ONGOING, STATES.PREPARE_ABORT, STATES.COMPLETE_ABORT, STATES.EMPTY])
def test_kafka_20090_a_stored_last_epoch_is_recovered(version: TransactionVersion, state: TransactionState) -> None:
    broker = TxnHarness(TINY, version=version)
    partitions = {T0: None} if state in (STATES.ONGOING, STATES.PREPARE_ABORT) else {}
    broker.store(TransactionValue(FIRST_ID, MAX, state, TIMEOUT_MS, partitions, 1, 1))
    broker.start()
    if state is STATES.ONGOING:
        broker.pass_ms(20_000)
        marker = broker.leaders.received[-1]
        # Its records may have the last epoch as well: leaders refuse an equal epoch in the repaired protocol.
        assert marker.producer == (FIRST_ID, MAX) and marker.version is TV_0
    assert broker.state().may_expire
    result = broker.init()
    assert result.error is NONE and (result.producer_id, result.producer_epoch) != (FIRST_ID, MAX)
    assert broker.add(ProducerIdAndEpoch(result.producer_id, result.producer_epoch), T0) is NONE


def test_kafka_20090_a_transaction_that_times_out_in_its_last_epoch_changes_the_id() -> None:
    broker = started(TINY)
    broker.store(TransactionValue(FIRST_ID, MAX - 1, STATES.ONGOING, TIMEOUT_MS, {T0: None}, 1, 1, client_version=TV_2))
    broker = broker.take_over()
    broker.pass_ms(20_000)
    assert broker.state() is STATES.COMPLETE_ABORT
    assert broker.identity.producer_id != FIRST_ID and broker.identity.producer_epoch == 0
    # The producer's own abort, which was late, is a repeated one: it continues with the new id.
    assert after(end(broker, ProducerIdAndEpoch(FIRST_ID, MAX - 1), commit=False)) == broker.identity


def test_the_epochs_of_a_producer_without_bumps_are_used_up_by_initialisations() -> None:
    broker = TxnHarness(TINY).start()
    seen = [broker.new_producer() for _ in range(MAX + 1)]
    assert seen == [*((FIRST_ID, epoch) for epoch in range(MAX)), (FIRST_ID + 1, 0)]
    # A recovering producer with the last epoch gets a new id, and so does its repeated request.
    for _ in range(MAX - 1):
        last = broker.new_producer()
    assert last == (FIRST_ID + 1, MAX - 1)
    first, again = broker.init(last), broker.init(last)
    assert (first.producer_id, first.producer_epoch) == (FIRST_ID + 2, 0)
    assert (again.producer_id, again.producer_epoch) == (FIRST_ID + 2, 0)
    # Once the new id was used, the old one is fenced.
    broker.add(ProducerIdAndEpoch(FIRST_ID + 2, 0), T0)
    broker.commit(ProducerIdAndEpoch(FIRST_ID + 2, 0))
    assert broker.init(last).error is ErrorCode.PRODUCER_FENCED


def test_the_state_of_the_repaired_protocol_is_stored_whatever_the_level_of_the_cluster() -> None:
    # The level was lowered while the producer's transaction was open.
    broker = started()
    producer = broker.new_producer()
    broker.add(producer, T0, version=TV_2)
    broker.version = TV_0
    second = after(end(broker, producer, commit=True))
    assert after(end(broker.take_over(), producer, commit=True)) == second


def test_a_producer_id_that_comes_late_does_not_end_another_transaction() -> None:
    broker = started(TINY)
    broker.store(TransactionValue(FIRST_ID, MAX - 1, STATES.ONGOING, TIMEOUT_MS, {T0: None}, 10**13, 1))
    broker = broker.take_over()
    waiting = broker.holds_ids = []
    late = broker.coordinator.end_transaction(TXN, FIRST_ID, MAX - 1, commit=True, version=TV_2)
    broker.holds_ids = None
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS  # aborts it
    waiting[0].complete(77)
    assert late.value.error is not NONE
    assert [marker.commit for marker in broker.leaders.received] == [False]
