"""Time: transactions that time out are aborted, idle transactional ids are forgotten, and administration sees both."""

from __future__ import annotations

from itertools import pairwise

from klamm.apis.api_declaration import at_once
from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_markers import WRITES_PER_TURN
from klamm.coordinator.transaction.transaction_metadata import TransactionState
from klamm.coordinator.transaction.transaction_state_manager import TOMBSTONES_PER_BATCH
from klamm.errors import ErrorCode
from tests.unit.coordinator.transaction.txn_harness import T0, TIMEOUT_MS, TV_2, TXN, TxnHarness

NONE = ErrorCode.NONE
STATES = TransactionState
WEEK_MS = 7 * 24 * 3_600_000


def test_a_transaction_that_times_out_is_aborted_in_a_new_epoch() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    broker.pass_ms(TIMEOUT_MS - 1)
    assert broker.state() is STATES.ONGOING
    broker.pass_ms(broker.config.abort_timed_out_interval_ms + 1)
    assert broker.state() is STATES.COMPLETE_ABORT
    [marker] = broker.leaders.received
    assert (marker.commit, marker.producer) == (False, (producer.producer_id, producer.producer_epoch + 1))
    assert broker.commit(producer) is ErrorCode.PRODUCER_FENCED


def test_the_timeout_of_a_producer_of_the_repaired_protocol_bumps_the_epoch_once() -> None:
    broker = TxnHarness(version=TV_2).start()
    producer = broker.new_producer()
    broker.add(producer, T0, version=TV_2)
    broker.pass_ms(TIMEOUT_MS + broker.config.abort_timed_out_interval_ms + 1)
    assert broker.state() is STATES.COMPLETE_ABORT
    assert broker.identity == (producer.producer_id, producer.producer_epoch + 1)
    # The producer's own abort repeats what has happened.
    result = broker.end(producer, commit=False, version=TV_2)
    assert (result.error, result.producer_epoch) == (NONE, 1)


def test_a_timed_out_transaction_is_tried_again_if_its_abort_cannot_be_written() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    broker.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    broker.pass_ms(TIMEOUT_MS + 20_000)
    assert broker.state() is STATES.ONGOING and broker.identity == producer
    broker.log.error = NONE
    broker.pass_ms(broker.config.abort_timed_out_interval_ms)
    assert broker.state() is STATES.COMPLETE_ABORT
    assert broker.identity.producer_epoch == producer.producer_epoch + 1


def test_many_transactions_that_time_out_at_once_do_not_hold_the_loop() -> None:
    broker = TxnHarness().start()
    names = [f"id-{number}" for number in range(5 * WRITES_PER_TURN)]
    for name in names:
        started = broker.init(transactional_id=name)
        producer = started.producer_id, started.producer_epoch
        assert broker.coordinator.add_partitions(name, *producer, (T0,)).value is NONE
    broker.holds = True
    broker.clock.elapsed_ms += TIMEOUT_MS + broker.config.abort_timed_out_interval_ms + 1
    broker.coordinator.advance()
    [job] = broker.scheduler.jobs
    written = [len(broker.log.records(0))]
    for _ in job:
        written.append(len(broker.log.records(0)))
    assert max(after - before for before, after in pairwise(written)) <= WRITES_PER_TURN
    assert {broker.partition.transactions[name].state for name in names} == {STATES.PREPARE_ABORT}


def test_an_idle_transactional_id_is_forgotten_with_a_tombstone() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer)
    broker.commit(producer)
    broker.pass_ms(WEEK_MS - 1)
    assert TXN in broker.partition.transactions
    broker.pass_ms(broker.config.remove_expired_interval_ms + 1)
    assert TXN not in broker.partition.transactions
    assert broker.stored()[-1] is None
    assert broker.add(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert TXN not in broker.take_over().partition.transactions


def test_many_transactional_ids_that_expire_at_once_do_not_hold_the_loop() -> None:
    broker = TxnHarness().start()
    names = [f"id-{number}" for number in range(5 * TOMBSTONES_PER_BATCH // 2)]
    for name in names:
        broker.init(transactional_id=name)
    broker.clock.elapsed_ms += WEEK_MS + broker.config.remove_expired_interval_ms + 1
    broker.coordinator.advance()
    counts = [len(broker.partition.transactions)]
    for job in broker.scheduler.jobs:
        for _ in job:
            counts.append(len(broker.partition.transactions))
    assert max(before - after for before, after in pairwise(counts)) == TOMBSTONES_PER_BATCH
    assert counts[-1] == 0 and not broker.take_over().partition.transactions


def test_an_open_transaction_does_not_expire() -> None:
    config = TransactionConfig(transactional_id_expiration_ms=1_000, remove_expired_interval_ms=500)
    broker = TxnHarness(config).start()
    producer = broker.new_producer()
    broker.add(producer)
    broker.pass_ms(10_000)
    assert broker.state() is STATES.ONGOING


def test_a_tombstone_that_cannot_be_written_leaves_the_id_usable() -> None:
    config = TransactionConfig(transactional_id_expiration_ms=1_000, remove_expired_interval_ms=500)
    broker = TxnHarness(config).start()
    producer = broker.new_producer()
    broker.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    broker.pass_ms(2_000)
    broker.log.error = NONE
    assert broker.add(producer) is NONE


def test_an_id_that_is_being_forgotten_is_not_there() -> None:
    config = TransactionConfig(transactional_id_expiration_ms=1_000, remove_expired_interval_ms=500)
    broker = TxnHarness(config).start()
    producer = broker.new_producer()
    broker.log.holds = True
    broker.pass_ms(2_000)
    assert broker.add(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.coordinator.describe(TXN).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert broker.listed() == []
    broker.log.release()
    assert broker.log.records(0)[-1].value is None


# --- administration ----------------------------------------------------------------------------------------------


def test_transactions_are_listed_by_state_producer_and_age() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer)
    other = broker.init(transactional_id="other")
    broker.pass_ms(5_000)
    assert broker.listed() == [TXN, "other"]
    assert broker.listed(["Ongoing"]) == [TXN]
    assert broker.listed(["Ongoing", "Empty"]) == [TXN, "other"]
    assert broker.listed(["Wrong"]) == []
    assert broker.listed(producer_ids=[other.producer_id]) == ["other"]
    assert broker.listed(["Ongoing"], older_ms=4_999) == [TXN]
    assert broker.listed(["Ongoing"], older_ms=5_000) == []
    listing = at_once(broker.coordinator.list_transactions(["Ongoing", "Wrong", "ongoing"]))
    assert listing.unknown_states == ("Wrong", "ongoing")


def test_a_description_shows_the_open_transaction() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    described = broker.coordinator.describe(TXN)
    assert described.value is not None and described.value.state is STATES.ONGOING
    assert list(described.value.partitions) == [T0]
    assert broker.coordinator.describe("unknown").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert broker.coordinator.describe("").error is ErrorCode.INVALID_REQUEST


def test_lists_are_refused_while_a_partition_is_loading() -> None:
    broker = TxnHarness().start()
    broker.resign(1)
    broker.manager.on_election(0, 2, broker.completions.resume)
    assert at_once(broker.coordinator.list_transactions()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.scheduler.run_jobs()
    assert at_once(broker.coordinator.list_transactions()).error is NONE


def counted(broker: TxnHarness) -> dict[str, int]:
    """The transactional ids per state, as the metrics show them; states without any are left out."""
    prefix = "kafka_coordinator_transaction_transactionstatemanager_numtransactions"
    lines = "".join(broker.registry.families()).splitlines()
    values = dict(line.removeprefix(prefix).split() for line in lines if line.startswith(prefix))
    return {state: round(float(value)) for state, value in values.items() if float(value)}


def test_the_metrics_count_the_ids_of_each_state() -> None:
    broker = TxnHarness().start()
    assert counted(broker) == {}
    producer = broker.new_producer()
    assert broker.init(transactional_id="other").error is NONE
    assert counted(broker) == {"empty": 2}
    broker.add(producer, T0)
    assert counted(broker) == {"empty": 1, "ongoing": 1}
    broker = broker.take_over()
    assert counted(broker) == {"empty": 1, "ongoing": 1}
    broker.holds = True
    broker.commit(producer)
    assert counted(broker) == {"empty": 1, "preparecommit": 1}
    broker.deliver()
    assert counted(broker) == {"empty": 1, "completecommit": 1}
    broker.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert broker.init(transactional_id="third").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert counted(broker) == {"empty": 1, "completecommit": 1}, "it was never written"
    broker.log.error = NONE
    broker.pass_ms(WEEK_MS + broker.config.remove_expired_interval_ms)
    assert counted(broker) == {}
    broker.new_producer()
    broker.resign(9)
    assert counted(broker) == {}
