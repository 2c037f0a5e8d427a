"""CPU time of the controller's events that change little or nothing, in a large cluster.

Measured in this process, without sockets: the controller's core handles the event, the tree answers, and the requests
are encoded. The least of some rounds counts. A step ends where the control loop would do other work.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

from bench.control_plane.core import CoreDriver, cluster, register
from bench.control_plane.one_change import alter
from klamm.clock import SystemClock
from klamm.controller import events
from klamm.controller.controller import KafkaController
from klamm.controller.metrics import ControllerMetrics
from klamm.metrics import MetricsRegistry
from klamm.zk.model import ops, paths

ROUNDS = 7
Change = Callable[[int], object]


def rows(partitions: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the longest step and the CPU time of each event, in milliseconds."""
    driver = CoreDriver(cluster(partitions))
    clock = StepClock()
    driver.on_step = clock.on_step
    driver.start()
    gc.collect()
    gc.freeze()
    for name, change in changes(driver):
        yield name, *least_ms(change, clock, driver)


def changes(driver: CoreDriver) -> Iterator[tuple[str, Change]]:
    process = driver.process
    tps = list(driver.controller.context.states.leadership)
    topics = [tp.topic for tp in tps if tp.partition == 0]
    yield "ISR change of one partition", lambda n: alter(driver, tps[n])
    yield (
        "topic with one partition created",
        lambda n: process(events.CreateTopics((events.CreatableTopic(f"new-{n}", 1, 3, (), ()),))),
    )
    yield (
        "one topic grown by one partition",
        lambda n: process(events.CreatePartitions((events.CreatablePartitions(topics[n], 11),))),
    )
    yield "topic with ten partitions deleted", lambda n: process(events.DeleteTopics((topics[-1 - n],)))
    yield "one partition moved", lambda n: process(events.ApiPartitionReassignment(((tps[200 + n], (1, 2)),)))
    yield "moves listed", lambda _: process(events.ListPartitionReassignments())
    yield "moves of one partition listed", lambda _: process(events.ListPartitionReassignments((tps[0],)))
    yield (
        "timer of the preferred leaders, none to elect",
        lambda _: process(events.AutoPreferredReplicaLeaderElection()),
    )
    yield "preferred leader of one partition elected", lambda _: process(events.ReplicaLeaderElection((tps[0],)))
    yield "znode watches: topics, nothing new", lambda _: process(events.TopicChange())
    yield "znode watches: one topic, nothing new", lambda _: process(events.PartitionModifications(topics[0]))
    yield "znode watches: brokers, nothing new", lambda _: process(events.BrokerChange())
    yield "znode watches: failed directories, none", lambda _: process(events.LogDirEventNotification())
    yield "unclean elections enabled for a topic", lambda _: process(events.TopicUncleanLeaderElectionEnable(topics[0]))
    yield "unclean elections enabled for all topics", lambda _: process(events.UncleanLeaderElectionEnable())
    yield "wait for unclean replicas is over, none", lambda _: process(events.UncleanReplicaWaitOver())
    yield (
        "broker without partitions registers",
        lambda n: (
            register(driver.tree, 10 + n),  # type: ignore[func-returns-value]
            process(events.BrokerChange()),
        ),
    )
    yield (
        "broker without partitions dies",
        lambda n: (
            driver.tree.multi(1, [ops.Delete(paths.broker_path(10 + n))], 0),
            process(events.BrokerChange()),
        ),
    )
    yield "gauges", lambda _: gauges(driver.controller)


def gauges(controller: KafkaController) -> None:
    registry = MetricsRegistry(SystemClock())
    ControllerMetrics(registry, controller)
    registry.exposition()


class StepClock:
    """CPU time of an event's longest step."""

    def __init__(self) -> None:
        self._begun = 0
        self._longest = 0

    def start(self) -> None:
        self._longest = 0
        self._begun = time.thread_time_ns()

    def on_step(self) -> None:
        now = time.thread_time_ns()
        self._longest, self._begun = max(self._longest, now - self._begun), now

    def longest_ms(self) -> float:
        self.on_step()
        return self._longest / 1_000_000


def least_ms(change: Change, clock: StepClock, driver: CoreDriver) -> tuple[float, float]:
    """All of the event, and its longest step."""
    times = []
    for number in range(ROUNDS):
        driver.sent = []  # freeing the requests of the event before is not part of this one
        clock.start()
        begun = time.thread_time_ns()
        change(number)
        total_ms = (time.thread_time_ns() - begun) / 1_000_000
        times.append((clock.longest_ms(), total_ms))
    step_ms, total_ms = min(times)
    return step_ms, total_ms
