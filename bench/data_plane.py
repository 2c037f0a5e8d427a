"""Rows of the data plane, the same for klamm and Kafka: produce, consume, end-to-end latency, memory after all of it.

Both clusters live through all rounds, and a first pass is not counted, so that Kafka is measured with compiled code.
Every case has a topic of its own, which is deleted after it.
"""

from __future__ import annotations

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


def warm_up(cluster: BenchCluster, quick: bool) -> None:
    """So much work that a JVM has compiled what the rows need; the same for both sides, and not counted."""
    servers, latency = cluster.bootstrap_servers, LATENCY_CASES[-1]
    loads = [(mode, case) for case in (CASES[-1:] if quick else CASES * 2) for mode in ("produce", "consume")]
    for number, (mode, case) in enumerate([*loads, ("latency", latency)]):
        topic = f"warm-up-{number - (mode == 'consume')}"
        if mode != "consume":
            cluster.create_topic(topic, librdkafka.PARTITIONS, case.replication_factor)
        records = case.records if mode != "latency" else case.records // (10 if quick else 2)
        librdkafka.run(mode, bootstrap=servers, topic=topic, records=records, size=case.size, acks=case.acks)
        if mode != "produce":
            cluster.delete_topic(topic)


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

    All partitions hold the same number of records. Where one is longer, Java's consumer has a fetch of the other ones
    under way that waits for `fetch.max.wait.ms` each time it has read a part of the long one, whoever the broker is:
    half a second a megabyte, so that the rate would tell how evenly the producer's dice fell.
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
