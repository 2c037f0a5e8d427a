"""Static membership (KIP-345): members that keep their place across a restart."""

from __future__ import annotations

from klamm.coordinator.config import GroupConfig
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.membership import MemberIdentity
from klamm.errors import ErrorCode
from tests.unit.coordinator.harness import GROUP, Harness


def static_group() -> tuple[Harness, str, str, int]:
    """A stable group of the instances `a` (the leader) and `b`."""
    harness = Harness(GroupConfig(initial_rebalance_delay_ms=1_000)).start()
    joins = [harness.join(instance=instance) for instance in "ab"]
    harness.pass_ms(2_000)
    leader, follower = (join.value.member_id for join in joins)
    harness.sync(leader, 1, {leader: b"A", follower: b"B"}, instance="a")
    harness.sync(follower, 1, instance="b")
    assert harness.state() is GroupState.STABLE
    return harness, leader, follower, 1


def test_a_returning_member_keeps_its_assignment_without_a_rebalance() -> None:
    harness, leader, follower, generation = static_group()
    back = harness.join(instance="b").value
    assert (back.error, back.generation_id, back.leader) == (ErrorCode.NONE, generation, leader)
    assert back.member_id != follower and not back.skip_assignment
    assert harness.state() is GroupState.STABLE
    assert harness.sync(back.member_id, generation, instance="b").value.assignment == b"B"
    assert harness.heartbeat(leader, generation) is ErrorCode.NONE


def test_a_returning_leader_skips_the_assignment_from_v9_on() -> None:
    harness, leader, _, generation = static_group()
    back = harness.join(instance="a", version=9).value
    assert back.leader == back.member_id != leader
    assert back.skip_assignment
    assert len(back.members) == 2
    assert harness.sync(back.member_id, generation, {}, instance="a").value.assignment == b"A"


def test_a_returning_leader_is_shown_its_old_id_before_v9() -> None:
    harness, leader, _, _ = static_group()
    back = harness.join(instance="a", version=5).value
    assert back.leader == leader != back.member_id
    assert back.members == () and not back.skip_assignment
    assert harness.group.leader_id == back.member_id


def test_the_replaced_member_is_fenced_everywhere() -> None:
    harness, _, old, generation = static_group()
    harness.join(instance="b")
    assert harness.join(old, instance="b").value.error is ErrorCode.FENCED_INSTANCE_ID
    assert harness.sync(old, generation, instance="b").value.error is ErrorCode.FENCED_INSTANCE_ID
    assert harness.heartbeat(old, generation, "b") is ErrorCode.FENCED_INSTANCE_ID
    commit = harness.commit(1, member_id=old, generation_id=generation, instance="b")
    assert list(commit.value.values()) == [ErrorCode.FENCED_INSTANCE_ID]
    _, left = harness.coordinator.leave_group(GROUP, [MemberIdentity(old, "b")])
    assert left[0].error is ErrorCode.FENCED_INSTANCE_ID


def test_an_unknown_instance_id_is_an_unknown_member() -> None:
    harness, leader, _, generation = static_group()
    assert harness.heartbeat(leader, generation, "z") is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join(leader, instance="z").value.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_waiting_requests_of_the_old_member_are_fenced() -> None:
    harness, _, follower, _ = static_group()
    harness.join(instance="c")
    waiting = harness.join(follower, instance="b")
    assert not waiting.done
    harness.join(instance="b")
    assert waiting.value.error is ErrorCode.FENCED_INSTANCE_ID


def test_the_new_id_is_in_the_log() -> None:
    harness, _, _, generation = static_group()
    back = harness.join(instance="b").value
    reloaded = harness.restart()
    assert back.member_id in reloaded.group.members
    assert reloaded.group.static_members["b"] == back.member_id
    assert reloaded.sync(back.member_id, generation, instance="b").value.assignment == b"B"


def test_a_return_that_cannot_be_written_is_undone() -> None:
    harness, _, follower, generation = static_group()
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    back = harness.join(instance="b", protocols=[("range", b"changed")]).value
    assert back.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.group.members[follower].protocols == (("range", b"m"),)
    assert harness.heartbeat(follower, generation, "b") is ErrorCode.NONE


def test_a_rebalance_during_the_write_answers_the_returning_member() -> None:
    harness, leader, _, generation = static_group()
    harness.log.holds = True
    back = harness.join(instance="b")
    newcomer = harness.join(instance="c")
    harness.log.release()
    assert not back.done and not newcomer.done
    harness.join(leader, instance="a")
    assert back.value.generation_id == newcomer.value.generation_id == generation + 1


def test_a_return_with_another_protocol_is_a_rebalance() -> None:
    harness = Harness().start()
    both = [("range", b"m"), ("sticky", b"m")]
    leader = harness.join(instance="a", protocols=both).value.member_id
    harness.sync(leader, 1, {leader: b""}, instance="a")
    back = harness.join(instance="a", protocols=[("sticky", b"m")]).value
    assert (back.generation_id, back.protocol_name) == (2, "sticky")


def test_a_return_before_the_assignment_starts_over() -> None:
    harness = Harness().start()
    harness.join(instance="a")
    back = harness.join(instance="a").value
    assert back.generation_id == 2
    assert list(harness.group.members) == [back.member_id]


def test_a_static_member_keeps_its_place_when_it_misses_a_rebalance() -> None:
    harness, leader, follower, _ = static_group()
    harness.pass_ms(8_000)
    harness.join(leader, instance="a", rebalance_ms=1_000)
    harness.group.members[follower].session_timeout_ms = 600_000
    harness.heartbeat(follower, 1, "b")
    harness.pass_ms(60_000)
    assert follower in harness.group.members
    assert harness.group.generation_id == 2


def test_without_a_rejoin_static_members_are_waited_for_until_their_sessions_end() -> None:
    harness, leader, follower, _ = static_group()
    for member in harness.group.members.values():
        member.session_timeout_ms = 1_000_000
        member.rebalance_timeout_ms = 0
    harness.heartbeat(leader, 1, "a")
    harness.heartbeat(follower, 1, "b")
    newcomer = harness.join(instance="c", rebalance_ms=5_000)
    harness.coordinator.leave_group(GROUP, [MemberIdentity("", "c")])
    assert newcomer.value.error is ErrorCode.UNKNOWN_MEMBER_ID
    harness.pass_ms(60_000)
    assert harness.state() is GroupState.PREPARING_REBALANCE
    assert list(harness.group.members) == [leader, follower]
    harness.pass_ms(1_000_000)
    assert harness.state() is GroupState.EMPTY


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    harness, leader, follower, _ = static_group()
    _, left = harness.coordinator.leave_group(GROUP, [MemberIdentity("", "b"), MemberIdentity("", "z")])
    assert [member.error for member in left] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(harness.group.members) == [leader]
    _, nobody = harness.coordinator.leave_group(GROUP, [MemberIdentity("")])
    assert nobody[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert follower not in harness.group.members
