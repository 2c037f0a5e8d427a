"""Markers: destinations, retries per partition, and what a change of the coordinator leaves of them."""

from __future__ import annotations

import pytest

from klamm.client.patience import TRANSACTION_MARKER
from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_markers import (
    MAX_PARTITIONS_PER_REQUEST,
    MAX_TRANSACTIONS_PER_REQUEST,
    RETRIES_PER_TURN,
    Destination,
)
from klamm.coordinator.transaction.transaction_metadata import TransactionState, TransactionValue
from klamm.coordinator.transaction.transaction_state_manager import TRANSACTIONS_PER_SLICE
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch, TopicPartition
from tests.unit.coordinator.transaction.txn_harness import FIRST_ID, T0, T1, TIMEOUT_MS, TXN, TxnHarness

NONE = ErrorCode.NONE
STATES = TransactionState
OFFSETS = TopicPartition("__consumer_offsets", 3)
STATE_PARTITION = TopicPartition("__transaction_state", 0)


def prepared(broker: TxnHarness, *partitions: TopicPartition, commit: bool = True) -> None:
    producer = broker.new_producer()
    broker.add(producer, *partitions)
    broker.end(producer, commit=commit)


def test_each_leader_gets_one_request_with_its_partitions() -> None:
    broker = TxnHarness().start()
    broker.leaders.where = {T0: 1, T1: 2, OFFSETS: 2}
    broker.holds = True
    prepared(broker, T0, T1, OFFSETS)
    markers = broker.completions.markers
    first, second = markers.take(1), markers.take(2)
    assert first is not None and second is not None
    assert [partitions for _, partitions in first.entries.values()] == [[T0]]
    assert [partitions for _, partitions in second.entries.values()] == [[T1, OFFSETS]]
    assert markers.take(1) is None
    markers.on_response(first, broker.leaders.receive(first))
    assert broker.state() is STATES.PREPARE_COMMIT
    markers.on_response(second, broker.leaders.receive(second))
    assert broker.state() is STATES.COMPLETE_COMMIT


def test_transactions_of_several_producers_share_a_request() -> None:
    broker = TxnHarness().start()
    broker.holds = True
    for name in ("a", "b"):
        result = broker.init(transactional_id=name)
        producer = result.producer_id, result.producer_epoch
        broker.coordinator.add_partitions(name, *producer, [T0])
        broker.coordinator.end_transaction(name, *producer, commit=name == "a")
    batch = broker.completions.markers.take(1)
    assert batch is not None
    assert [completion.commit for completion, _ in batch.entries.values()] == [True, False]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_failed_partition_is_tried_again_at_its_present_leader(error: ErrorCode) -> None:
    broker = TxnHarness().start()
    broker.leaders.errors = {T1: error}
    prepared(broker, T0, T1)
    assert broker.state() is STATES.PREPARE_COMMIT
    broker.leaders.errors = {}
    broker.leaders.where = {T1: 5}
    broker.leaders.received.clear()
    broker.pass_ms(TRANSACTION_MARKER.longest_pause_ms)
    assert [marker.tp for marker in broker.leaders.received] == [T1]
    assert broker.state() is STATES.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_a_partition_that_cannot_have_markers_is_left_out(error: ErrorCode) -> None:
    broker = TxnHarness().start()
    broker.leaders.errors = {T0: error}
    prepared(broker, T0)
    assert broker.state() is STATES.COMPLETE_COMMIT


def test_a_broker_that_is_not_reached_is_tried_again() -> None:
    broker = TxnHarness().start()
    broker.leaders.unreachable = {1}
    prepared(broker, T0)
    broker.pass_ms(60_000)
    assert broker.state() is STATES.PREPARE_COMMIT
    broker.leaders.unreachable = set()
    broker.pass_ms(TRANSACTION_MARKER.longest_pause_ms)
    assert broker.state() is STATES.COMPLETE_COMMIT


def test_a_new_transaction_does_not_hurry_those_that_have_waited_longer() -> None:
    """Otherwise each new one would cost as much as all that wait for the same broker."""
    broker = TxnHarness().start()
    broker.leaders.unreachable = {1}
    prepared(broker, T0)
    broker.pass_ms(30_000)
    markers = broker.completions.markers
    located: list[TopicPartition] = []
    markers._locate = lambda tp: located.append(tp) or 1  # type: ignore[func-returns-value]
    result = broker.init(transactional_id="new")
    broker.coordinator.add_partitions("new", result.producer_id, result.producer_epoch, [T1])
    broker.coordinator.end_transaction("new", result.producer_id, result.producer_epoch, commit=True)
    broker.pass_ms(400)
    assert located.count(T1) >= 3 and located.count(T0) <= 1


def test_very_many_retries_are_done_a_few_at_a_time() -> None:
    broker = TxnHarness().start()
    broker.leaders.unreachable = {1}
    count = 2 * RETRIES_PER_TURN + 1
    for number in range(count):
        name = f"txn-{number}"
        result = broker.init(transactional_id=name)
        broker.coordinator.add_partitions(name, result.producer_id, result.producer_epoch, [T0])
        broker.coordinator.end_transaction(name, result.producer_id, result.producer_epoch, commit=True)
    broker.leaders.unreachable = set()
    broker.clock.elapsed_ms += TRANSACTION_MARKER.longest_pause_ms
    broker.holds = True
    turns = 0
    while broker.scheduler.deadline_ms is not None and broker.scheduler.deadline_ms - 5_000 <= broker.clock.elapsed_ms:
        broker.scheduler.deadline_ms = None
        broker.coordinator.advance()
        turns += 1
    assert turns == 3
    broker.deliver()
    assert len(broker.leaders.received) == count
    assert len(broker.listed(["CompleteCommit"])) == count


def test_a_partition_without_a_leader_waits_for_one_and_a_deleted_one_does_not() -> None:
    broker = TxnHarness().start()
    broker.leaders.where = {T0: Destination.UNKNOWN, T1: Destination.DELETED}
    prepared(broker, T0, T1)
    assert broker.completions.markers.unknown_destination_count == 1
    broker.pass_ms(1_000)
    assert broker.state() is STATES.PREPARE_COMMIT
    broker.leaders.where = {T0: 2}
    broker.pass_ms(TRANSACTION_MARKER.longest_pause_ms)
    assert [marker.tp for marker in broker.leaders.received] == [T0]
    assert broker.state() is STATES.COMPLETE_COMMIT
    assert broker.completions.markers.unknown_destination_count == 0


def test_a_transaction_whose_partitions_are_all_deleted_completes() -> None:
    broker = TxnHarness().start()
    broker.leaders.where = {T0: Destination.DELETED}
    prepared(broker, T0, commit=False)
    assert broker.state() is STATES.COMPLETE_ABORT


def test_nothing_is_appended_while_the_outcome_becomes_known() -> None:
    """It becomes known inside of a change of the log. A follower whose fetch caused it would miss another record."""
    broker = TxnHarness().start()
    broker.leaders.where = {T0: Destination.DELETED}
    producer = broker.new_producer()
    broker.add(producer, T0)
    ended = broker.coordinator.end_transaction(TXN, *producer, commit=True)
    assert ended.value.error is ErrorCode.NONE and broker.state() is STATES.PREPARE_COMMIT
    broker.scheduler.run_jobs()
    assert broker.state() is STATES.COMPLETE_COMMIT


def test_many_partitions_are_sent_in_several_requests() -> None:
    broker = TxnHarness().start()
    partitions = [TopicPartition("t", index) for index in range(2 * MAX_PARTITIONS_PER_REQUEST + 1)]
    broker.holds = True
    prepared(broker, *partitions)
    sizes = []
    while (batch := broker.completions.markers.take(1)) is not None:
        sizes.append(sum(len(each) for _, each in batch.entries.values()))
        broker.completions.markers.on_response(batch, broker.leaders.receive(batch))
    assert sizes == [MAX_PARTITIONS_PER_REQUEST, MAX_PARTITIONS_PER_REQUEST, 1]
    assert broker.state() is STATES.COMPLETE_COMMIT


def test_many_transactions_are_sent_in_several_requests() -> None:
    broker = TxnHarness().start()
    broker.holds = True
    names = [f"id-{number}" for number in range(2 * MAX_TRANSACTIONS_PER_REQUEST + 1)]
    for name in names:
        result = broker.init(transactional_id=name)
        producer = result.producer_id, result.producer_epoch
        broker.coordinator.add_partitions(name, *producer, [T0])
        broker.coordinator.end_transaction(name, *producer, commit=True)
    sizes = []
    while (batch := broker.completions.markers.take(1)) is not None:
        sizes.append(len(batch.entries))
        broker.completions.markers.on_response(batch, broker.leaders.receive(batch))
    assert sizes == [MAX_TRANSACTIONS_PER_REQUEST, MAX_TRANSACTIONS_PER_REQUEST, 1]
    assert {broker.partition.transactions[name].state for name in names} == {STATES.COMPLETE_COMMIT}


def test_the_end_of_a_transaction_is_stored_until_it_succeeds() -> None:
    broker = TxnHarness().start()
    broker.holds = True
    prepared(broker, T0)
    broker.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    broker.deliver()
    assert broker.completions.append_retry_count == 1
    assert broker.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.pass_ms(1_000)
    broker.log.error = NONE
    broker.pass_ms(1_000)
    assert broker.state() is STATES.COMPLETE_COMMIT and broker.completions.append_retry_count == 0
    assert len(broker.leaders.received) == 1


# --- a change of the coordinator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_new_coordinator_sends_the_markers_of_prepared_transactions(commit: bool) -> None:
    broker = TxnHarness().start(epoch=3)
    broker.holds = True
    prepared(broker, T0, T1, commit=commit)
    broker = broker.take_over(epoch=4)
    assert broker.state() is (STATES.COMPLETE_COMMIT if commit else STATES.COMPLETE_ABORT)
    assert [(m.tp, m.commit, m.coordinator_epoch) for m in broker.leaders.received] == [
        (T0, commit, 4),
        (T1, commit, 4),
    ]


def undecided() -> tuple[TxnHarness, ProducerIdAndEpoch]:
    """A new coordinator whose predecessor died before all in-sync replicas had the decision of its transaction."""
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0, T1)
    broker.log.holds = True
    assert not broker.coordinator.end_transaction(TXN, *producer, commit=True).done
    broker = broker.take_over(epoch=1)
    broker.log.holds = False
    return broker, producer


def test_no_marker_is_sent_before_all_in_sync_replicas_have_the_decision() -> None:
    """Otherwise the next coordinator may not know the decision, and abort the rest of the transaction."""
    broker, producer = undecided()
    assert broker.leaders.received == []
    assert broker.commit(producer) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.log.behind_held, "the replication is not awaited"
    broker.log.release()
    broker.scheduler.run_jobs()
    assert [(m.tp, m.commit, m.coordinator_epoch) for m in broker.leaders.received] == [(T0, True, 1), (T1, True, 1)]
    assert broker.state() is STATES.COMPLETE_COMMIT
    assert broker.commit(producer) is NONE


def test_replication_is_awaited_until_it_succeeds() -> None:
    broker, _ = undecided()
    behind, broker.log.behind_held = broker.log.behind_held, []
    for replicated in behind:
        replicated.complete(ErrorCode.REQUEST_TIMED_OUT)
    broker.scheduler.run_jobs()
    assert broker.leaders.received == []
    broker.log.release()
    broker.scheduler.run_jobs()
    assert broker.state() is STATES.COMPLETE_COMMIT


def test_a_coordinator_that_was_replaced_before_the_replication_sends_no_marker() -> None:
    broker, producer = undecided()
    broker.resign(2)
    broker.log.release()
    broker.scheduler.run_jobs()
    assert broker.leaders.received == []
    assert broker.commit(producer) is ErrorCode.NOT_COORDINATOR


def test_a_partition_that_is_no_longer_led_is_not_coordinated() -> None:
    broker, producer = undecided()
    broker.log.release(ErrorCode.KAFKA_STORAGE_ERROR)
    broker.scheduler.run_jobs()
    assert broker.leaders.received == []
    assert broker.commit(producer) is ErrorCode.NOT_COORDINATOR


def test_markers_are_sent_again_if_the_coordinator_died_before_it_stored_the_end() -> None:
    broker = TxnHarness().start()
    broker.holds = True
    prepared(broker, T0)
    broker.log.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker.deliver()
    broker.log.error = NONE
    broker = broker.take_over()
    assert broker.state() is STATES.COMPLETE_COMMIT
    assert len(broker.leaders.received) == 2


def other_ids(broker: TxnHarness, count: int = TRANSACTIONS_PER_SLICE) -> None:
    """Before the transactional id of the test, so that loading takes a slice for them."""
    for number in range(count):
        assert broker.init(transactional_id=f"other-{number}").error is NONE


@pytest.mark.parametrize("is_timed_out", [False, True])
def test_a_transaction_that_ends_while_its_partition_is_loaded_is_completed_once(is_timed_out: bool) -> None:
    """A second marker of the old protocol could end the next transaction of the producer."""
    broker = TxnHarness().start()
    other_ids(broker)
    producer = broker.new_producer()
    broker.add(producer, T0)
    broker.resign(1)
    broker.holds = True
    broker.clock.elapsed_ms += 2 * TIMEOUT_MS if is_timed_out else 0
    broker.coordinator.on_leadership_change([(TopicPartition("__transaction_state", 0), 2)], [])
    for _ in range(20):
        jobs, broker.scheduler.jobs = broker.scheduler.jobs, []
        broker.scheduler.jobs += [job for job in jobs if next(job, "over") is None]
        if is_timed_out:
            broker.clock.elapsed_ms += TransactionConfig().abort_timed_out_interval_ms
            broker.coordinator.advance()
        else:
            broker.coordinator.end_transaction(TXN, *producer, commit=True)
    broker.scheduler.run_jobs()
    if is_timed_out:
        broker.pass_ms(TransactionConfig().abort_timed_out_interval_ms)
    else:
        broker.commit(producer)
    markers = broker.completions.markers
    assert broker.state().is_prepared and markers.take(1) is not None
    assert markers.take(1) is None, "the same marker twice"


def test_an_old_coordinator_drops_its_markers() -> None:
    broker = TxnHarness().start()
    broker.holds = True
    prepared(broker, T0, T1)
    broker.leaders.unreachable = {1}
    broker.deliver()
    broker.resign(1)
    broker.leaders.unreachable = set()
    broker.pass_ms(10_000)
    broker.deliver()
    assert broker.leaders.received == []
    assert broker.completions.markers.take(1) is None


@pytest.mark.parametrize("course", ["lost before the election", "lost after it", "answered after it"])
def test_kafka_16352_a_request_of_an_earlier_term_does_not_stop_the_present_one(course: str) -> None:
    broker = TxnHarness().start()
    broker.holds = True
    prepared(broker, T0)
    markers = broker.completions.markers
    stale = markers.take(1)
    assert stale is not None
    broker.resign(1)
    if course == "lost before the election":
        markers.on_failure(stale)  # it waits to be sent again
    broker.elect(2)
    if course == "lost after it":
        markers.on_failure(stale)
    if course == "answered after it":
        markers.on_response(stale, {FIRST_ID: {T0: NONE}})
    assert broker.state() is STATES.PREPARE_COMMIT
    broker.deliver()
    assert [marker.coordinator_epoch for marker in broker.leaders.received] == [2]
    assert broker.state() is STATES.COMPLETE_COMMIT
    broker.pass_ms(60_000)
    broker.deliver()
    assert len(broker.leaders.received) == 1, "a marker of the earlier term was sent again"


def test_a_leader_that_stays_sends_markers_with_its_new_epoch() -> None:
    broker = TxnHarness().start(epoch=1)
    broker.holds = True
    prepared(broker, T0)
    broker.elect(5)
    broker.deliver()
    assert [marker.coordinator_epoch for marker in broker.leaders.received] == [5]


def test_late_notifications_do_not_undo_newer_ones() -> None:
    broker = TxnHarness().start(epoch=5)
    producer = broker.new_producer()
    broker.resign(4)
    assert broker.add(producer) is NONE
    broker.resign(6)
    broker.elect(5)
    assert broker.add(producer) is ErrorCode.NOT_COORDINATOR


def test_an_append_that_outlives_the_leadership_is_not_applied() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.log.holds = True
    waiting = broker.coordinator.add_partitions(TXN, *producer, [T0])
    broker.resign(1)
    broker.log.holds = False
    broker.elect(2)
    broker.log.release()
    broker.scheduler.run_jobs()
    assert broker.state() is STATES.ONGOING  # the log has it
    assert waiting.value is ErrorCode.NOT_COORDINATOR
    assert broker.txn.pending is None


def test_a_partition_that_cannot_be_read_is_not_coordinated() -> None:
    broker = TxnHarness().start()
    broker.new_producer()
    broker.resign(1)
    broker.log.read_error = ErrorCode.KAFKA_STORAGE_ERROR
    broker.elect(2)
    assert broker.init().error is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("steps", range(6))
def test_kafka_9307_a_load_that_was_cut_off_is_repeated_in_full(steps: int) -> None:
    # A broker that loses its session in the middle of a load leads the partition again in a later epoch.
    config = TransactionConfig(load_buffer_size=1)  # a batch per slice
    broker = TxnHarness(config).start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    broker.holds = True
    broker.commit(producer)
    broker.resign(1)
    broker.coordinator.on_leadership_change([(STATE_PARTITION, 2)], [])
    [load] = broker.scheduler.jobs
    for _ in range(steps):
        next(load, None)
    broker.resign(3)
    assert broker.add(producer) is ErrorCode.NOT_COORDINATOR
    broker.coordinator.on_leadership_change([(STATE_PARTITION, 4)], [])
    assert broker.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.scheduler.run_jobs()  # what is left of the first load, and the second one
    broker.deliver()
    assert broker.state() is STATES.COMPLETE_COMMIT
    assert [marker.coordinator_epoch for marker in broker.leaders.received] == [4]
    assert broker.new_producer() == (producer.producer_id, 1)


def test_kafka_9307_a_load_that_failed_does_not_prevent_the_next_one() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    broker.resign(1)
    broker.log.read_error = ErrorCode.KAFKA_STORAGE_ERROR
    broker.elect(2)
    assert broker.commit(producer) is ErrorCode.NOT_COORDINATOR
    broker.log.read_error = NONE
    broker.elect(3)
    assert broker.commit(producer) is NONE and broker.state() is STATES.COMPLETE_COMMIT


def test_states_are_loaded_as_they_were_written() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0, T1)
    before = broker.txn.value
    after = broker.take_over().txn.value
    assert after.state is STATES.ONGOING and list(after.partitions) == [T0, T1]
    assert after.start_timestamp_ms == before.start_timestamp_ms and after.timeout_ms == before.timeout_ms


def test_a_transaction_that_was_open_before_a_take_over_times_out() -> None:
    broker = TxnHarness().start()
    producer = broker.new_producer()
    broker.add(producer, T0)
    broker = broker.take_over()
    broker.pass_ms(80_000)
    assert broker.state() is STATES.COMPLETE_ABORT


def test_damaged_records_are_skipped() -> None:
    broker = TxnHarness()
    broker.store(TransactionValue(7, 2, STATES.COMPLETE_COMMIT, 1_000))
    broker.log.append(0, broker.log.partitions[0][0].replace(b"txn", b"tx2"), 1_000)
    broker.start()
    assert broker.identity == (7, 2)
