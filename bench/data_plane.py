"""Rows of the data plane, the same for klamm and Kafka: produce, consume, end-to-end latency, memory after all of it.

Both clusters live through all rounds, and passes that are not counted come first, until the throughput stops rising: so
Kafka is measured with compiled code.
Every case has a topic of its own, which is deleted after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bench import kafka_tools, librdkafka
from bench.clusters import BenchCluster
from bench.report import Row

MIB: Final = 1 << 20
THROUGHPUT_GOAL, LATENCY_GOAL, MEMORY_GOAL = 0.7, 1.5, 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """How a topic is replicated and acknowledged, and how large its records are."""

    size: int
    replication_factor: int
    acks: str
    records: int

    def __str__(self) -> str:
        size = f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"
        return f"{size}, RF {self.replication_factor} acks {self.acks}"


CASES: Final = (
    Case(100, 1, "1", 300_000),
    Case(100, 3, "all", 300_000),
    Case(1024, 1, "1", 100_000),
    Case(1024, 3, "all", 100_000),
)
LATENCY_CASES: Final = (Case(100, 1, "1", 3_000), Case(100, 3, "all", 3_000))
JAVA_LATENCY: Final = Case(100, 3, "all", 3_000)
RATE: Final = 500

PASSES: Final = range(3, 10)
QUICK_PASSES: Final = range(1, 1)
STILL_RISING: Final = 1.05

Measure = Callable[[Case, BenchCluster, str, int], Iterator[Row]]
"""The case, the cluster, a topic of its own, and how many records."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    case: Case
    partitions: int
    measure: Measure

    def run(self, cluster: BenchCluster, topic: str, divisor: int) -> Iterator[Row]:
        """With a part of the case's records."""
        return self.measure(self.case, cluster, topic, self.case.records // divisor)


def steps() -> list[Step]:
    """In their order; each is run on both sides before the next."""
    six = librdkafka.PARTITIONS
    kinds = (("produce", _produce), ("consume", _consume))
    throughput = [Step(f"{name}, {case}", case, six, measure) for case in CASES for name, measure in kinds]
    latency = [Step(f"librdkafka latency, {case}", case, six, _latency) for case in LATENCY_CASES]
    return [*throughput, *latency, Step(f"Java latency, {JAVA_LATENCY}", JAVA_LATENCY, 1, _java_latency)]


def warm_up(cluster: BenchCluster, quick: bool) -> tuple[float, ...]:
    """Load the cluster until its throughput stops rising, so that a JVM has compiled what the rows need.

    Return the records per second of every pass. Both sides are loaded alike, and nothing of it counts.
    """
    latency = LATENCY_CASES[-1]
    topic = "warm-up-latency"
    rates = until_steady(lambda number: _warm_up_pass(cluster, number, quick), QUICK_PASSES if quick else PASSES)
    cluster.create_topic(topic, librdkafka.PARTITIONS, latency.replication_factor)
    records = latency.records // (10 if quick else 2)
    servers = cluster.bootstrap_servers
    librdkafka.run(
        "latency", bootstrap=servers, topic=topic, records=records, size=latency.size, acks=latency.acks, rate=RATE
    )
    cluster.delete_topic(topic)
    return rates


def until_steady(measure: Callable[[int], float], passes: range) -> tuple[float, ...]:
    """Repeat `measure` until two consecutive passes are at most 5 % faster than the best before them.

    `passes` bounds the number: at least `passes.start`, at most `passes.stop`.
    """
    rates: list[float] = []
    while len(rates) < passes.stop:
        rates.append(measure(len(rates)))
        if len(rates) >= max(3, passes.start) and max(rates[-2:]) <= STILL_RISING * max(rates[:-2]):
            break
    return tuple(rates)


def _warm_up_pass(cluster: BenchCluster, number: int, quick: bool) -> float:
    """Produce and consume every case once; records per second over all of them, with both clients' producers."""
    servers = cluster.bootstrap_servers
    seconds = records = 0.0
    for index, case in enumerate(CASES[-1:] if quick else CASES):
        os.sync()
        topic = f"warm-up-{number}-{index}"
        cluster.create_topic(topic, librdkafka.PARTITIONS, case.replication_factor)
        load = {"bootstrap": servers, "topic": topic, "records": case.records, "size": case.size}
        rates = [librdkafka.run("produce", **load, acks=case.acks), librdkafka.run("consume", **load)]
        records += 2 * case.records
        seconds += sum(case.records / each["records_per_s"] for each in rates)
        kafka_tools.produce(servers, topic, case.records // 2, case.size, case.acks)
        cluster.delete_topic(topic)
    return records / seconds


def memory(cluster: BenchCluster, when: str) -> Row:
    brokers = cluster.brokers
    mean = sum(cluster.rss_bytes(broker_id) for broker_id in brokers) / len(brokers)
    return Row(f"Resident memory of a broker, {when}", mean / MIB, "MB", goal=MEMORY_GOAL)


def _rate(what: str, client: str, case: Case, value: float) -> Row:
    return Row(f"{what}, {case}, {client}", value, "records/s", "higher", THROUGHPUT_GOAL)


def _produce(case: Case, cluster: BenchCluster, topic: str, records: int) -> Iterator[Row]:
    servers, size = cluster.bootstrap_servers, case.size
    produced = librdkafka.run("produce", bootstrap=servers, topic=topic, records=records, size=size, acks=case.acks)
    yield _rate("Produce", "librdkafka", case, produced["records_per_s"])
    yield _rate("Produce", "Java", case, kafka_tools.produce(servers, topic, records, size, case.acks))


def _consume(case: Case, cluster: BenchCluster, topic: str, records: int) -> Iterator[Row]:
    """Java's consumer, which is the faster one, reads twice as much.

    All partitions hold the same number of records. If one is longer, Java's consumer has a fetch of the other ones
    under way that waits for `fetch.max.wait.ms` each time it has read a part of the long one, with any broker: half a
    second per megabyte, so the rate would depend on how evenly the producer spread its records.
    """
    servers, size = cluster.bootstrap_servers, case.size
    librdkafka.run("fill", bootstrap=servers, topic=topic, records=2 * records, size=size, acks=case.acks)
    consumed = librdkafka.run("consume", bootstrap=servers, topic=topic, records=records, size=size)
    yield _rate("Consume", "librdkafka", case, consumed["records_per_s"])
    yield _rate("Consume", "Java", case, kafka_tools.consume(servers, topic, 2 * records))


def _latency(case: Case, cluster: BenchCluster, topic: str, records: int) -> Iterator[Row]:
    servers = cluster.bootstrap_servers
    figures = librdkafka.run(
        "latency", bootstrap=servers, topic=topic, records=records, size=case.size, acks=case.acks, rate=RATE
    )
    yield from _percentiles(f"End to end, {case}, {RATE}/s, librdkafka", figures)


def _java_latency(case: Case, cluster: BenchCluster, topic: str, records: int) -> Iterator[Row]:
    figures = kafka_tools.end_to_end(cluster.bootstrap_servers, topic, records, case.size, case.acks)
    yield from _percentiles(f"End to end, {case}, one at a time, Java", figures)


def _percentiles(what: str, figures: Mapping[str, float]) -> Iterator[Row]:
    for key, label, goal in (("p50", "p50", None), ("p99", "p99", LATENCY_GOAL), ("p999", "p99.9", None)):
        yield Row(f"{what}, {label}", figures[key], "ms", goal=goal)
