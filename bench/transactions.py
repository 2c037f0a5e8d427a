"""Transactions on klamm beside Apache Kafka: `python -m bench.transactions`, or `python -m bench --peer kafka`.

Transactions per second of 1, 10 and 100 partitions, the latency that a commit adds, the throughput of a transactional
producer that commits every 100 ms, and reading its topic with `read_committed`. Three brokers on each side, replication
factor 3. Both clusters are up all the time; one is idle while the other is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench import report, transactional_load
from bench.clusters import HEAP, BenchCluster
from bench.kafka_distribution import VERSION, libraries
from bench.peer import QUICK_DIVISOR, ROUNDS, SIDES, Bench, in_turn
from bench.report import Row

SECTION: Final = "transactions"
GOAL: Final = 1.0
PRODUCERS: Final = 4
LIMIT_S: Final = 10 * 60.0

Measure = Callable[[BenchCluster, str, int, int], Iterator[Row]]
"""The cluster, a topic of its own, its partitions, and how many transactions or records."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    partitions: int
    count: int
    measure: Measure


def steps() -> list[Step]:
    return [
        Step("transactions of 1 partition", 1, 2_000, _transactions),
        Step("transactions of 10 partitions", 10, 800, _transactions),
        Step("transactions of 100 partitions", 100, 200, _transactions),
        Step("commit", 1, 400, _commit),
        Step("commits every 100 ms", 6, 200_000, _stream),
    ]


def _transactions(cluster: BenchCluster, topic: str, partitions: int, count: int) -> Iterator[Row]:
    servers = cluster.bootstrap_servers
    figures = transactional_load.run(
        "transactions", bootstrap=servers, topic=topic, partitions=partitions, count=count, producers=PRODUCERS
    )
    what = f"{partitions} partition{'s' if partitions > 1 else ''}"
    name = f"Transactions of {what}, {PRODUCERS} producers"
    yield Row(name, figures["transactions_per_s"], "transactions/s", "higher", GOAL)


def _commit(cluster: BenchCluster, topic: str, partitions: int, count: int) -> Iterator[Row]:
    figures = transactional_load.run(
        "commit", bootstrap=cluster.bootstrap_servers, topic=topic, partitions=partitions, count=count
    )
    yield Row("A commit after acknowledged records, p50", figures["commit_p50"], "ms", goal=GOAL)
    yield Row("A commit after acknowledged records, p99", figures["commit_p99"], "ms", goal=GOAL)
    yield Row("For comparison: a record, acks all, no transaction, p50", figures["produce_p50"], "ms")


def _stream(cluster: BenchCluster, topic: str, partitions: int, count: int) -> Iterator[Row]:
    """The reader gets the topic of the writer, so the two are one step."""
    options = {"bootstrap": cluster.bootstrap_servers, "topic": topic, "partitions": partitions}
    written = transactional_load.run("stream", **options, count=count, size=1024)
    rate = written["records_per_s"]
    yield Row("Transactional produce, 1 KiB, commits every 100 ms", rate, "records/s", "higher", GOAL)
    read = transactional_load.run("read", **options, count=int(written["committed"]), size=1024)
    name = "Consume with read_committed, every tenth transaction aborted"
    yield Row(name, read["records_per_s"], "records/s", "higher", GOAL)


def measure(bench: Bench) -> None:
    begun = time.monotonic()
    with ExitStack() as stack:
        clusters: list[BenchCluster] = [side(3) for side in SIDES]
        for cluster in clusters:
            stack.enter_context(cluster)
            _warm_up(cluster, bench.quick)
        for number in bench.rounds_in_time(ROUNDS, begun + LIMIT_S):
            for index, step in enumerate(steps()):
                for cluster in in_turn(clusters, number + index):
                    _step(bench, step, cluster, f"txn-{index}-{number}")


def _warm_up(cluster: BenchCluster, quick: bool) -> None:
    """So that a JVM has compiled what the rows need, and the coordinators are found. Nothing of it counts."""
    cluster.create_topic("warm-up", 6, 3)
    for mode, count in (("transactions", 100 if quick else 500), ("stream", 20_000 if quick else 100_000)):
        transactional_load.run(
            mode, bootstrap=cluster.bootstrap_servers, topic="warm-up", partitions=6, count=count, producers=PRODUCERS
        )
    cluster.delete_topic("warm-up")


def _step(bench: Bench, step: Step, cluster: BenchCluster, topic: str) -> None:
    cluster.create_topic(topic, step.partitions, 3)
    count = step.count // (QUICK_DIVISOR if bench.quick else 1)
    bench.record(cluster.name, step.name, partial(step.measure, cluster, topic, step.partitions, count))
    cluster.delete_topic(topic)


def text(bench: Bench, load_at_start: float, minutes: float) -> str:
    """The section for RESULTS.md."""
    rounds = "one round" if bench.quick else f"up to {bench.rounds} rounds"
    lines = [
        "## Transactions beside Apache Kafka",
        "",
        f"`python -m bench.transactions{' --quick' if bench.quick else ''}`, {minutes:.0f} minutes. librdkafka's"
        f" transactional producer on three brokers of each kind, RF 3; Apache Kafka {VERSION} in ZooKeeper mode",
        f"with `{HEAP}` per broker and the same settings. Medians of {rounds}. A transaction writes one record of 100"
        " bytes to each of its partitions. A ratio is klamm / Kafka.",
        "",
        f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
        f"At the end the load average was {report.load_average():.1f}; it contains the bench itself.",
        "",
        report.comparison_table(bench.comparisons()),
    ]
    if bench.failures:
        lines += ["", "Failed: " + "; ".join(bench.failures) + "."]
    return "\n".join(lines)


def run(quick: bool, *, write: bool = True) -> int:
    """The number of steps that failed."""
    libraries()
    load_at_start = report.load_average()
    bench = Bench(quick)
    print("# transactions", flush=True)
    measure(bench)
    section = text(bench, load_at_start, (time.monotonic() - bench.begun) / 60)
    print(section)
    if write:
        report.write_section(SECTION, section)
    return len(bench.failures)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, fewer transactions")
    sys.exit(1 if run(parser.parse_args().quick) else 0)


if __name__ == "__main__":
    main()
