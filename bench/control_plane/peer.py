"""The control plane's rows that Apache Kafka can give as well: public protocol and ZooKeeper only, on either cluster.

Times begin at the request, or at the moment ZooKeeper ends the dead broker's session: how long that takes is a
setting, the same on both sides. They end when every living broker's metadata says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Final

from bench.clusters import BenchCluster
from bench.control_plane.observe import (
    Connections,
    Leaders,
    ZnodeWatch,
    create_topics,
    elect_preferred,
    leaders,
    metadata,
    wait_everywhere,
    wait_until,
)
from bench.report import Row
from bench.scenario import Scenario

TOPICS, QUICK_TOPICS = 1_000, 100
PARTITIONS, REPLICATION = 3, 3
PROPAGATIONS, QUICK_PROPAGATIONS = 200, 40
CREATION_GOAL, FAILOVER_GOAL = 0.3, 0.25
CONFIGS: Final = {"zookeeper.session.timeout.ms": 6_000, "auto.leader.rebalance.enable": False}


def _topic(number: int) -> str:
    return f"t-{number:05d}"


SAMPLE: Final = tuple(_topic(number) for number in range(QUICK_TOPICS))[::10]
"""Topics of every run."""


def whole_life(cluster: BenchCluster, quick: bool) -> Iterator[Row]:
    """Creation, a leader's death, its return and the moves back, the controller's death, on one cluster."""
    yield from run(cluster, QUICK_TOPICS if quick else TOPICS)


def run(cluster: BenchCluster, topics: int) -> Iterator[Row]:
    names = [_topic(number) for number in range(topics)]
    what = f"{topics:,} topics x {PARTITIONS} partitions, RF {REPLICATION}"
    yield Row(
        f"Create {what}, until every broker's metadata has them", _create(cluster, names), "s", goal=CREATION_GOAL
    )
    controller = cluster.controller_id()
    victim = next(b for b in cluster.brokers if b != controller)
    yield from _kill_leader(cluster, victim, topics * PARTITIONS)
    yield from _move_back(cluster, victim, topics * PARTITIONS)
    yield from _kill_controller(cluster, topics * PARTITIONS)


def _create(cluster: BenchCluster, names: Sequence[str]) -> float:
    begun = time.monotonic()
    create_topics(cluster, names, PARTITIONS, REPLICATION)

    def has_all(broker_id: int) -> bool:
        known = leaders(cluster, broker_id)
        return sum(leader >= 0 for leader in known.values()) >= len(names) * PARTITIONS

    return wait_everywhere(cluster, cluster.brokers, has_all, "all topics in all metadata") - begun


def _wait_for_new_leaders(cluster: BenchCluster, dead: int, partitions: int) -> float:
    """Until every living broker knows all partitions to be led by somebody who lives.

    A few topics are looked at first: to ask for the metadata of all of them again and again would be a load of its own.
    """

    def settled(broker_id: int) -> bool:
        return _all_led(leaders(cluster, broker_id, SAMPLE)) and _all_led(leaders(cluster, broker_id), partitions)

    def _all_led(known: Leaders, least: int = 1) -> bool:
        return len(known) >= least and all(leader >= 0 and leader != dead for leader in known.values())

    return wait_everywhere(cluster, [b for b in cluster.brokers if b != dead], settled, "new leaders everywhere")


def _kill_leader(cluster: BenchCluster, victim: int, partitions: int) -> Iterator[Row]:
    with ZnodeWatch(cluster.zookeeper, f"/brokers/ids/{victim}") as registration:
        killed = time.monotonic()
        cluster.kill(victim)
        gone = registration.wait(lambda data: data is None, killed)
        settled = _wait_for_new_leaders(cluster, victim, partitions)
    name = f"Leader of a third of {partitions:,} partitions killed: session's end to new leaders everywhere"
    yield Row(name, settled - gone, "s")


def _move_back(cluster: BenchCluster, returned: int, partitions: int) -> Iterator[Row]:
    """The broker returns, catches up, and gets its partitions back by one ElectLeaders."""
    cluster.start(returned)
    asked = cluster.controller_id()
    mine: list[tuple[str, int]] = []

    def in_sync() -> bool:
        nodes = [
            (topic.name or "", it.partition_index, it.replica_nodes, it.isr_nodes, it.leader_id)
            for topic in metadata(cluster, asked).topics
            for it in topic.partitions
        ]
        mine[:] = [(name, p) for name, p, replicas, _, leader in nodes if replicas[0] == returned != leader]
        return len(nodes) >= partitions and all(
            returned in isr for _, _, replicas, isr, _ in nodes if returned in replicas
        )

    wait_until(in_sync, f"broker {returned} back in all ISRs", poll_s=0.25)
    if not mine:
        return
    begun = time.monotonic()
    elect_preferred(cluster, mine)
    wanted = set(mine)

    def moved(broker_id: int) -> bool:
        known = leaders(cluster, broker_id)
        return all(known.get(tp) == returned for tp in wanted)

    ended = wait_everywhere(cluster, cluster.brokers, moved, "leaders moved back everywhere")
    yield Row(
        "Leaders moved by one ElectLeaders, until every broker's metadata has them",
        len(mine) / (ended - begun),
        "moves/s",
        "higher",
    )


def _kill_controller(cluster: BenchCluster, partitions: int) -> Iterator[Row]:
    """The controller dies, which leads a third of the partitions."""
    dead = cluster.controller_id()
    with ZnodeWatch(cluster.zookeeper, "/controller") as role:
        killed = time.monotonic()
        cluster.kill(dead)
        # a quick successor is there before the watch looks: then its name is the first that is seen
        gone = role.wait(lambda data: True, killed)
        settled = _wait_for_new_leaders(cluster, dead, partitions)
    name = f"Controller failover, {partitions:,} partitions: session's end to new leaders everywhere"
    yield Row(name, settled - gone, "s", goal=FAILOVER_GOAL)


def propagation(cluster: BenchCluster, quick: bool) -> Iterator[Row]:
    """One topic at a time, on an idle cluster."""
    times = propagation_ms(cluster, QUICK_PROPAGATIONS if quick else PROPAGATIONS)
    yield Row("Propagation, idle: one topic asked for until every broker's metadata has it, p50", times.p50, "ms")
    yield Row("Propagation, idle: one topic asked for until every broker's metadata has it, p99", times.p99, "ms")


class Times:
    """Sorted times in ms."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = sorted(values)

    @property
    def p50(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        return self.values[min(len(self.values) - 1, int(len(self.values) * 0.99))]


def propagation_ms(cluster: BenchCluster, count: int, stem: str = "p") -> Times:
    """From CreateTopics at the controller until every broker's Metadata has the topic, over open connections."""
    times = []
    controller = cluster.controller_id()
    with Connections(cluster) as connections:
        for number in range(count):
            name = f"{stem}-{number:05d}"
            begun = time.monotonic()
            connections.create_topic(controller, name, len(cluster.brokers))
            ended = _known_everywhere(connections, cluster, name)
            times.append((ended - begun) * 1000)
    return Times(times)


def _known_everywhere(connections: Connections, cluster: BenchCluster, topic: str) -> float:
    waiting = set(cluster.brokers)

    def all_know() -> bool:
        waiting.difference_update(connections.that_know(waiting, topic))
        return not waiting

    return wait_until(all_know, f"{topic} everywhere", poll_s=0.0005)


SCENARIOS: Final = (
    Scenario("control plane", whole_life, configs=CONFIGS),
    Scenario("propagation", propagation),
)
