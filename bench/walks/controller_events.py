"""CPU time of the controller's events in a large cluster: those that change little or nothing, and those of a broker.

Measured in this process, without sockets: the controller's core handles the event, the tree answers, and the requests
are encoded. The least of some rounds counts. A step ends where the control loop would do other work. The tree's own
time is part of the whole event, but not of a step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Final

from bench.control_plane.core import CoreDriver, cluster, register
from bench.control_plane.one_change import alter
from klamm.clock import SystemClock
from klamm.controller import events
from klamm.controller.controller import KafkaController
from klamm.controller.metrics import ControllerMetrics
from klamm.metrics import MetricsRegistry
from klamm.zk.model import ops, paths
from klamm.zk.model.znodes import encode_log_dir_event

ROUNDS = 7
ROUNDS_OF_BROKERS = 3
BROKER = 3
EVENTS_OF_BROKERS: Final = "events of a broker with all partitions"
Change = Callable[[int], object]


def rows(partitions: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the longest step and the CPU time of each event, in milliseconds."""
    driver = CoreDriver(cluster(partitions))
    clock = StepClock()
    driver.on_step, driver.on_answer = clock.on_step, clock.on_answer
    driver.start()
    gc.collect()
    gc.freeze()
    for name, change in changes(driver):
        yield name, *least_ms(change, clock, driver)


def events_of_brokers(partitions: int) -> Iterator[tuple[str, float, float]]:
    """Events of a broker with a replica of every partition; it leads a third of them. Each round has its own cluster,
    because an event changes all of it.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS_OF_BROKERS):
        for events_of_cluster in (fails_over, changes_often, shuts_down):
            driver = CoreDriver(cluster(partitions))
            clock = StepClock()
            driver.on_step, driver.on_answer = clock.on_step, clock.on_answer
            gc.collect()
            gc.freeze()
            for name, change in events_of_cluster(driver):
                found.setdefault(name, []).append(time_of(change, clock, driver))
    for name, times in found.items():
        yield name, *min(times)


def fails_over(driver: CoreDriver) -> Iterator[tuple[str, Callable[[], object]]]:
    """The controller is elected when the broker is dead."""
    driver.tree.multi(1, [ops.Delete(paths.broker_path(BROKER))], 0)
    yield "failover, one of three brokers dead", driver.start


def changes_often(driver: CoreDriver) -> Iterator[tuple[str, Callable[[], object]]]:
    driver.start()
    event = ops.Create(paths.log_dir_event_path(), encode_log_dir_event(BROKER), sequential=True)
    driver.tree.multi(1, [event], 0)
    yield (
        "broker with all partitions reports a failed directory",
        lambda: driver.process(events.LogDirEventNotification()),
    )
    driver.tree.multi(1, [ops.Delete(paths.broker_path(BROKER))], 0)
    yield "broker with all partitions dies", lambda: driver.process(events.BrokerChange())
    register(driver.tree, BROKER)
    yield "broker with all partitions registers again", lambda: driver.process(events.BrokerChange())


def shuts_down(driver: CoreDriver) -> Iterator[tuple[str, Callable[[], object]]]:
    driver.start()
    yield "controlled shutdown of a third of the leaders", lambda: driver.process(events.ControlledShutdown(BROKER))


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

    def on_answer(self) -> None:
        self._begun = time.thread_time_ns()

    def longest_ms(self) -> float:
        self.on_step()
        return self._longest / 1_000_000


def least_ms(change: Change, clock: StepClock, driver: CoreDriver) -> tuple[float, float]:
    """All of the event, and its longest step."""
    return min(time_of(lambda n=number: change(n), clock, driver) for number in range(ROUNDS))  # type: ignore[misc]


def time_of(change: Callable[[], object], clock: StepClock, driver: CoreDriver) -> tuple[float, float]:
    driver.sent = []  # freeing the requests of the event before is not part of this one
    clock.start()
    begun = time.thread_time_ns()
    change()
    total_ms = (time.thread_time_ns() - begun) / 1_000_000
    return clock.longest_ms(), total_ms
