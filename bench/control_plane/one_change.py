"""Cost follows the change: one partition changed in a small and in a large cluster, on the controller and in a cache.

Measured in this process, without sockets: the controller's core answers an AlterPartition and encodes what it sends; a
`MetadataCache` applies an update of one partition. Both in CPU time.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from bench.control_plane.core import BROKERS, CoreDriver, cluster
from bench.control_plane.seeding import topic_names
from bench.report import Row
from klamm.controller.events import AlterPartition, AlterPartitionItem
from klamm.metadata import MetadataCache, MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import BrokerEndPoints, TopicPartition

SMALL: Final = 1_000
LARGE: Final = 100_000
ROUNDS: Final = 400
GOAL: Final = 2.0
PARTITIONS_PER_TOPIC: Final = 10


def controller_us(partitions: int, rounds: int = ROUNDS) -> float:
    """The median CPU time of one AlterPartition of one partition: decision, write in the tree, batch, encoding."""
    driver = CoreDriver(cluster(partitions, PARTITIONS_PER_TOPIC))
    driver.start()
    context = driver.controller.context
    tps = list(context.states.leadership)
    step = max(1, len(tps) // rounds)

    def change(number: int) -> None:
        tp = tps[number * step % len(tps)]
        alter(driver, tp)

    return _median_us(change, rounds)


def alter(driver: CoreDriver, tp: TopicPartition) -> None:
    """The leader takes a follower out of the ISR, or lets it back in."""
    context = driver.controller.context
    state = context.states.leadership[tp].leader_and_isr
    isr = state.isr[:-1] if len(state.isr) == len(BROKERS) else context.topics.assignment(tp).replicas
    item = AlterPartitionItem(
        topic=tp.topic,
        topic_id=context.topics.ids[tp.topic],
        partition=tp.partition,
        leader_epoch=state.leader_epoch,
        new_isr=isr,
        partition_epoch=state.partition_epoch,
    )
    broker = context.brokers.live_or_shutting_down[state.leader]
    driver.process(AlterPartition(state.leader, broker.epoch, (item,)))
    if context.states.leadership[tp].leader_and_isr.isr != isr:
        raise RuntimeError(f"the change of {tp} was refused: {driver.replies}")


def cache_us(partitions: int, rounds: int = ROUNDS) -> float:
    """The median CPU time of an update of one partition."""
    cache = MetadataCache(1)
    names = topic_names(partitions // PARTITIONS_PER_TOPIC)
    cache.update(_update([(name, p, 0) for name in names for p in range(PARTITIONS_PER_TOPIC)]))
    step = max(1, len(names) // rounds)

    def change(number: int) -> None:
        cache.update(_update([(names[number * step % len(names)], 0, number + 1)]))

    return _median_us(change, rounds)


def _update(states: list[tuple[str, int, int]]) -> MetadataUpdate:
    topics: dict[str, list[PartitionState]] = {}
    for name, partition, epoch in states:
        state = PartitionState(name, partition, 1, 1, epoch, BROKERS, epoch, BROKERS, ())
        topics.setdefault(name, []).append(state)
    updates = tuple(TopicUpdate(name, tuple(them), _topic_id(name)) for name, them in topics.items())
    return MetadataUpdate(1, 1, tuple(BrokerEndPoints(b, ()) for b in BROKERS), updates)


def _topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16)[-16:])


def _median_us(change: Callable[[int], None], rounds: int) -> float:
    for number in range(20):
        change(number)
    gc.collect()
    gc.freeze()
    times = []
    for number in range(rounds):
        begun = time.thread_time_ns()
        change(number + 20)
        times.append((time.thread_time_ns() - begun) / 1000)
    gc.unfreeze()
    return statistics.median(times)


def rows(small: int = SMALL, large: int = LARGE, rounds: int = ROUNDS) -> Iterator[Row]:
    for what, measure in (("controller", controller_us), ("MetadataCache", cache_us)):
        times = [measure(partitions, rounds) for partitions in (small, large)]
        for partitions, us in zip((small, large), times, strict=True):
            yield Row(f"One partition changed among {partitions:,}, {what}", us, "us CPU")
        against = f"{large:,} against {small:,} (goal {GOAL:g})"
        yield Row(f"One partition changed, {what}: {against}", times[1] / times[0], "x")
