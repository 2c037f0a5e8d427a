"""Replicas that need manual repair, as the brokers' metrics report them, with remedies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PROBLEM_METRIC: Final = "klamm_server_replicamanager_replicaproblem"
_TAG: Final = re.compile(r'(\w+)="([^"]*)"')
_REMEDIES: Final = {
    "inconsistent topic id": (
        "partition.metadata names another topic: stop the broker, move the partition's directory away, start the broker"
    ),
    "damaged log": "restore the partition from a copy, or continue without the offsets that the broker's log names",
}


@dataclass(slots=True)
class ReplicaProblem:
    broker_id: int
    topic: str
    partition: int
    problem: str
    remedy: str


def replica_problems(values: Mapping[int, Mapping[str, float]]) -> list[ReplicaProblem]:
    """By broker, topic and partition; `values` are metrics by broker, under names with tags."""
    found = []
    for broker_id, metrics in sorted(values.items()):
        for name in metrics:
            if name.startswith(PROBLEM_METRIC):
                tags = dict(_TAG.findall(name))
                problem = tags.get("problem", "")
                remedy = _REMEDIES.get(problem, "see the broker's log")
                found.append(ReplicaProblem(broker_id, tags.get("topic", ""), int(tags["partition"]), problem, remedy))
    return sorted(found, key=lambda p: (p.broker_id, p.topic, p.partition))


def problem_row(problem: ReplicaProblem) -> tuple[object, ...]:
    return problem.broker_id, f"{problem.topic}-{problem.partition}", problem.problem, problem.remedy
