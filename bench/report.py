"""Rows, their comparison, and bench/RESULTS.md, in which every bench rewrites its own section and nobody else's.

A section stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. Text outside of them is written by hand.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

RESULTS: Final = Path(__file__).resolve().parent / "RESULTS.md"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one cluster. `goal` bounds klamm's value divided by the peer's: from above if lower is better."""

    name: str
    value: float
    unit: str
    better: Literal["lower", "higher"] = "lower"
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same row of several rounds on both sides; `kafka` is empty when there was no peer."""

    row: Row
    klamm: tuple[float, ...]
    kafka: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.klamm) / statistics.median(self.kafka) if self.klamm and self.kafka else None

    @property
    def goal(self) -> str:
        if self.row.goal is None:
            return ""
        sign = "<=" if self.row.better == "lower" else ">="
        if self.ratio is None:
            return f"{sign} {self.row.goal:g}"
        is_met = self.ratio <= self.row.goal if self.row.better == "lower" else self.ratio >= self.row.goal
        return f"{sign} {self.row.goal:g} {'met' if is_met else '**missed**'}"

    def cells(self) -> tuple[str, ...]:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        figures = [number(statistics.median(side)) if side else "" for side in (self.klamm, self.kafka)]
        spreads = " / ".join(spread(side) for side in (self.klamm, self.kafka) if side)
        return (self.row.name, *figures, ratio, spreads, self.row.unit, self.goal)


HEADER: Final = ("", "klamm", "Kafka", "ratio", "spread", "unit", "goal")


def number(value: float) -> str:
    """Three significant digits or more, thousands apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """How far the rounds lie apart, as a part of their median."""
    middle = statistics.median(values)
    return f"{(max(values) - min(values)) / middle:.0%}" if middle else "-"


def compare(rounds: Mapping[str, Iterable[Iterable[Row]]]) -> list[Comparison]:
    """Turn each side's rounds (`klamm` and, with a peer, `kafka`) into one line per row, in order of first appearance.

    A row that one side could not give has its cell empty.
    """
    values: dict[str, dict[str, list[float]]] = {}
    kinds: dict[str, Row] = {}
    for side, rows_of_rounds in rounds.items():
        for rows in rows_of_rounds:
            for row in rows:
                kinds.setdefault(row.name, row)
                values.setdefault(row.name, {}).setdefault(side, []).append(row.value)
    return [
        Comparison(row, tuple(values[name].get("klamm", ())), tuple(values[name].get("kafka", ())))
        for name, row in kinds.items()
    ]


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns stand under each other in the source, too."""
    cells = [header, *lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    text = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    return "\n".join([text[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *text[1:]])


def comparison_table(comparisons: Iterable[Comparison]) -> str:
    return table(HEADER, [comparison.cells() for comparison in comparisons])


def machine() -> str:
    """The machine in one sentence: what a reader needs to judge the figures."""
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    models = [x.split(":", 1)[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
    return (
        f"{os.cpu_count()} cores ({models[0] if models else platform.machine()}), {memory_kib / 2**20:.0f} GB,"
        f" Linux {platform.release().split('-')[0]}, {platform.python_implementation()} {platform.python_version()}"
    )


def load_average() -> float:
    """Of the last minute: ask before the first process of a bench is started."""
    return os.getloadavg()[0]


def load_note(load_at_start: float) -> str:
    """Return whether the machine was idle before the first process started, by its load average."""
    if load_at_start < 0.5:
        return f"The machine was quiet at the start (load average {load_at_start:.2f})."
    return f"**The machine was shared**: load average {load_at_start:.2f} at the start."


def write_section(name: str, text: str, path: Path = RESULTS) -> None:
    """Replaces the section, or adds it at the end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Measurements\n"
    if begin in old and end in old:
        before, rest = old.split(begin, 1)
        new = before + section + rest.split(end, 1)[1]
    else:
        new = f"{old.rstrip()}\n\n{section}\n"
    path.write_text(new, encoding="utf-8")
