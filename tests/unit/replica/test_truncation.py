from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from klamm.log.leader_epoch_cache import UNDEFINED, EpochEndOffset
from klamm.log.log import Log
from klamm.replica.truncation import Reset, Truncation, reset_for, truncation_for


@dataclass
class Own:
    """A log with high watermark 3 and end 10 that answers with one end for every epoch."""

    end: EpochEndOffset
    high_watermark: int = 3
    log_end_offset: int = 10

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        return self.end


@pytest.mark.parametrize(
    ("leader", "own", "decision"),
    [
        (UNDEFINED, EpochEndOffset(4, 8), Truncation(3, True)),
        (EpochEndOffset(-1, 7), EpochEndOffset(4, 8), Truncation(7, True)),
        (EpochEndOffset(-1, 12), EpochEndOffset(4, 8), Truncation(10, True)),
        (EpochEndOffset(4, 7), UNDEFINED, Truncation(7, True)),
        (EpochEndOffset(4, 7), EpochEndOffset(2, 5), Truncation(5, False)),
        (EpochEndOffset(4, 7), EpochEndOffset(4, 8), Truncation(7, True)),
        (EpochEndOffset(4, 9), EpochEndOffset(4, 8), Truncation(8, True)),
        (EpochEndOffset(4, 19), EpochEndOffset(4, 18), Truncation(10, True)),
    ],
)
def test_where_to_cut(leader: EpochEndOffset, own: EpochEndOffset, decision: Truncation) -> None:
    assert truncation_for(cast(Log, Own(own)), leader) == decision


@pytest.mark.parametrize(
    ("start", "end", "leader_start", "leader_end", "decision"),
    [
        (0, 10, 0, 7, Reset(7)),
        (0, 10, 12, 20, Reset(12, is_full=True)),
        (0, 10, 3, 20, Reset(10)),
        (0, 10, 10, 10, Reset(10)),
        (7, 10, 0, 7, Reset(7)),
        (8, 10, 2, 7, Reset(2, is_full=True)),
        (99, 99, 0, 7, Reset(0, is_full=True)),
    ],
)
def test_where_to_continue(start: int, end: int, leader_start: int, leader_end: int, decision: Reset) -> None:
    assert reset_for((start, end), leader_start, leader_end) == decision
