"""The table of latencies beside idle partitions, and the passes before it."""

from __future__ import annotations

from bench.idle_partitions import CPU_GOAL, LATENCY, RATIO_GOALS, table, warm_up
from bench.report import Row


def test_goals_are_those_of_latencies_and_of_the_cpu_without_load() -> None:
    rows = [
        Row(f"{what}, {beside}", value, unit)
        for beside, value in (
            ("alone", 2.0),
            ("beside 2,000 idle partitions", 3.0),
            ("beside 10,000 idle partitions", 4.0),
        )
        for what, unit in (
            ("CPU of a broker without load", "%"),
            ("CPU of all brokers per 1,000 records", "ms"),
            (f"{LATENCY}, p50", "ms"),
        )
    ]
    cells = [[cell.strip() for cell in line.split("|")[4:6]] for line in table(rows).splitlines()[2:]]
    assert cells == [
        *[["", ""]] * 4,
        ["1.50", ""],
        ["1.50", f"<= {RATIO_GOALS[2_000]:g}"],
        ["", f"<= {CPU_GOAL:g} %"],
        ["2.00", ""],
        ["2.00", f"<= {RATIO_GOALS[10_000]:g}"],
    ]


def test_rows_begin_when_the_median_stops_falling() -> None:
    medians = [8.0, 4.0, 2.0, 2.0, 2.0, 1.0]
    rates = warm_up(lambda number: {"p50": medians[number]}, range(3, 10))
    assert [1 / rate for rate in rates] == medians[:5]
