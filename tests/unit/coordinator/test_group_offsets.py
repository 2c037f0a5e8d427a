"""Committing, fetching, expiring and deleting offsets."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from klamm.coordinator.config import GroupConfig
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.membership import MemberIdentity
from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from tests.unit.coordinator.harness import GROUP, START_MS, Harness

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RETENTION_MS = 3_600_000
CHECK_MS = 60_000


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def with_retention() -> Harness:
    config = GroupConfig(
        initial_rebalance_delay_ms=0,
        offsets_retention_ms=RETENTION_MS,
        offsets_retention_check_interval_ms=CHECK_MS,
        max_session_timeout_ms=10 * RETENTION_MS,
    )
    return Harness(config).start()


def errors(harness: Harness, *args: int, **options: object) -> list[ErrorCode]:
    return list(harness.commit(*args, **options).value.values())  # type: ignore[arg-type]


def test_a_simple_consumer_commits_to_a_group_without_members() -> None:
    harness = Harness().start()
    assert errors(harness, 42) == [ErrorCode.NONE]
    assert harness.committed() == 42
    assert harness.committed(T1) is None
    assert harness.committed(group_id="other") is None
    assert harness.state() is GroupState.EMPTY


def test_the_empty_group_id_is_good_enough_for_offsets() -> None:
    harness = Harness().start()
    assert errors(harness, 5, group_id="") == [ErrorCode.NONE]
    assert harness.committed(group_id="") == 5


def test_only_members_commit_to_a_group_that_has_members() -> None:
    harness = Harness().start()
    assert errors(harness, 1, generation_id=3) == [ErrorCode.ILLEGAL_GENERATION], "there is no such group"
    (member,), generation = harness.stable_group()
    assert errors(harness, 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert errors(harness, 1, member_id="who", generation_id=generation) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert errors(harness, 1, member_id=member, generation_id=generation - 1) == [ErrorCode.ILLEGAL_GENERATION]
    assert errors(harness, 1, member_id=member) == [ErrorCode.ILLEGAL_GENERATION]
    assert errors(harness, 1, member_id=member, generation_id=generation) == [ErrorCode.NONE]


@pytest.mark.parametrize(
    "metadata, fits", [("x" * 4096, True), ("x" * 4097, False), ("\N{GRINNING FACE}" * 2049, False)]
)
def test_long_metadata_is_refused(metadata: str, fits: bool) -> None:
    harness = Harness().start()
    assert errors(harness, 1, metadata=metadata) == [ErrorCode.NONE if fits else ErrorCode.OFFSET_METADATA_TOO_LARGE]


def test_long_metadata_is_refused_for_its_partition_alone() -> None:
    harness = Harness().start()
    offsets = {T0: OffsetAndMetadata(1, metadata="x" * 5_000), T1: OffsetAndMetadata(2)}
    result = harness.commit_all(offsets).value
    assert result == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, T1: ErrorCode.NONE}
    assert (harness.committed(T0), harness.committed(T1)) == (None, 2)


@pytest.mark.parametrize(
    "failure, reported",
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_a_commit_that_cannot_be_written(failure: ErrorCode, reported: ErrorCode) -> None:
    harness = Harness().start()
    harness.log.error = failure
    assert errors(harness, 1) == [reported]
    assert harness.committed() is None
    assert not harness.group.offsets.pending


def test_an_offset_that_cannot_be_encoded_does_not_stay_pending() -> None:
    harness = Harness().start()
    harness.commit(1)
    value = OffsetAndMetadata(2, -1, "", 0, expire_timestamp_ms=2**63)
    with pytest.raises(struct.error):
        harness.commit_all({T0: value})
    assert not harness.group.offsets.pending


def test_an_offset_counts_when_the_log_has_it() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.log.holds = True
    commit = harness.commit(2)
    assert not commit.done
    assert harness.committed() == 1
    unstable = harness.coordinator.fetch_offsets(GROUP, [T0], require_stable=True)
    assert isinstance(unstable, dict) and unstable[T0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    harness.commit(3)
    harness.log.release()
    assert commit.value == {T0: ErrorCode.NONE}
    assert harness.committed() == 3


def test_fetching_all_offsets() -> None:
    harness = Harness().start()
    for offset, tp in enumerate((T0, T1, U0)):
        harness.commit(offset, tp=tp, metadata=f"m{offset}")
    fetched = harness.coordinator.fetch_offsets(GROUP, None)
    assert isinstance(fetched, dict)
    assert {tp: f.value and (f.value.offset, f.value.metadata) for tp, f in fetched.items()} == {
        T0: (0, "m0"),
        T1: (1, "m1"),
        U0: (2, "m2"),
    }
    assert harness.coordinator.fetch_offsets("nobody", None) == {}


# --- expiry (KIP-211) ------------------------------------------------------------------------------------------------


def test_offsets_of_a_simple_consumer_expire_after_their_commit() -> None:
    harness = with_retention()
    harness.commit(1)
    harness.pass_ms(RETENTION_MS - CHECK_MS)
    harness.commit(2, tp=T1)
    harness.pass_ms(CHECK_MS)
    assert (harness.committed(T0), harness.committed(T1)) == (None, 2)
    harness.pass_ms(RETENTION_MS)
    assert harness.manager.get(GROUP) is None, "an empty group goes with its last offset"
    assert harness.restart().manager.get(GROUP) is None


def test_offsets_of_a_group_expire_after_it_became_empty() -> None:
    harness = with_retention()
    (member,), generation = harness.stable_group(session_ms=2 * RETENTION_MS)
    harness.commit(1, member_id=member, generation_id=generation)
    harness.pass_ms(2 * RETENTION_MS)
    assert harness.state() is GroupState.EMPTY
    assert harness.committed() == 1
    harness.pass_ms(RETENTION_MS - CHECK_MS)
    assert harness.committed() == 1
    reloaded = harness.restart()
    assert reloaded.committed() == 1
    reloaded.pass_ms(2 * CHECK_MS)
    assert reloaded.manager.get(GROUP) is None, "the time at which it became empty is in the log"


def test_topics_that_a_stable_consumer_group_subscribes_to_do_not_expire() -> None:
    harness = with_retention()
    protocols = [("range", subscription("t"))]
    member = harness.join(version=0, protocols=protocols, session_ms=9 * RETENTION_MS).value.member_id
    harness.sync(member, 1, {member: b""})
    for tp in (T0, U0):
        harness.commit(1, tp=tp, member_id=member, generation_id=1)
    harness.pass_ms(RETENTION_MS + CHECK_MS)
    assert (harness.committed(T0), harness.committed(U0)) == (1, None)


def test_a_group_whose_subscription_cannot_be_read_keeps_its_offsets() -> None:
    harness = with_retention()
    member = harness.join(version=0, protocols=[("range", b"\x00")], session_ms=9 * RETENTION_MS).value.member_id
    harness.sync(member, 1, {member: b""})
    harness.commit(1, member_id=member, generation_id=1)
    harness.pass_ms(2 * RETENTION_MS)
    assert harness.committed() == 1


def test_an_offset_with_its_own_expiry_keeps_to_it() -> None:
    harness = with_retention()
    value = OffsetAndMetadata(1, commit_timestamp_ms=START_MS, expire_timestamp_ms=START_MS + CHECK_MS)
    harness.commit_all({T0: value, T1: replace(value, expire_timestamp_ms=None)})
    harness.pass_ms(CHECK_MS)
    assert (harness.committed(T0), harness.committed(T1)) == (None, 1)


def test_a_group_without_members_is_forgotten() -> None:
    harness = with_retention()
    pending = harness.join(session_ms=CHECK_MS + 1_000).value.member_id
    harness.pass_ms(CHECK_MS)
    assert pending in harness.group.pending_members, "not while a member may still come"
    harness.pass_ms(CHECK_MS)
    assert harness.manager.get(GROUP) is None
    assert harness.log.records(0) == []


def test_expiry_continues_when_the_log_refuses() -> None:
    harness = with_retention()
    harness.commit(1)
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.pass_ms(RETENTION_MS + CHECK_MS)
    assert harness.committed() == 1
    assert harness.state() is GroupState.EMPTY
    harness.log.error = ErrorCode.NONE
    harness.pass_ms(CHECK_MS)
    assert harness.manager.get(GROUP) is None


# --- deletion --------------------------------------------------------------------------------------------------------


def test_deleted_topics_take_their_offsets_along() -> None:
    harness = Harness().start()
    for tp in (T0, T1, U0):
        harness.commit(3, tp=tp)
    harness.commit(4, tp=T0, group_id="other")
    harness.coordinator.on_partitions_deleted([T0, T1])
    harness.scheduler.run_jobs()
    for reload in (False, True):
        now = harness.restart() if reload else harness
        assert (now.committed(T0), now.committed(T1), now.committed(U0)) == (None, None, 3)
        assert now.committed(T0, "other") is None


def test_deleting_offsets_of_an_empty_group() -> None:
    harness = Harness().start()
    delete = harness.delete_offsets
    assert delete([T0]).value is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete([T0], "").value is ErrorCode.INVALID_GROUP_ID
    harness.commit(1)
    harness.commit(2, tp=T1)
    assert delete([T0, U0]).value == {T0: ErrorCode.NONE, U0: ErrorCode.NONE}
    reloaded = harness.restart()
    assert (reloaded.committed(T0), reloaded.committed(T1)) == (None, 2)


def test_an_empty_group_that_loses_its_last_offset_is_gone() -> None:
    harness = Harness().start()
    member = harness.join(version=0).value.member_id
    harness.sync(member, 1, {member: b""})
    harness.commit(1, member_id=member, generation_id=1)
    harness.commit(2, tp=T1, member_id=member, generation_id=1)
    assert harness.coordinator.leave_group(GROUP, [MemberIdentity(member, None)])[0] is ErrorCode.NONE
    delete = harness.delete_offsets
    assert delete([T0]).value == {T0: ErrorCode.NONE}
    assert harness.manager.get(GROUP) is not None
    assert delete([T1, U0]).value == {T1: ErrorCode.NONE, U0: ErrorCode.NONE}
    for reload in (False, True):
        now = harness.restart() if reload else harness
        assert now.manager.get(GROUP) is None
        assert now.delete_offsets([T0]).value is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_stays_if_the_tombstones_of_its_offsets_cannot_be_written() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.delete_offsets([T0]).value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    harness.log.error = ErrorCode.NONE
    assert harness.committed() == 1
    assert harness.delete_offsets([T0]).value == {T0: ErrorCode.NONE}
    assert harness.manager.get(GROUP) is None


def test_deleting_offsets_of_subscribed_topics_is_refused() -> None:
    harness = Harness().start()
    member = harness.join(version=0, protocols=[("range", subscription("t"))]).value.member_id
    harness.sync(member, 1, {member: b""})
    for tp in (T0, U0):
        harness.commit(1, tp=tp, member_id=member, generation_id=1)
    result = harness.delete_offsets([T0, U0]).value
    assert result == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, U0: ErrorCode.NONE}
    assert (harness.committed(T0), harness.committed(U0)) == (1, None)


def test_deleting_offsets_of_another_protocol_type_needs_an_empty_group() -> None:
    harness = Harness().start()
    harness.join(version=0, protocol_type="connect")
    assert harness.delete_offsets([T0]).value is ErrorCode.NON_EMPTY_GROUP


def test_a_commit_after_the_tombstone_stays() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.log.holds = True
    deleted = harness.delete_offsets([T0])
    harness.commit(2)
    harness.log.release()
    assert deleted.value == {T0: ErrorCode.NONE}
    assert harness.committed() == 2
    assert harness.restart().committed() == 2


def test_many_offsets_are_deleted_in_batches() -> None:
    harness = Harness().start()
    offsets = {TopicPartition("t", i): OffsetAndMetadata(i, commit_timestamp_ms=START_MS) for i in range(4_500)}
    committed = harness.commit_all(offsets)
    harness.scheduler.run_jobs()
    assert set(committed.value.values()) == {ErrorCode.NONE}
    before = len(harness.log.partitions[0])
    assert harness.coordinator.delete_groups([GROUP]).value == {GROUP: ErrorCode.NONE}
    assert len(harness.log.partitions[0]) - before == 3
    assert harness.restart().manager.get(GROUP) is None


def test_a_coordinator_that_may_have_a_successor_does_not_report_stable_offsets() -> None:
    """After a pause it would answer with old offsets, and a transaction would copy records again."""
    harness = Harness().start()
    harness.log.is_doubtful = True
    assert harness.coordinator.fetch_offsets(GROUP, [T0], require_stable=True) is ErrorCode.NOT_COORDINATOR
    assert isinstance(harness.coordinator.fetch_offsets(GROUP, [T0]), dict)
    harness.log.is_doubtful = False
    assert isinstance(harness.coordinator.fetch_offsets(GROUP, [T0], require_stable=True), dict)
