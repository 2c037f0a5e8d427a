"""Decides where a follower truncates its log so that it agrees with its leader's. Pure.

Leader epochs decide (KIP-101, KIP-279): records that only the follower has were never committed.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.log.leader_epoch_cache import UNDEFINED_EPOCH_OFFSET, EpochEndOffset
from klamm.log.log import Log
from klamm.model import NO_EPOCH


class Truncation(NamedTuple):
    """Truncate to `offset`. If not `is_complete`, the logs may diverge even earlier, so the leader is asked again."""

    offset: int
    is_complete: bool


def truncation_for(log: Log, leader: EpochEndOffset) -> Truncation:
    """Return how to truncate after the leader reported where the requested epoch ends, or the last earlier epoch that
    the leader knows.
    """
    if leader.end_offset == UNDEFINED_EPOCH_OFFSET:
        return Truncation(log.high_watermark, True)
    if leader.epoch == NO_EPOCH:
        return Truncation(min(leader.end_offset, log.log_end_offset), True)
    own = log.end_offset_for_epoch(leader.epoch)
    if own.end_offset == UNDEFINED_EPOCH_OFFSET:
        return Truncation(min(leader.end_offset, log.log_end_offset), True)
    if own.epoch != leader.epoch:
        return Truncation(min(own.end_offset, log.log_end_offset), False)
    return Truncation(min(own.end_offset, leader.end_offset, log.log_end_offset), True)


class Reset(NamedTuple):
    """Continue at `fetch_offset`; `is_full` drops the whole log, otherwise it is truncated there."""

    fetch_offset: int
    is_full: bool = False


def reset_for(own: tuple[int, int], leader_start_offset: int, leader_end_offset: int) -> Reset:
    """Return how to continue if the fetch offset is out of range on the leader; `own` is the range of our log.

    If the leader's log ends before ours begins, a damaged checkpoint named our start: an empty log at the leader's end
    would lose all earlier records as soon as this replica leads, so they are copied. If it ends before ours ends, the
    leader was elected out of sync, and its log counts. If it begins after ours, the records in between are lost.
    Otherwise its log changed meanwhile, and fetching continues.
    """
    log_start_offset, log_end_offset = own
    if leader_end_offset < log_start_offset:
        return Reset(leader_start_offset, is_full=True)
    if leader_end_offset < log_end_offset:
        return Reset(leader_end_offset)
    if leader_start_offset > log_end_offset:
        return Reset(leader_start_offset, is_full=True)
    return Reset(log_end_offset)
