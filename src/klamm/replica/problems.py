"""Replicas that need attention, as metrics: `klamm cluster status` names them with the remedy."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from klamm.metrics import MetricsRegistry
from klamm.model import TopicPartition

_METRIC: Final = ("klamm.server", "ReplicaManager", "ReplicaProblem")


class Problem(StrEnum):
    TOPIC_ID = "inconsistent topic id"
    """`partition.metadata` names another topic than the controller does."""
    DAMAGED = "damaged log"
    """Records are missing, and there is no other replica to get them from."""


class ReplicaProblems:
    """Owner: the ReplicaManager."""

    def __init__(self, metrics: MetricsRegistry) -> None:
        self._metrics = metrics
        self._known: dict[TopicPartition, Problem] = {}

    def put(self, tp: TopicPartition, problem: Problem) -> bool:
        """Add a problem. Return False if it was known."""
        if self._known.get(tp) is problem:
            return False
        self.clear(tp)
        self._known[tp] = problem
        self._metrics.gauge(*_METRIC, lambda: 1, _tags(tp, problem))
        return True

    def clear(self, tp: TopicPartition) -> None:
        if self._known and (problem := self._known.pop(tp, None)) is not None:
            self._metrics.remove(*_METRIC, _tags(tp, problem))


def _tags(tp: TopicPartition, problem: Problem) -> dict[str, str]:
    return {"topic": tp.topic, "partition": str(tp.partition), "problem": problem}
