from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.replica.isr import high_watermark_candidate, is_confirmed, may_join, out_of_sync
from klamm.replica.remote_replica import RemoteReplica

LAG_MS = 1000


def replica(broker_id: int, end: int, caught_up_ms: int = 0) -> RemoteReplica:
    remote = RemoteReplica(broker_id)
    remote.log_end_offset = end
    remote.last_caught_up_time_ms = caught_up_ms
    return remote


def test_a_follower_that_fetches_the_end_is_caught_up_now() -> None:
    remote = RemoteReplica(2)
    remote.on_fetch(10, 0, leader_log_end_offset=10, now_ms=500, broker_epoch=-1)
    assert remote.last_caught_up_time_ms == 500


def test_a_follower_that_keeps_pace_with_a_busy_leader_stays_caught_up() -> None:
    remote = RemoteReplica(2)
    remote.on_fetch(5, 0, leader_log_end_offset=10, now_ms=100, broker_epoch=-1)
    remote.on_fetch(9, 0, leader_log_end_offset=20, now_ms=200, broker_epoch=-1)
    assert remote.last_caught_up_time_ms == 0
    remote.on_fetch(20, 0, leader_log_end_offset=30, now_ms=300, broker_epoch=-1)
    assert remote.last_caught_up_time_ms == 200


def test_only_those_behind_for_too_long_fall_out() -> None:
    remotes = {2: replica(2, 5, caught_up_ms=0), 3: replica(3, 9, caught_up_ms=900), 4: replica(4, 10)}
    assert out_of_sync((1, 2, 3, 4), remotes, 10, now_ms=1001, max_lag_ms=LAG_MS) == (2,)
    assert out_of_sync((1, 2, 3, 4), remotes, 10, now_ms=1000, max_lag_ms=LAG_MS) == ()


def test_joining_needs_the_committed_records_and_the_start_of_the_epoch() -> None:
    assert may_join(replica(2, 10), 10, 8) and may_join(replica(2, 10), 10, None)
    assert not may_join(replica(2, 9), 10, 8) and not may_join(replica(2, 10), 10, 11)


def test_the_high_watermark_waits_for_members_and_for_those_about_to_join() -> None:
    remotes = {2: replica(2, 7), 3: replica(3, 4, caught_up_ms=0)}
    now_ms = LAG_MS + 1
    assert high_watermark_candidate(10, remotes, (1, 2), now_ms, LAG_MS) == 7
    assert high_watermark_candidate(10, remotes, (1, 2, 3), now_ms, LAG_MS) == 4
    assert high_watermark_candidate(10, remotes, (1,), now_ms, LAG_MS) == 10
    remotes[3].last_caught_up_time_ms = now_ms
    assert high_watermark_candidate(10, remotes, (1,), now_ms, LAG_MS) == 4


def test_a_member_that_has_not_fetched_yet_holds_it_back() -> None:
    assert high_watermark_candidate(10, {2: RemoteReplica(2)}, (1, 2), 5, LAG_MS) == -1
    assert high_watermark_candidate(10, {2: RemoteReplica(2)}, (1,), 5, LAG_MS) == 10


@given(
    st.integers(0, 100),
    st.dictionaries(st.integers(2, 6), st.integers(-1, 100), max_size=5),
    st.sets(st.integers(2, 6)),
)
def test_committed_records_are_on_every_member(leader_end: int, ends: dict[int, int], isr: set[int]) -> None:
    remotes = {broker_id: replica(broker_id, min(end, leader_end)) for broker_id, end in ends.items()}
    members = tuple(sorted(isr & remotes.keys()))
    candidate = high_watermark_candidate(leader_end, remotes, (1, *members), 10**9, LAG_MS)
    assert candidate <= leader_end
    assert all(remotes[member].log_end_offset >= candidate for member in members)


class Session:
    def __init__(self) -> None:
        self.last_fetch_ms = self.previous_fetch_ms = 0

    def fetch(self, now_ms: int) -> None:
        self.previous_fetch_ms, self.last_fetch_ms = self.last_fetch_ms, now_ms


def test_a_fetch_confirms_the_leader_at_the_time_of_the_fetch_before() -> None:
    """The second fetch waited in the socket of a paused leader, so its arrival proves nothing."""
    remote = RemoteReplica(2)
    remote.reset(100)
    assert remote.confirmed_ms == 0
    remote.on_fetch(0, 0, 0, 200, 1)
    assert remote.confirmed_ms == 0
    remote.on_fetch(0, 0, 0, 9_000, 1)
    assert remote.confirmed_ms == 200
    assert is_confirmed((1, 2), {2: remote}, 9_000, 8_800)
    assert not is_confirmed((1, 2), {2: remote}, 9_000, 8_799)
    assert is_confirmed((1,), {2: remote}, 9_000, 8_799)
    remote.on_fetch(0, 0, 0, 9_001, 1)
    assert is_confirmed((1, 2), {2: remote}, 9_001, 10)
    silent = RemoteReplica(3)
    assert not is_confirmed((1, 2, 3), {2: remote, 3: silent}, 9_001, 10), "either may have succeeded the leader"
    assert is_confirmed((1, 2), {2: remote, 3: silent}, 9_001, 10)


def test_an_election_confirms_nothing() -> None:
    """Its LeaderAndIsr may have waited in the socket of a paused broker, which has a successor by now."""
    remote = RemoteReplica(2)
    remote.on_fetch(0, 0, 0, 8_000, 1)
    remote.on_fetch(0, 0, 0, 8_500, 1)
    assert is_confirmed((1, 2), {2: remote}, 9_000, 1_000)
    remote.reset(9_000)
    assert remote.last_caught_up_time_ms == 9_000
    assert not is_confirmed((1, 2), {2: remote}, 9_000, 1_000)


def test_fetches_of_a_session_confirm_the_leader_too() -> None:
    remote, session = RemoteReplica(2), Session()
    remote.reset(100)
    session.fetch(200)
    remote.follow_session(session)
    session.fetch(300)
    assert remote.confirmed_ms == 200
    remote.leave_session()
    session.fetch(400)
    assert remote.confirmed_ms == 200
