"""A producer's first request after a commit waits until that commit is complete, instead of being refused."""

from __future__ import annotations

import pytest

from klamm.coordinator.deferred import Deferred
from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_coordinator import GIVEN_UP
from klamm.coordinator.transaction.transaction_metadata import TransactionState
from klamm.coordinator.transaction.transaction_results import InitProducerIdResult
from klamm.coordinator.transaction.transaction_waits import MOST_WAITS
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch, TopicPartition
from tests.unit.coordinator.transaction.txn_harness import T0, T1, TIMEOUT_MS, TXN, TxnHarness

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
MAX_WAIT_MS = TransactionConfig().max_wait_ms


def completing(config: TransactionConfig | None = None) -> tuple[TxnHarness, ProducerIdAndEpoch]:
    """A commit whose outcome is stored and whose markers are held back."""
    broker = TxnHarness(config).start()
    producer = broker.new_producer(origin=1)
    assert broker.add(producer, T0, origin=1) is NONE
    broker.holds = True
    assert broker.commit(producer, origin=1) is NONE
    return broker, producer


def add(
    broker: TxnHarness, producer: ProducerIdAndEpoch, tp: TopicPartition = T1, *, origin: int | None = 1
) -> Deferred[ErrorCode]:
    return broker.coordinator.add_partitions(TXN, *producer, [tp], origin=origin)


def init(broker: TxnHarness, *, origin: int) -> Deferred[InitProducerIdResult]:
    return broker.coordinator.init_producer_id(TXN, TIMEOUT_MS, None, origin)


def complete(broker: TxnHarness) -> None:
    broker.deliver()
    broker.scheduler.run_jobs()


def test_partitions_are_added_once_the_previous_transaction_is_complete() -> None:
    broker, producer = completing()
    added = add(broker, producer)
    assert not added.done and broker.state() is TransactionState.PREPARE_COMMIT
    complete(broker)
    assert added.value is NONE
    assert broker.state() is TransactionState.ONGOING and list(broker.txn.value.partitions) == [T1]


def test_nothing_is_appended_while_the_end_of_the_transaction_becomes_known() -> None:
    broker, producer = completing()
    added = add(broker, producer)
    broker.deliver()
    assert broker.state() is TransactionState.COMPLETE_COMMIT and not added.done
    broker.scheduler.run_jobs()
    assert added.value is NONE


def test_a_long_wait_ends_as_without_one() -> None:
    broker, producer = completing()
    added = add(broker, producer)
    broker.pass_ms(MAX_WAIT_MS - 1)
    assert not added.done
    broker.pass_ms(1)
    assert added.value is CONCURRENT
    complete(broker)
    assert broker.state() is TransactionState.COMPLETE_COMMIT


def test_no_request_waits_if_the_limit_is_zero() -> None:
    broker, producer = completing(TransactionConfig(max_wait_ms=0))
    assert add(broker, producer).value is CONCURRENT


def test_a_broker_that_asks_for_several_producers_does_not_wait() -> None:
    broker, producer = completing()
    assert add(broker, producer, origin=None).value is CONCURRENT


def test_few_requests_of_a_transactional_id_wait() -> None:
    broker, producer = completing()
    waiting = [add(broker, producer) for _ in range(MOST_WAITS)]
    assert not any(each.done for each in waiting)
    assert add(broker, producer).value is CONCURRENT
    complete(broker)
    assert all(each.done for each in waiting)


def test_a_request_that_may_not_wait_does_not_overtake_those_that_do() -> None:
    broker, producer = completing()
    waiting = [add(broker, producer, T0) for _ in range(MOST_WAITS)]
    broker.deliver()
    assert broker.state() is TransactionState.COMPLETE_COMMIT and not waiting[0].done
    assert add(broker, producer, T1).value is CONCURRENT
    broker.scheduler.run_jobs()
    assert waiting[0].value is NONE and list(broker.txn.value.partitions) == [T0]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_does_not_overtake_a_request_that_waits(commit: bool) -> None:
    """Otherwise a successful abort of nothing would be followed by a transaction that nobody ends."""
    broker, producer = completing()
    added = add(broker, producer)
    broker.deliver()
    assert broker.state() is TransactionState.COMPLETE_COMMIT
    ended = broker.coordinator.end_transaction(TXN, *producer, commit=commit, origin=1)
    assert ended.value.error is CONCURRENT
    broker.scheduler.run_jobs()
    assert added.value is NONE
    assert broker.end(producer, commit=commit, origin=1).error is NONE


def test_requests_that_wait_are_decided_in_their_order() -> None:
    broker, producer = completing()
    first = add(broker, producer, T0)
    second = add(broker, producer, T1)
    broker.log.holds = False
    complete(broker)
    assert (first.value, second.value) == (NONE, NONE)
    assert list(broker.txn.value.partitions) == [T0, T1]


def test_a_request_that_waited_on_a_connection_that_was_given_up_does_not_act() -> None:
    broker, producer = completing()
    late = add(broker, producer, T0, origin=1)
    current = add(broker, producer, T1, origin=2)
    complete(broker)
    assert (late.value, current.value) == (GIVEN_UP, NONE)
    assert list(broker.txn.value.partitions) == [T1]


def test_a_new_producer_waits_for_the_end_of_the_transaction_that_it_aborts() -> None:
    broker = TxnHarness().start()
    old = broker.new_producer(origin=1)
    broker.add(old, T0, origin=1)
    broker.holds = True
    initialised = init(broker, origin=2)
    assert not initialised.done and broker.state() is TransactionState.PREPARE_ABORT
    complete(broker)
    assert initialised.value == InitProducerIdResult(NONE, old.producer_id, old.producer_epoch + 2)
    assert add(broker, old).value is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_waits_is_fenced_by_a_new_one() -> None:
    broker, producer = completing()
    initialised = init(broker, origin=2)
    added = add(broker, producer)
    complete(broker)
    assert initialised.value.error is NONE
    assert added.value in (CONCURRENT, ErrorCode.PRODUCER_FENCED)
    assert broker.state() is TransactionState.EMPTY


def test_a_new_producer_waits_once() -> None:
    broker, _ = completing()
    initialised = init(broker, origin=2)
    broker.pass_ms(MAX_WAIT_MS)
    assert initialised.value.error is CONCURRENT


def test_the_coordinator_that_resigns_answers_what_waits() -> None:
    broker, producer = completing()
    added = add(broker, producer)
    broker.resign(epoch=1)
    broker.pass_ms(MAX_WAIT_MS)
    assert added.value is ErrorCode.NOT_COORDINATOR


def test_the_coordinator_that_stops_answers_what_waits() -> None:
    broker, producer = completing()
    added, initialised = add(broker, producer), init(broker, origin=2)
    broker.coordinator.shutdown()
    assert added.value is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert initialised.value.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
