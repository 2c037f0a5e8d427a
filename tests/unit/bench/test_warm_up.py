"""When a warm-up is over: throughput that no longer rises, or the limit of passes."""

from __future__ import annotations

import pytest

from bench.data_plane import until_steady


@pytest.mark.parametrize(
    ("rates", "passes", "count"),
    [
        ([10, 20, 30, 40, 40, 41, 40], range(3, 10), 6),
        ([10, 10, 10, 10], range(3, 10), 3),
        ([10, 20, 40, 80, 160], range(3, 5), 5),
        ([10, 12, 9, 9], range(1, 10), 4),
        ([10], range(1, 1), 1),
        ([10, 10, 10, 10, 10], range(5, 10), 5),
    ],
)
def test_warm_up_ends_when_throughput_stops_rising(rates: list[float], passes: range, count: int) -> None:
    assert until_steady(rates.__getitem__, passes) == tuple(rates[:count])
