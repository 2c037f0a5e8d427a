"""JoinGroup: ids, protocols, limits, and when a rebalance begins and ends."""

from __future__ import annotations

import pytest

from klamm.coordinator.config import GroupConfig
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.membership import MemberIdentity
from klamm.errors import ErrorCode
from tests.unit.coordinator.harness import GROUP, Harness

DELAY_MS = 3_000


def with_delay(**settings: int) -> Harness:
    return Harness(GroupConfig(initial_rebalance_delay_ms=DELAY_MS, **settings)).start()


def test_a_member_without_an_id_is_given_one_from_v4_on() -> None:
    harness = Harness().start()
    first = harness.join(client_id="app", version=4)
    assert first.value.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.value.member_id == "app-id1"
    second = harness.join(first.value.member_id, version=4)
    assert second.value.error is ErrorCode.NONE
    assert (second.value.member_id, second.value.leader, second.value.generation_id) == ("app-id1", "app-id1", 1)


def test_before_v4_a_member_without_an_id_is_taken_at_once() -> None:
    joined = Harness().start().join(version=3).value
    assert (joined.error, joined.member_id, joined.protocol_name) == (ErrorCode.NONE, "c-id1", "range")


def test_a_member_with_an_instance_id_needs_no_second_request() -> None:
    joined = Harness().start().join(instance="i-1").value
    assert (joined.error, joined.member_id) == (ErrorCode.NONE, "i-1-id1")


def test_the_first_rebalance_waits_for_more_members() -> None:
    harness = with_delay()
    first = harness.join(version=0)
    harness.pass_ms(DELAY_MS - 1)
    assert not first.done
    harness.pass_ms(1)
    assert first.value.generation_id == 1


def test_the_delay_is_extended_while_members_come_up_to_the_rebalance_timeout() -> None:
    harness = with_delay()
    first = harness.join(version=0, rebalance_ms=7_000)
    for _ in range(2):
        harness.pass_ms(2_900)
        harness.join(version=0, rebalance_ms=7_000)
    assert not first.done
    harness.pass_ms(1_199)
    assert not first.done
    harness.pass_ms(1)
    assert first.value.generation_id == 1
    assert len(harness.group.members) == 3


def test_only_the_leader_learns_of_the_members() -> None:
    harness = with_delay()
    joins = [harness.join(version=0, protocols=[("range", b"m%d" % i)]) for i in range(3)]
    harness.pass_ms(2 * DELAY_MS)
    leader, *others = [join.value for join in joins]
    assert leader.leader == leader.member_id
    assert [member.metadata for member in leader.members] == [b"m0", b"m1", b"m2"]
    assert all(join.leader == leader.member_id and join.members == () for join in others)


def test_a_session_timeout_out_of_bounds_is_refused() -> None:
    harness = Harness(GroupConfig(min_session_timeout_ms=100, max_session_timeout_ms=200)).start()
    assert harness.join(session_ms=99).value.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert harness.join(session_ms=201).value.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert harness.join(session_ms=200).value.error is ErrorCode.MEMBER_ID_REQUIRED


def test_an_empty_group_id_is_refused() -> None:
    assert Harness().start().join(group_id="").value.error is ErrorCode.INVALID_GROUP_ID


def test_an_unknown_member_id_is_refused() -> None:
    harness = Harness().start()
    assert harness.join("who").value.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.manager.get(GROUP) is None
    harness.stable_group()
    assert harness.join("who").value.error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("protocol_type, protocols", [("", [("range", b"")]), ("consumer", [])])
def test_a_group_cannot_begin_without_a_protocol(protocol_type: str, protocols: list[tuple[str, bytes]]) -> None:
    harness = Harness().start()
    joined = harness.join(protocol_type=protocol_type, protocols=protocols).value
    assert joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.manager.get(GROUP) is None


def test_another_protocol_type_or_no_common_protocol_is_inconsistent() -> None:
    harness = Harness().start()
    harness.stable_group()
    assert harness.join(protocol_type="connect").value.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join(protocols=[("sticky", b"")]).value.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_members_vote_for_a_protocol_that_all_support() -> None:
    harness = with_delay()
    joins = [
        harness.join(version=0, protocols=[("range", b""), ("sticky", b"")]),
        harness.join(version=0, protocols=[("sticky", b""), ("range", b"")]),
        harness.join(version=0, protocols=[("sticky", b""), ("other", b""), ("range", b"")]),
    ]
    harness.pass_ms(2 * DELAY_MS)
    assert {join.value.protocol_name for join in joins} == {"sticky"}


def test_group_max_size() -> None:
    harness = with_delay(max_size=2)
    joins = [harness.join(version=0) for _ in range(3)]
    assert joins[2].value.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    harness.pass_ms(2 * DELAY_MS)
    assert [join.value.error for join in joins[:2]] == [ErrorCode.NONE] * 2
    assert harness.join(version=0).value.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.join(version=9).value.error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_loaded_group_above_the_limit_sheds_members() -> None:
    harness = Harness().start()
    ids, _ = harness.stable_group(3)
    smaller = Harness(GroupConfig(max_size=2, initial_rebalance_delay_ms=0), log=harness.log, clock=harness.clock)
    smaller.start()
    assert smaller.state() is GroupState.PREPARING_REBALANCE
    joins = [smaller.join(i) for i in ids]
    assert joins[2].value.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [join.value.error for join in joins[:2]] == [ErrorCode.NONE] * 2


def test_a_new_member_starts_a_rebalance_that_waits_for_the_others() -> None:
    harness = Harness().start()
    (member,), generation = harness.stable_group()
    newcomer = harness.join(version=0)
    assert not newcomer.done
    assert harness.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = harness.join(member)
    assert again.value.generation_id == newcomer.value.generation_id == generation + 1
    assert again.value.leader == newcomer.value.leader == member


def test_a_member_that_does_not_rejoin_is_left_behind_at_the_rebalance_timeout() -> None:
    harness = Harness().start()
    (old,), generation = harness.stable_group(session_ms=10_000)
    newcomer = harness.join(version=0)
    for _ in range(6):
        harness.pass_ms(9_000)
        harness.heartbeat(old, generation)
    assert not newcomer.done
    harness.pass_ms(6_000)
    assert newcomer.value.leader == newcomer.value.member_id
    assert harness.heartbeat(old, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_members_hold_up_a_rebalance_until_they_lapse() -> None:
    harness = Harness().start()
    (member,), _ = harness.stable_group(session_ms=30_000)
    pending = harness.join(session_ms=6_000).value.member_id
    newcomer, joined = harness.dynamic_member()
    again = harness.join(member, session_ms=30_000)
    assert not again.done and not joined.done
    harness.pass_ms(6_000)
    assert again.value.error is joined.value.error is ErrorCode.NONE
    assert harness.join(pending).value.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert newcomer in harness.group.members


def test_a_pending_member_may_leave() -> None:
    harness = Harness().start()
    pending = harness.join().value.member_id
    _, left = harness.coordinator.leave_group(GROUP, [MemberIdentity(pending)])
    assert left[0].error is ErrorCode.NONE
    assert not harness.group.pending_members


def test_joining_again_in_a_stable_group() -> None:
    harness = Harness().start()
    (leader, follower), generation = harness.stable_group(2)
    same = harness.join(follower)
    assert (same.value.error, same.value.generation_id) == (ErrorCode.NONE, generation)
    assert harness.state() is GroupState.STABLE
    harness.join(follower, protocols=[("range", b"other topics")])
    assert harness.state() is GroupState.PREPARING_REBALANCE
    harness.join(leader)
    harness.sync_all([leader, follower])
    harness.join(leader)
    assert harness.state() is GroupState.PREPARING_REBALANCE, "a leader joins to have the group assigned again"


def test_joining_again_before_the_assignment_gives_the_same_generation() -> None:
    harness = Harness().start()
    member = harness.join(version=0).value.member_id
    again = harness.join(member).value
    assert (again.generation_id, again.leader, len(again.members)) == (1, member, 1)
    changed = harness.join(member, protocols=[("range", b"x")]).value
    assert changed.generation_id == 2


def test_a_second_join_of_a_waiting_member_sends_the_first_away() -> None:
    harness = Harness().start()
    harness.stable_group()
    newcomer, first = harness.dynamic_member()
    second = harness.join(newcomer)
    assert first.value.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.done


def test_a_new_member_that_waits_too_long_is_forgotten() -> None:
    harness = Harness().start()
    (member,), generation = harness.stable_group()
    harness.group.members[member].rebalance_timeout_ms = 3_600_000
    newcomer = harness.join(version=0)
    for _ in range(60):
        harness.pass_ms(5_000)
        harness.heartbeat(member, generation)
    assert newcomer.value.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_very_long_client_id_still_makes_a_member() -> None:
    harness = Harness().start()
    member = harness.join(client_id="ü" * 16_000, version=0).value.member_id
    assert harness.sync(member, 1, {member: b"a"}).value.assignment == b"a"
