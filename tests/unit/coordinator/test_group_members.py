"""SyncGroup, Heartbeat, LeaveGroup and sessions."""

from __future__ import annotations

import pytest

from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.membership import MemberIdentity
from klamm.errors import ErrorCode
from klamm.metrics import Meter
from tests.unit.coordinator.harness import GROUP, Harness


def completing_group(size: int = 2) -> tuple[Harness, list[str], int]:
    """A group that waits for its leader's assignment."""
    harness = Harness().start()
    ids, _ = harness.stable_group(size)
    for member_id in ids[1:]:
        harness.join(member_id, protocols=[("range", b"changed")])
    harness.join(ids[0], protocols=[("range", b"changed")])
    assert harness.state() is GroupState.COMPLETING_REBALANCE
    return harness, ids, harness.group.generation_id


def test_every_member_gets_its_part_once_the_leader_has_sent_it() -> None:
    harness, (leader, follower), generation = completing_group()
    waiting = harness.sync(follower, generation)
    assert not waiting.done
    own = harness.sync(leader, generation, {leader: b"one", follower: b"two"})
    assert (own.value.assignment, waiting.value.assignment) == (b"one", b"two")
    assert (own.value.protocol_type, own.value.protocol_name) == ("consumer", "range")
    assert harness.state() is GroupState.STABLE
    assert harness.sync(follower, generation).value.assignment == b"two"


def test_members_that_the_leader_forgot_get_nothing_and_strangers_are_ignored() -> None:
    harness, (leader, follower), generation = completing_group()
    harness.sync(leader, generation, {leader: b"all", "stranger": b"x"})
    assert harness.sync(follower, generation).value.assignment == b""


def test_the_answer_waits_for_the_log() -> None:
    harness, (leader, follower), generation = completing_group()
    harness.log.holds = True
    waiting = [harness.sync(follower, generation), harness.sync(leader, generation, {leader: b"1", follower: b"2"})]
    assert not any(sync.done for sync in waiting)
    again = harness.sync(leader, generation, {leader: b"other", follower: b"other"})
    assert waiting[1].value.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(harness.log.held) == 1, "a second assignment of the same generation is not written"
    harness.log.release()
    assert (waiting[0].value.assignment, again.value.assignment) == (b"2", b"1")


@pytest.mark.parametrize(
    "failure, reported",
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_written_ends_in_another_rebalance(
    failure: ErrorCode, reported: ErrorCode
) -> None:
    harness, (leader, follower), generation = completing_group()
    harness.log.error = failure
    waiting = harness.sync(follower, generation)
    assert harness.sync(leader, generation, {leader: b"1"}).value.error is reported
    assert waiting.value.error is reported
    assert harness.state() is GroupState.PREPARING_REBALANCE


def test_a_rebalance_that_begins_during_the_write_wins() -> None:
    harness, (leader, follower), generation = completing_group()
    harness.log.holds = True
    own = harness.sync(leader, generation, {leader: b"1", follower: b"2"})
    harness.join(version=0)
    assert own.value.error is ErrorCode.REBALANCE_IN_PROGRESS
    harness.log.release()
    assert harness.state() is GroupState.PREPARING_REBALANCE
    assert all(member.assignment == b"" for member in harness.group.members.values())


def test_sync_checks_member_generation_and_protocol() -> None:
    harness, (leader, _), generation = completing_group()
    assert harness.sync("who", generation).value.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.sync(leader, generation - 1).value.error is ErrorCode.ILLEGAL_GENERATION
    wrong_type = harness.sync(leader, generation, protocol_type="connect", protocol_name="range")
    assert wrong_type.value.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong_name = harness.sync(leader, generation, protocol_type="consumer", protocol_name="sticky")
    assert wrong_name.value.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not harness.sync(leader, generation, protocol_type="consumer", protocol_name="range").value.error


def test_a_rebalance_is_counted_once_and_only_if_it_completes() -> None:
    it, (leader, *_), generation = completing_group()
    name = ("kafka.server", "group-coordinator-metrics", "group-completed-rebalance-count")
    meter = it.registry.find(*name)
    assert isinstance(meter, Meter)
    before = meter.count
    it.log.holds = True
    assert it.sync(leader, generation + 1).value.error is ErrorCode.ILLEGAL_GENERATION
    assert meter.count == before
    it.sync(leader, generation)
    it.sync(leader, generation)
    assert meter.count == before + 1


def test_sync_of_an_unknown_group_and_during_a_rebalance() -> None:
    harness = Harness().start()
    assert harness.sync("m", 1).value.error is ErrorCode.UNKNOWN_MEMBER_ID
    (member,), generation = harness.stable_group()
    harness.join(version=0)
    assert harness.sync(member, generation).value.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeats_in_every_state() -> None:
    harness = Harness().start()
    assert harness.heartbeat("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    member = harness.join(version=0).value.member_id
    assert harness.heartbeat(member, 1) is ErrorCode.NONE, "CompletingRebalance"
    harness.sync(member, 1, {member: b""})
    assert harness.heartbeat(member, 1) is ErrorCode.NONE, "Stable"
    assert harness.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert harness.heartbeat("who", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    harness.join(version=0)
    assert harness.heartbeat(member, 1) is ErrorCode.REBALANCE_IN_PROGRESS, "PreparingRebalance"
    assert harness.coordinator.heartbeat("", member, 1) is ErrorCode.INVALID_GROUP_ID


def test_a_silent_member_is_out_after_its_session_timeout() -> None:
    harness = Harness().start()
    (leader, follower), generation = harness.stable_group(2, session_ms=10_000)
    harness.pass_ms(9_999)
    assert harness.heartbeat(follower, generation) is ErrorCode.NONE
    assert harness.state() is GroupState.STABLE
    harness.pass_ms(1)
    assert harness.state() is GroupState.PREPARING_REBALANCE
    assert list(harness.group.members) == [follower]
    assert harness.join(follower).value.leader == follower
    assert harness.heartbeat(leader, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_are_all_gone_is_empty() -> None:
    harness = Harness().start()
    _, generation = harness.stable_group(3)
    harness.pass_ms(10_000)
    assert harness.state() is GroupState.EMPTY
    assert harness.group.protocol_name is None
    assert harness.group.generation_id == generation + 1
    assert harness.restart().state() is GroupState.EMPTY


def test_members_that_wait_for_an_answer_are_not_expired() -> None:
    harness, (leader, follower), generation = completing_group()
    waiting = harness.sync(follower, generation)
    for _ in range(5):
        harness.pass_ms(9_000)
        assert harness.heartbeat(leader, generation) is ErrorCode.NONE
    assert not waiting.done and follower in harness.group.members


def test_members_that_never_sync_are_out_at_the_rebalance_timeout() -> None:
    harness, (leader, follower), generation = completing_group()
    harness.sync(leader, generation, {leader: b"", follower: b""})
    assert harness.state() is GroupState.STABLE
    for _ in range(7):
        harness.pass_ms(9_000)
        harness.heartbeat(leader, generation)
        harness.heartbeat(follower, generation)
    assert list(harness.group.members) == [leader]
    assert harness.state() is GroupState.PREPARING_REBALANCE


def test_leaving() -> None:
    harness = Harness().start()
    (leader, follower), generation = harness.stable_group(2)
    leave = harness.coordinator.leave_group
    error, left = leave(GROUP, [MemberIdentity(leader), MemberIdentity("who")])
    assert error is ErrorCode.NONE
    assert [member.error for member in left] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert harness.heartbeat(follower, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    leave(GROUP, [MemberIdentity(follower)])
    assert harness.state() is GroupState.EMPTY
    assert leave("unknown", [MemberIdentity("m")])[1][0].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert leave("", [MemberIdentity("m")]) == (ErrorCode.INVALID_GROUP_ID, ())


def test_leaving_while_waiting_answers_the_wait() -> None:
    harness, (_, follower), generation = completing_group()
    waiting = harness.sync(follower, generation)
    harness.coordinator.leave_group(GROUP, [MemberIdentity(follower)])
    assert waiting.value.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_cooperative_members_keep_committing_while_the_others_join() -> None:
    harness = Harness().start()
    (member,), generation = harness.stable_group()
    harness.join(version=0)
    assert harness.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    commit = harness.commit(7, member_id=member, generation_id=generation)
    assert list(commit.value.values()) == [ErrorCode.NONE]
    again = harness.join(member).value
    second = harness.commit(8, member_id=member, generation_id=again.generation_id)
    assert list(second.value.values()) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert harness.committed() == 7


def test_a_session_is_prolonged_by_commits_too() -> None:
    harness = Harness().start()
    (member,), generation = harness.stable_group(session_ms=10_000)
    for offset in range(5):
        harness.pass_ms(8_000)
        harness.commit(offset, member_id=member, generation_id=generation)
    assert member in harness.group.members


def test_unloading_answers_all_members() -> None:
    harness, (leader, follower), generation = completing_group()
    sync = harness.sync(follower, generation)
    harness.manager.on_resignation(0, 1)
    assert sync.value.error is ErrorCode.NOT_COORDINATOR
    assert harness.heartbeat(leader, generation) is ErrorCode.NOT_COORDINATOR
    harness.manager.on_election(0, 2)
    harness.scheduler.run_jobs()
    join = harness.join(version=0)
    harness.manager.on_resignation(0, 3)
    assert join.value.error is ErrorCode.NOT_COORDINATOR


def test_after_shutdown_there_is_no_coordinator() -> None:
    harness = Harness().start()
    (member,), generation = harness.stable_group()
    join = harness.join(version=0)
    harness.coordinator.shutdown()
    assert join.value.error is ErrorCode.NOT_COORDINATOR
    assert harness.heartbeat(member, generation) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.coordinator.list_groups() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
