"""The results of the Spark bench: figures of klamm, and beside them those of Spark's own connector."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench import report

KLAMM: Final = "klamm"
CONNECTOR: Final = "kafka"
"""Also the names of the formats."""

HEADER: Final = ("", "klamm", "connector", "ratio", "spread", "unit", "goal")


@dataclass(frozen=True, slots=True)
class Goal:
    """`least` and `most` bound klamm's figure, `ratio` (at least) klamm's divided by the connector's."""

    least: float | None = None
    most: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """The rounds of both sides; the median counts."""

    name: str
    unit: str
    klamm: Sequence[float]
    connector: Sequence[float] = ()
    goal: Goal = Goal()

    @property
    def value(self) -> float:
        return statistics.median(self.klamm)

    @property
    def ratio(self) -> float | None:
        return self.value / statistics.median(self.connector) if self.connector else None

    def goals(self) -> str:
        found = []
        if self.goal.least is not None:
            found.append((f">= {self.goal.least:g}", self.value >= self.goal.least))
        if self.goal.most is not None:
            found.append((f"<= {self.goal.most:g}", self.value <= self.goal.most))
        if self.goal.ratio is not None and self.ratio is not None:
            found.append((f">= {self.goal.ratio:g}x", self.ratio >= self.goal.ratio))
        return ", ".join(f"{text} {'met' if is_met else '**missed**'}" for text, is_met in found)

    def cells(self) -> tuple[str, ...]:
        sides = [side for side in (self.klamm, self.connector) if side]
        return (
            self.name,
            report.number(self.value),
            report.number(statistics.median(self.connector)) if self.connector else "",
            f"{self.ratio:.2f}" if self.ratio is not None else "",
            " / ".join(report.spread(side) for side in sides) if len(self.klamm) > 1 else "",
            self.unit,
            self.goals(),
        )


def rates(amount: float, found: Mapping[str, Sequence[float]], side: str) -> list[float]:
    """Of each round's seconds; nothing for a side that was not measured."""
    return [amount / seconds for seconds in found.get(side, ())]


def in_turn(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Every measure once to warm up, then `rounds` times, one after the other, in an order that moves on."""
    for measure in measures.values():
        measure()
    names = list(measures)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(measures[name]())
    return found
