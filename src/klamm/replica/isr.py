"""The rules for in-sync replicas, and for how far a leader may regard records as committed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from klamm.model import TopicPartition
from klamm.replica.remote_replica import RemoteReplica


class Replication(NamedTuple):
    """The key of operations that wait until all in-sync replicas of `tp` have some records.

    While these replicas are too few for `min.insync.replicas`, every fetch of one of them may end such a wait, but no
    wait of a producer, because the high watermark stands still.
    """

    tp: TopicPartition

    def __str__(self) -> str:
        return f"replication of {self.tp}"


def out_of_sync(
    isr: Iterable[int], remotes: dict[int, RemoteReplica], leader_log_end_offset: int, now_ms: int, max_lag_ms: int
) -> tuple[int, ...]:
    """Return the ISR members that have lagged for too long. The leader itself has no RemoteReplica, so it always
    stays."""
    return tuple(
        replica_id
        for replica_id in isr
        if (remote := remotes.get(replica_id)) is not None
        and not remote.is_caught_up(leader_log_end_offset, now_ms, max_lag_ms)
    )


def is_confirmed(isr: Iterable[int], remotes: dict[int, RemoteReplica], now_ms: int, within_ms: int) -> bool:
    """Whether every follower in the ISR has followed this leader recently: only one of them can have succeeded it."""
    return all(
        now_ms - remote.confirmed_ms <= within_ms
        for replica_id in isr
        if (remote := remotes.get(replica_id)) is not None
    )


def may_join(remote: RemoteReplica, high_watermark: int, leader_epoch_start_offset: int | None) -> bool:
    """Return whether a follower has all committed records and everything up to the start of this leader epoch."""
    return remote.log_end_offset >= high_watermark and remote.log_end_offset >= (leader_epoch_start_offset or 0)


def high_watermark_candidate(
    leader_log_end_offset: int,
    remotes: dict[int, RemoteReplica],
    maximal_isr: tuple[int, ...],
    now_ms: int,
    max_lag_ms: int,
    is_alive: Callable[[int], bool] = lambda broker_id: True,
) -> int:
    """Return the smallest end offset of the leader, the ISR and the replicas that are about to join.

    Counting a replica that has caught up but is not yet a member keeps the high watermark from moving ahead of it; dead
    brokers do not count. An ISR member that has not fetched yet (-1) holds back the high watermark.
    """
    candidate = leader_log_end_offset
    for remote in remotes.values():
        if remote.log_end_offset < candidate and (
            remote.broker_id in maximal_isr
            or (
                remote.log_end_offset >= 0
                and now_ms - remote.last_caught_up_time_ms <= max_lag_ms
                and is_alive(remote.broker_id)
            )
        ):
            candidate = remote.log_end_offset
    return candidate
