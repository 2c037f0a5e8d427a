"""Leader selection, strategy by strategy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.controller.election import (
    elect_for_controlled_shutdown,
    elect_for_reassignment,
    elect_longest_log,
    elect_offline,
    elect_preferred,
    initial_leader_and_isr,
    remove_from_isr,
)
from klamm.controller.suspects import LogEnd
from klamm.model import LeaderAndIsr, LeaderRecoveryState, ReplicaAssignment

REPLICAS = ReplicaAssignment((1, 2, 3))


def state(leader: int, *isr: int) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 5, isr, 7)


def test_the_first_online_replica_leads_a_new_partition() -> None:
    assert initial_leader_and_isr((3, 1, 2), {1, 2}) == LeaderAndIsr(1, 0, (1, 2))
    assert initial_leader_and_isr((3,), {1, 2}) is None


def test_offline_takes_the_first_of_the_assignment_that_is_in_sync_and_online() -> None:
    found = elect_offline(REPLICAS, state(1, 3, 2, 1), {2, 3}, allow_unclean=False)
    assert found is not None
    assert found.leader_and_isr == LeaderAndIsr(2, 6, (3, 2), 7)
    assert found.recipients == (2, 3) and not found.unclean


def test_offline_leaves_the_isr_only_when_unclean_is_allowed() -> None:
    assert elect_offline(REPLICAS, state(1, 1), {2, 3}, allow_unclean=False) is None
    found = elect_offline(REPLICAS, state(1, 1), {2, 3}, allow_unclean=True, mark_recovering=True)
    assert found is not None and found.unclean
    assert found.leader_and_isr == LeaderAndIsr(2, 6, (2,), 7, LeaderRecoveryState.RECOVERING)
    assert elect_offline(REPLICAS, state(1, 1), set(), allow_unclean=True) is None


def test_unclean_prefers_a_replica_that_is_not_only_being_added() -> None:
    moving = ReplicaAssignment((3, 1, 2), adding_replicas=(3,), removing_replicas=(1, 2))
    found = elect_offline(moving, state(1, 1), {2, 3}, allow_unclean=True)
    assert found is not None and found.leader_and_isr == LeaderAndIsr(2, 6, (2,), 7) and found.recipients == (3, 2)
    found = elect_offline(moving, state(1, 1), {3}, allow_unclean=True)
    assert found is not None and found.leader_and_isr.leader == 3


def test_preferred_is_the_first_replica_or_none() -> None:
    found = elect_preferred(REPLICAS, state(2, 2, 1), {1, 2})
    assert found is not None and found.leader_and_isr == LeaderAndIsr(1, 6, (2, 1), 7)
    assert found.recipients == (1, 2, 3)
    assert elect_preferred(REPLICAS, state(2, 2), {1, 2}) is None
    assert elect_preferred(REPLICAS, state(2, 2, 1), {2}) is None


def test_reassignment_elects_from_the_target_only() -> None:
    moving = ReplicaAssignment((2, 3, 1), adding_replicas=(3,), removing_replicas=(1,))
    found = elect_for_reassignment(moving, state(1, 1, 3), {1, 2, 3})
    assert found is not None and found.leader_and_isr == LeaderAndIsr(3, 6, (1, 3), 7)
    assert found.recipients == (2, 3)


def test_controlled_shutdown_moves_leaders_and_still_notifies_the_broker_that_leaves() -> None:
    found = elect_for_controlled_shutdown(REPLICAS, state(1, 1, 2), {1, 2, 3}, {1})
    assert found is not None and found.leader_and_isr == LeaderAndIsr(2, 6, (2,), 7)
    assert found.recipients == (1, 2, 3)
    assert elect_for_controlled_shutdown(REPLICAS, state(1, 1), {1, 2, 3}, {1}) is None


def test_the_last_member_stays_in_the_isr() -> None:
    assert remove_from_isr(state(1, 1, 2), [2], [1].__contains__) == LeaderAndIsr(1, 6, (1,), 7)
    assert remove_from_isr(state(1, 1, 2), [1], [2].__contains__) == LeaderAndIsr(-1, 6, (2,), 7)
    assert remove_from_isr(state(1, 1), [1], [].__contains__) == LeaderAndIsr(-1, 6, (1,), 7)
    assert remove_from_isr(state(1, 1), [3], [1].__contains__) is None


def test_all_members_of_an_isr_stay_when_none_of_them_can_lead() -> None:
    assert remove_from_isr(state(1, 1, 2, 3), [1, 2, 3], [].__contains__) == LeaderAndIsr(-1, 6, (1, 2, 3), 7)
    assert remove_from_isr(state(1, 1, 2, 3), [1, 2], [].__contains__) == LeaderAndIsr(-1, 6, (1, 2, 3), 7)
    assert remove_from_isr(state(-1, 1, 2), [1, 2], [].__contains__) is None


def test_replicas_outside_the_assignment_leave_unless_there_is_no_other() -> None:
    assert remove_from_isr(state(1, 1, 4), [1], [].__contains__, outside=[4]) == LeaderAndIsr(-1, 6, (1,), 7)
    assert remove_from_isr(state(-1, 4), [], [].__contains__, outside=[4]) is None


@given(st.permutations([1, 2, 3, 4]), st.sets(st.integers(1, 4), min_size=1), st.sets(st.integers(1, 4)))
def test_a_clean_election_never_leaves_the_isr(order: list[int], isr: set[int], online: set[int]) -> None:
    before = LeaderAndIsr(-1, 0, tuple(sorted(isr)))
    found = elect_offline(ReplicaAssignment(tuple(order)), before, online, allow_unclean=False)
    assert (found is None) == (not isr & online)
    if found is not None:
        after = found.leader_and_isr
        assert after.leader in isr & online
        assert set(after.isr) == isr & online
        assert after.leader_epoch == 1


def test_a_suspect_neither_leads_nor_stays_in_the_isr_while_another_can_lead() -> None:
    found = elect_offline(REPLICAS, state(1, 1, 2, 3), {1, 2, 3}, allow_unclean=False, suspects={1, 3})
    assert found is not None and found.leader_and_isr == LeaderAndIsr(2, 6, (2,), 7)
    assert elect_offline(REPLICAS, state(1, 1, 2), {1, 3}, allow_unclean=True, suspects={1}) is None


def test_the_longest_log_of_the_newest_epoch_leads_alone_in_sync() -> None:
    def elect(ends: dict[int, LogEnd | None], *isr: int) -> tuple[int, bool] | None:
        found = elect_longest_log(REPLICAS, state(-1, *isr), {1, 2, 3}, ends)
        if found is None:
            return None
        leader = found.leader_and_isr.leader
        assert found.leader_and_isr.isr == (leader,)
        return leader, found.unclean

    assert elect({1: LogEnd(4, 50), 2: LogEnd(4, 60), 3: LogEnd(3, 90)}, 1, 2, 3) == (2, False)
    assert elect({1: LogEnd(4, 50), 2: LogEnd(4, 60), 3: LogEnd(4, 60)}, 1, 3) == (3, False)
    assert elect({1: LogEnd(4, 50), 2: LogEnd(4, 60)}, 1) == (2, True)
    assert elect({2: LogEnd(4, 60)}, 3, 1) == (1, False), "no member has answered: Kafka's rule"
    assert elect({1: None, 2: LogEnd(4, 60)}, 1) is None, (
        "the only member cannot be read, and is not given up for others"
    )


def test_while_an_unclean_election_is_recovered_from_only_members_are_compared() -> None:
    recovering = LeaderAndIsr(-1, 5, (1,), 7, LeaderRecoveryState.RECOVERING)
    found = elect_longest_log(REPLICAS, recovering, {1, 2}, {1: LogEnd(2, 10), 2: LogEnd(4, 60)})
    assert found is not None and found.leader_and_isr.leader == 1
