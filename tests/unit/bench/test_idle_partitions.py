"""The table of latencies beside idle partitions, and the passes before it."""

from __future__ import annotations

from bench.idle_partitions import CPU_GOAL, LATENCY, RATIO_GOALS, table, warm_up
from bench.report import Row


def rows(values: dict[str, float]) -> list[Row]:
    return [
        Row(f"{what}, {beside}", value, unit)
        for beside, value in values.items()
        for what, unit in (
            ("CPU of a broker without load", "%"),
            ("CPU of all brokers per 1,000 records", "ms"),
            (f"{LATENCY}, p99", "ms"),
        )
    ]


def test_rows_have_quartiles_and_goals() -> None:
    """One round had a stall, first beside the idle partitions and then alone: the medians do not show it."""
    two, ten = "beside 2,000 idle partitions", "beside 10,000 idle partitions"
    rounds = [
        rows({"alone": 2.0, two: 3.0, ten: 4.0}),
        rows({two: 90.0, ten: 4.0, "alone": 2.0}),
        rows({ten: 6.0, "alone": 4.0, two: 4.0}),
    ]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(rounds).splitlines()[2:]]
    cells = {line[0]: line[1:] for line in lines}
    assert len(cells) == len(lines) == 9
    assert cells[f"{LATENCY}, p99, alone"] == ["2.00", "2.00 to 3.00", "ms", "", "", ""]
    assert cells[f"{LATENCY}, p99, {two}"] == ["4.00", "3.50 to 47.00", "ms", "1.50", "1.25 to 23.25", "<= 1.2"]
    assert cells[f"{LATENCY}, p99, {ten}"][3:] == ["2.00", "1.75 to 2.00", f"<= {RATIO_GOALS[10_000]:g}"]
    assert cells[f"CPU of a broker without load, {ten}"][2:] == ["%", "", "", f"<= {CPU_GOAL:g} %"]
    assert cells[f"CPU of all brokers per 1,000 records, {two}"][5] == ""


def test_rows_begin_when_the_median_stops_falling() -> None:
    medians = [8.0, 4.0, 2.0, 2.0, 2.0, 1.0]
    rates = warm_up(lambda number: {"p50": medians[number]}, range(3, 10))
    assert [1 / rate for rate in rates] == medians[:5]
