"""The cost of the control log while topics are created: pairs of clusters with and without it, in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from bench.clusters import KlammCluster
from bench.control_plane.observe import create_topics, leaders, wait_everywhere
from bench.processes import cpu_seconds
from bench.report import Row

TOPICS, PAIRS = 300, 5


def creation(topics: int, *, is_logged: bool) -> tuple[float, float]:
    """Seconds until every broker's metadata has all topics, and the CPU seconds of all brokers meanwhile."""
    with KlammCluster(3, {"klamm.control.log.enable": is_logged}) as cluster:
        cluster.create_topic("first", 1, 3)
        names = [f"t-{number:05d}" for number in range(topics)]
        cpu, begun = _cpu_s(cluster), time.monotonic()
        create_topics(cluster, names, 3, 3)

        def has_all(broker_id: int) -> bool:
            known = leaders(cluster, broker_id)
            return sum(leader >= 0 for (name, _), leader in known.items() if name.startswith("t-")) == topics * 3

        ended = wait_everywhere(cluster, cluster.brokers, has_all, "all topics everywhere")
        return ended - begun, _cpu_s(cluster) - cpu


def _cpu_s(cluster: KlammCluster) -> float:
    return sum(cpu_seconds(cluster.pid(broker_id)) for broker_id in cluster.brokers)


def rows(topics: int = TOPICS, pairs: int = PAIRS) -> Iterator[Row]:
    """Which of a pair goes first changes from pair to pair."""
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(pairs):
        for is_logged in (True, False) if number % 2 else (False, True):
            found[is_logged].append(creation(topics, is_logged=is_logged))
    for what, index, unit in (("time", 0, "s"), ("CPU of the brokers", 1, "s CPU")):
        for is_logged in (True, False):
            name = f"Create {topics} topics x 3, control log {'on' if is_logged else 'off'}: {what}, median of {pairs}"
            yield Row(name, statistics.median(values[index] for values in found[is_logged]), unit)
        ratios = [on[index] / off[index] for on, off in zip(found[True], found[False], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        yield Row(f"Control log on against off: {what}, median of the pairs ({spread})", statistics.median(ratios), "x")
