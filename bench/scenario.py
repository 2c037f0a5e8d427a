"""The scenarios of the comparison with Apache Kafka: a scenario gives rows, on a fresh cluster of either kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bench.clusters import BenchCluster
from bench.report import Row


@dataclass(frozen=True, slots=True)
class Scenario:
    """`run(cluster, quick)` measures on a running cluster of `brokers` brokers with `configs` over the shared settings.

    It is called once a round and side, and may leave topics and dead brokers behind: the cluster goes after it.
    """

    name: str
    run: Callable[[BenchCluster, bool], Iterable[Row]]
    brokers: int = 3
    configs: Mapping[str, object] = field(default_factory=dict)
    rounds: int = 3
    """How often on each side; the quick form has one round."""
