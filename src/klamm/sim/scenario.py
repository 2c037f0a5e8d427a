"""A guided scenario for the viewer: a plan, and steps that each explain one record of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.sim.scripted import Action, Plan


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    record: Mapping[str, Any]
    """Fields of the record that the step explains; the first such record after the previous step's."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    title: str
    subject: str
    """The heading in docs/articles.md."""
    plan: Plan
    partition: str
    """The partition in the strips below the lanes."""
    steps: tuple[Step, ...]


def plan(end_ms: int, *actions: str, seed: int = 1, late_messages: bool = False) -> Plan:
    return Plan(seed, 3, end_ms, False, tuple(map(Action.parse, actions)), late_messages)


CHANNEL: Final = "controllerchannelmanager-how-the-controller-sends-requests"
EVENTS: Final = "controllereventmanager-the-single-threaded-controller"
BATCH: Final = "controllerbrokerrequestbatch-one-batch-per-event"
CACHE: Final = "metadatacache-how-brokers-learn-of-changes"


def locate(scenario: Scenario, records: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """Return the index of each step's record; None for a step that does not happen."""
    found: list[int | None] = []
    start = 0
    for step in scenario.steps:
        wanted = step.record.items()
        index = next((i for i in range(start, len(records)) if wanted <= _comparable(records[i])), None)
        found.append(index)
        start = start if index is None else index + 1
    return found


def _comparable(record: Mapping[str, Any]) -> Any:
    return {name: value for name, value in record.items() if not isinstance(value, list | dict)}.items()
