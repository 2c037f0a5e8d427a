"""Offsets that producers commit in transactions: fencing, markers, loading, deletion."""

from __future__ import annotations

import pytest

from klamm.coordinator.config import GroupConfig
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.membership import MemberIdentity
from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.coordinator.offsets_log import GIVEN_UP, Appended, TransactionalProducer
from klamm.coordinator.transactional_offsets import OFFSETS_PER_SLICE
from klamm.errors import ErrorCode
from klamm.model import TopicPartition, TransactionVersion
from klamm.protocol.record_batch import batches
from tests.unit.coordinator.harness import GROUP, Harness, MemoryOffsetsLog

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
RETENTION_MS = 600_000
CHECK_MS = 60_000


def with_retention() -> Harness:
    config = GroupConfig(
        initial_rebalance_delay_ms=0,
        offsets_retention_ms=RETENTION_MS,
        offsets_retention_check_interval_ms=CHECK_MS,
    )
    return Harness(config).start()


# --- a transaction ---------------------------------------------------------------------------------------------------


def test_offsets_count_when_their_transaction_is_committed() -> None:
    harness = Harness().start()
    harness.commit(1)
    assert harness.commit_in_transaction(5).value == {T0: ErrorCode.NONE}
    assert (harness.committed(), harness.is_unstable()) == (1, True)
    harness.end_transaction(commit=True)
    assert (harness.committed(), harness.is_unstable()) == (5, False)


def test_offsets_of_an_aborted_transaction_are_dropped() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.commit_in_transaction(5)
    harness.end_transaction(commit=False)
    assert (harness.committed(), harness.is_unstable()) == (1, False)


def test_the_batch_names_its_producer() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5, 7)
    (stored,) = harness.log.partitions[0]
    (batch,) = batches(stored)
    assert batch.is_transactional and not batch.is_control
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, 0)


def test_the_last_offset_of_a_transaction_wins() -> None:
    harness = Harness().start()
    for offset in (5, 9, 2):
        harness.commit_in_transaction(offset)
    harness.end_transaction(commit=True)
    assert harness.committed() == 2


def test_the_later_record_wins_against_a_plain_commit() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5)
    harness.commit(6)
    harness.end_transaction(commit=True)
    assert harness.committed() == 6
    assert harness.restart().committed() == 6


def test_transactions_of_several_producers_are_apart() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5, 7)
    harness.commit_in_transaction(6, 8)
    harness.end_transaction(8, commit=True)
    assert (harness.committed(), harness.is_unstable()) == (6, True)
    harness.end_transaction(7, commit=True)
    assert (harness.committed(), harness.is_unstable()) == (6, False), "the record of 7 is the earlier one"


def test_a_marker_ends_the_offsets_of_all_groups_of_its_partition() -> None:
    harness = Harness(partition_count=3).start()
    names = [f"group-{i}" for i in range(30)]
    for name in names:
        harness.commit_in_transaction(5, group_id=name)
    partition = harness.manager.partition_for(names[0])
    harness.end_transaction(commit=True, partition=partition)
    for name in names:
        expected = 5 if harness.manager.partition_for(name) == partition else None
        assert harness.committed(group_id=name) == expected


def test_a_marker_of_a_producer_without_offsets_changes_nothing() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5, 7)
    harness.end_transaction(8, commit=True)
    harness.coordinator.on_transaction_completed(7, {44: 1}, commit=True)
    assert (harness.committed(), harness.is_unstable()) == (None, True)


def test_nothing_stays_when_transactions_end() -> None:
    harness = Harness().start()
    for producer_id in range(20):
        harness.commit_in_transaction(5, producer_id, metadata="m" * 10)
        harness.end_transaction(producer_id, commit=producer_id % 2 == 0)
    (partition,) = harness.manager._partitions.values()
    assert not partition.open_transactions
    assert not harness.group.offsets.transactional
    assert harness.group.offsets.metadata_bytes == 10


# --- acknowledgements in another order -------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_that_is_acknowledged_before_its_offsets(commit: bool) -> None:
    harness = Harness().start()
    harness.log.holds = True
    answer = harness.commit_in_transaction(5)
    (record,) = harness.log.held
    harness.log.held = []
    harness.end_transaction(commit=commit)
    harness.log.release()
    assert (harness.committed(), harness.is_unstable()) == (None, True), "the replicas may not have it"
    record[0].complete(record[1])
    assert answer.value == {T0: ErrorCode.NONE}
    assert (harness.committed(), harness.is_unstable()) == (5 if commit else None, False)
    (partition,) = harness.manager._partitions.values()
    assert not partition.open_transactions


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_offsets_that_lie_behind_a_marker_belong_to_the_next_transaction(is_acknowledged: bool) -> None:
    """The marker was written twice, because its first answer was lost, and the second one is reported late."""
    harness = Harness().start()
    harness.commit_in_transaction(5)
    harness.end_transaction(commit=True)
    harness.log.holds = True
    harness.end_transaction(commit=True)
    marker, harness.log.held = harness.log.held, []
    harness.commit_in_transaction(6)
    records, harness.log.held = harness.log.held, []
    for deferred, appended in [*records, *marker] if is_acknowledged else [*marker, *records]:
        deferred.complete(appended)
    assert (harness.committed(), harness.is_unstable()) == (5, True)
    harness.log.holds = False
    harness.end_transaction(commit=True)
    assert (harness.committed(), harness.is_unstable()) == (6, False)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_that_the_log_has_stay_pending_although_the_append_failed(commit: bool) -> None:
    """The producer may retry or abort; the records are there and the marker decides about them."""
    harness = Harness().start()
    harness.log.holds = True
    answer = harness.commit_in_transaction(5)
    ((deferred, appended),) = harness.log.held
    harness.log.held, harness.log.holds = [], False
    deferred.complete(Appended(ErrorCode.REQUEST_TIMED_OUT, appended.base_offset))
    assert answer.value == {T0: ErrorCode.REQUEST_TIMED_OUT}
    assert harness.is_unstable()
    harness.end_transaction(commit=commit)
    expected = 5 if commit else None
    assert (harness.committed(), harness.restart().committed()) == (expected, expected)


def test_offsets_that_the_log_refused_are_dropped() -> None:
    harness = Harness().start()
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.commit_in_transaction(5).value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert not harness.is_unstable()
    (partition,) = harness.manager._partitions.values()
    assert not partition.open_transactions


def test_large_transactions_are_written_and_ended_in_slices() -> None:
    harness = Harness().start()
    count = 3 * OFFSETS_PER_SLICE
    offsets = {TopicPartition("big", i): OffsetAndMetadata(i) for i in range(count)}
    producer = TransactionalProducer("tx", 7, 0, TransactionVersion.TV_0)
    steps = harness.coordinator.commit_offsets_in_transaction(GROUP, MemberIdentity(""), -1, producer, offsets)
    answer = _run(steps)
    assert not answer.done
    harness.scheduler.run_jobs()
    assert set(answer.value.values()) == {ErrorCode.NONE}
    marker = harness.log.append_marker(7, commit=True, partition=0).value
    ended = harness.coordinator.on_transaction_completed(7, {0: marker.base_offset}, commit=True)
    last = TopicPartition("big", count - 1)
    ends: list[None] = []
    ended.then(ends.append)
    assert harness.is_unstable(last) and not ends, "its turn has not come"
    harness.scheduler.run_jobs()
    assert ends == [None]
    assert (harness.committed(last), harness.is_unstable(last)) == (count - 1, False)


def test_a_broker_that_stops_answers_markers_whose_offsets_are_being_committed() -> None:
    harness = Harness().start()
    offsets = {TopicPartition("big", i): OffsetAndMetadata(i) for i in range(2 * OFFSETS_PER_SLICE)}
    producer = TransactionalProducer("tx", 7, 0, TransactionVersion.TV_0)
    _run(harness.coordinator.commit_offsets_in_transaction(GROUP, MemberIdentity(""), -1, producer, offsets))
    harness.scheduler.run_jobs()
    marker = harness.log.append_marker(7, commit=True, partition=0).value
    ends: list[None] = []
    harness.coordinator.on_transaction_completed(7, {0: marker.base_offset}, commit=True).then(ends.append)
    assert not ends
    harness.coordinator.shutdown()
    assert ends == [None]


def _run(steps: object) -> Deferred[dict[TopicPartition, ErrorCode]]:
    assert hasattr(steps, "send")
    while True:
        try:
            next(steps)  # type: ignore[call-overload]
        except StopIteration as end:
            answer: Deferred[dict[TopicPartition, ErrorCode]] = end.value
            return answer


# --- refused ---------------------------------------------------------------------------------------------------------


def test_a_producer_that_acts_for_a_member_is_fenced_with_it() -> None:
    harness = Harness().start()
    (member,), generation = harness.stable_group()
    fenced = [
        (harness.commit_in_transaction(1, member_id="other", generation_id=generation), ErrorCode.UNKNOWN_MEMBER_ID),
        (
            harness.commit_in_transaction(1, member_id=member, generation_id=generation - 1),
            ErrorCode.ILLEGAL_GENERATION,
        ),
        (harness.commit_in_transaction(1, member_id=member, generation_id=-1), ErrorCode.ILLEGAL_GENERATION),
        (harness.commit_in_transaction(1, generation_id=generation), ErrorCode.UNKNOWN_MEMBER_ID),
        (harness.commit_in_transaction(1, member_id=member, instance="i"), ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert [answer.value[T0] for answer, _ in fenced] == [error for _, error in fenced]
    assert not harness.is_unstable()
    assert harness.commit_in_transaction(1, member_id=member, generation_id=generation).value == {T0: ErrorCode.NONE}


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    harness = Harness().start()
    first = harness.join(instance="i").value
    harness.sync(first.member_id, first.generation_id, {first.member_id: b""}, instance="i")
    second = harness.join(instance="i").value
    old = harness.commit_in_transaction(1, member_id=first.member_id, instance="i", generation_id=first.generation_id)
    assert old.value == {T0: ErrorCode.FENCED_INSTANCE_ID}
    new = harness.commit_in_transaction(
        1, member_id=second.member_id, instance="i", generation_id=harness.group.generation_id
    )
    assert new.value == {T0: ErrorCode.NONE}


def test_a_producer_without_a_member_is_accepted_in_any_state() -> None:
    """Versions 0 to 2 know no member; the transactional id fences such a producer."""
    harness = Harness().start()
    harness.stable_group()
    assert harness.commit_in_transaction(1).value == {T0: ErrorCode.NONE}


def test_members_may_commit_while_the_group_awaits_its_assignment() -> None:
    harness = Harness().start()
    member = harness.join(version=0).value
    assert harness.state() is GroupState.COMPLETING_REBALANCE
    answer = harness.commit_in_transaction(1, member_id=member.member_id, generation_id=member.generation_id)
    assert answer.value == {T0: ErrorCode.NONE}


def test_a_refused_producer_creates_no_group() -> None:
    harness = Harness().start()
    assert harness.commit_in_transaction(1, member_id="m", generation_id=1).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    harness.log.verification = ErrorCode.INVALID_TXN_STATE
    harness.commit_in_transaction(1)
    assert harness.manager.get(GROUP) is None


def test_requests_at_the_wrong_place() -> None:
    harness = Harness().start()
    assert harness.commit_in_transaction(1, group_id="").value == {T0: ErrorCode.INVALID_GROUP_ID}
    harness.manager.on_resignation(0, 1)
    assert harness.commit_in_transaction(1).value == {T0: ErrorCode.NOT_COORDINATOR}
    harness.manager.on_election(0, 2)
    assert harness.commit_in_transaction(1).value == {T0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    harness.coordinator.shutdown()
    assert harness.commit_in_transaction(1).value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}


@pytest.mark.parametrize(
    ("verification", "answer"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NETWORK_EXCEPTION),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_transaction_that_is_not_verified(verification: ErrorCode, answer: ErrorCode) -> None:
    harness = Harness().start()
    harness.log.verification = verification
    assert harness.commit_in_transaction(1).value == {T0: answer}
    assert not harness.log.partitions
    assert not harness.is_unstable()


def test_metadata_that_is_too_long_is_refused_for_its_partition() -> None:
    harness = Harness(GroupConfig(initial_rebalance_delay_ms=0, offset_metadata_max_bytes=3)).start()
    assert harness.commit_in_transaction(1, metadata="four").value == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert not harness.log.partitions


def test_the_generation_is_that_of_the_moment_of_the_append() -> None:
    """A rebalance that happens while the transaction is verified fences the producer."""
    harness = Harness().start()
    (member,), generation = harness.stable_group()
    written = len(harness.log.partitions[0])
    harness.log.holds_verification = True
    answer = harness.commit_in_transaction(1, member_id=member, generation_id=generation)
    assert not answer.done and not harness.is_unstable()
    harness.join(member, protocols=[("range", b"other")])
    harness.log.verify()
    assert answer.value == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert len(harness.log.partitions[0]) == written


def test_a_partition_that_moved_during_the_verification() -> None:
    harness = Harness().start()
    harness.log.holds_verification = True
    moved = harness.commit_in_transaction(1)
    harness.manager.on_resignation(0, 1)
    harness.log.verify()
    assert moved.value == {T0: ErrorCode.NOT_COORDINATOR}
    assert not harness.log.partitions
    harness.manager.on_election(0, 2)
    harness.scheduler.run_jobs()
    returned = harness.commit_in_transaction(2)
    harness.manager.on_resignation(0, 3)
    harness.manager.on_election(0, 4)
    harness.scheduler.run_jobs()
    harness.log.verify()
    assert returned.value == {T0: ErrorCode.NONE}
    assert harness.is_unstable(), "the group that was loaded meanwhile knows of it"
    harness.end_transaction(commit=True)
    assert harness.committed() == 2


def test_a_request_from_before_the_election_is_late() -> None:
    """It may belong to a transaction that ended at another broker; only the epochs of version 2 would show it."""
    harness = Harness().start()
    harness.last_connection = 8
    harness.manager.on_resignation(0, 1)
    harness.manager.on_election(0, 2)
    harness.scheduler.run_jobs()
    assert harness.commit_in_transaction(1, connection=8).value == {T0: GIVEN_UP}
    assert not harness.log.partitions and not harness.is_unstable()
    assert harness.commit_in_transaction(1, connection=9).value == {T0: ErrorCode.NONE}
    newer = harness.commit_in_transaction(1, connection=8, version=TransactionVersion.TV_2)
    assert newer.value == {T0: ErrorCode.NONE}


# --- loading ---------------------------------------------------------------------------------------------------------


def test_an_open_transaction_survives_a_failover() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.commit_in_transaction(5)
    harness.commit_in_transaction(6, tp=T1, group_id="only-pending")
    loaded = harness.restart()
    assert (loaded.committed(), loaded.is_unstable()) == (1, True)
    assert loaded.is_unstable(T1, "only-pending"), "a group that has only pending offsets is loaded"
    loaded.end_transaction(commit=True)
    assert (loaded.committed(), loaded.committed(T1, "only-pending")) == (5, 6)
    again = loaded.restart()
    assert (again.committed(), again.committed(T1, "only-pending")) == (5, 6)


def test_a_marker_that_is_written_while_the_partition_is_loaded() -> None:
    log = MemoryOffsetsLog()
    harness = Harness(log=log).start()
    for i in range(500):
        harness.commit(i, group_id=f"group-{i}", metadata="x" * 1_000)
    harness.commit_in_transaction(5)
    harness.manager.on_resignation(0, 1)
    harness.manager.on_election(0, 2)
    (job,) = harness.scheduler.jobs
    next(job)
    next(job)
    harness.end_transaction(commit=True)
    harness.scheduler.run_jobs()
    assert (harness.committed(), harness.is_unstable()) == (5, False)


def test_the_end_of_a_large_transaction_is_loaded_in_slices() -> None:
    harness = Harness().start()
    producer = TransactionalProducer("tx", 7, 0, TransactionVersion.TV_0)
    offsets = {TopicPartition("big", i): OffsetAndMetadata(i) for i in range(4 * OFFSETS_PER_SLICE)}
    _run(harness.coordinator.commit_offsets_in_transaction(GROUP, MemberIdentity(""), -1, producer, offsets))
    harness.scheduler.run_jobs()
    harness.manager.on_resignation(0, 1)
    harness.manager.on_election(0, 2)
    (job,) = harness.scheduler.jobs
    without_end = sum(1 for _ in job)
    harness.end_transaction(commit=True)
    harness.scheduler.run_jobs()
    harness.manager.on_resignation(0, 3)
    harness.manager.on_election(0, 4)
    job = harness.scheduler.jobs[-1]
    assert sum(1 for _ in job) >= without_end + 4
    assert harness.committed(TopicPartition("big", 3_999)) == 3_999


# --- deletion and expiry ---------------------------------------------------------------------------------------------


def test_a_deleted_group_loses_its_pending_offsets_for_good() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.commit_in_transaction(5)
    harness.commit_in_transaction(6, tp=T1)
    assert harness.coordinator.delete_groups([GROUP]).value == {GROUP: ErrorCode.NONE}
    harness.end_transaction(commit=True)
    assert harness.manager.get(GROUP) is None
    assert harness.restart().manager.get(GROUP) is None


def test_a_group_may_be_used_again_after_its_deletion() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5)
    harness.coordinator.delete_groups([GROUP])
    harness.commit_in_transaction(6, tp=T1)
    harness.end_transaction(commit=True)
    assert (harness.committed(), harness.committed(T1)) == (None, 6)
    loaded = harness.restart()
    assert (loaded.committed(), loaded.committed(T1)) == (None, 6)


def test_a_group_whose_deletion_failed_keeps_its_pending_offsets() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5)
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.coordinator.delete_groups([GROUP]).value == {GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    harness.log.error = ErrorCode.NONE
    harness.end_transaction(commit=True)
    assert harness.committed() == 5


def test_a_group_that_is_being_deleted_accepts_no_offsets() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.log.holds = True
    harness.coordinator.delete_groups([GROUP])
    assert harness.commit_in_transaction(5).value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_deleted_offsets_do_not_return_with_the_commit() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5)
    harness.commit_in_transaction(6, tp=T1)
    assert harness.delete_offsets([T0]).value == {T0: ErrorCode.NONE}
    assert (harness.is_unstable(), harness.is_unstable(T1)) == (False, True)
    harness.end_transaction(commit=True)
    loaded = harness.restart()
    assert (loaded.committed(), loaded.committed(T1)) == (None, 6)


def test_a_tombstone_that_is_acknowledged_before_the_offset_that_it_deletes() -> None:
    harness = Harness().start()
    harness.commit(1, tp=T1)
    harness.log.holds = True
    harness.commit_in_transaction(5)
    held, harness.log.held = harness.log.held, []
    harness.delete_offsets([T0])
    harness.log.release()
    for deferred, appended in held:
        deferred.complete(appended)
    harness.log.holds = False
    assert not harness.is_unstable()
    harness.end_transaction(commit=True)
    assert harness.committed() is None


def test_offsets_do_not_expire_while_a_transaction_may_change_them() -> None:
    harness = with_retention()
    harness.commit(1)
    harness.commit_in_transaction(5)
    harness.pass_ms(2 * RETENTION_MS)
    assert (harness.committed(), harness.is_unstable()) == (1, True)
    harness.end_transaction(commit=True)
    assert harness.committed() == 5
    harness.pass_ms(2 * RETENTION_MS)
    assert harness.manager.get(GROUP) is None


def test_a_group_with_nothing_but_pending_offsets_does_not_expire() -> None:
    harness = with_retention()
    harness.commit_in_transaction(5)
    harness.pass_ms(2 * RETENTION_MS)
    assert harness.is_unstable()
    harness.end_transaction(commit=False)
    harness.pass_ms(2 * CHECK_MS)
    assert harness.manager.get(GROUP) is None


def test_a_deleted_topic_takes_its_pending_offsets_along() -> None:
    harness = Harness().start()
    harness.commit_in_transaction(5)
    harness.commit_in_transaction(6, tp=T1)
    harness.coordinator.on_partitions_deleted([T0])
    harness.scheduler.run_jobs()
    assert (harness.is_unstable(), harness.is_unstable(T1)) == (False, True)
