"""klamm beside Apache Kafka: the same rows, the same clients, the same machine, in turn.

`python -m bench --peer kafka` prints a table and writes the section `beside-kafka` of bench/RESULTS.md; `--quick` has
one round and fewer records.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import Producer

from bench import data_plane, idle_partitions, report
from bench.clusters import HEAP, BenchCluster, KafkaCluster, KlammCluster
from bench.kafka_distribution import VERSION, libraries
from bench.report import Row
from bench.scenario import Scenario
from klamm.errors import KlammError

T = TypeVar("T")
Side = type[KlammCluster] | type[KafkaCluster]

SECTION: Final = "beside-kafka"
PARTS: Final = ("start", "control", "data", "idle")
ROUNDS: Final = 3
START_GOAL: Final = 0.2
SIDES: Final[tuple[Side, ...]] = (KlammCluster, KafkaCluster)
QUICK_DIVISOR: Final = 4
LIMIT_S: Final = 20 * 60.0
"""No round begins that would go beyond."""
CONTROL_LIMIT_S: Final = 4 * 60.0
"""The part of it for the control plane."""


class Bench:
    """Collects rows of both sides; a step that fails on one side is reported and left empty, the others continue."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.rounds = 1 if quick else ROUNDS
        self.begun = time.monotonic()
        self.failures: list[str] = []
        self.warm_up: dict[str, tuple[float, ...]] = {}
        """By side, the records per second of every pass before the rows of the data plane."""
        self._rows: dict[str, list[list[Row]]] = {side.name: [] for side in SIDES}

    def record(self, side: str, what: str, measure: Callable[[], Iterable[Row]]) -> None:
        os.sync()  # what the side before has left to be written is not this one's load
        begun = time.perf_counter()
        rows: list[Row] = []
        try:
            for row in measure():
                rows.append(row)
        except (KlammError, OSError, TimeoutError) as error:
            self.failures.append(f"{what} on {side}: {str(error).splitlines()[0]}")
            print(f"  {side:5} {what} failed: {error}", flush=True)
        self._rows[side].append(rows)
        said = ", ".join(f"{report.number(row.value)} {row.unit}" for row in rows)
        print(f"  {side:5} {what}: {said} ({time.perf_counter() - begun:.1f} s)", flush=True)

    def rounds_in_time(self, rounds: int, limit: float) -> Iterator[int]:
        """As many as there should be, but none that would go beyond the limit; the first in any case."""
        for number in range(1 if self.quick else rounds):
            begun = time.monotonic()
            print(f"Round {number + 1}", flush=True)
            yield number
            if 2 * time.monotonic() - begun > limit:
                return

    def comparisons(self) -> list[report.Comparison]:
        return report.compare(self._rows)


def run_starts(bench: Bench) -> None:
    for brokers in (1, 3):
        for number in range(bench.rounds):
            for side in in_turn(SIDES, number):
                bench.record(side.name, f"start of {brokers}", partial(_start, side, brokers))


def _start(side: Side, brokers: int) -> Iterator[Row]:
    """From the start of the first process, ZooKeeper's among them, to the first acknowledged record."""
    begun = time.perf_counter()
    with side(brokers) as cluster:
        cluster.create_topic("first", 1, brokers)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
        acknowledged: list[object] = []
        producer.produce("first", b"first", on_delivery=lambda error, _: acknowledged.append(error))
        producer.flush(60)
        seconds = time.perf_counter() - begun
        if acknowledged != [None]:
            raise KlammError(f"The first record was not acknowledged: {acknowledged}")
        what = f"{brokers} broker{'s' if brokers > 1 else ''}"
        yield Row(f"Start to first acknowledged produce, {what}", seconds, "s", goal=START_GOAL)
        yield data_plane.memory(cluster, f"idle, {what}")


def run_control_plane(bench: Bench) -> None:
    """A fresh cluster for each scenario, round and side."""
    begun = time.monotonic()
    for scenario in control_plane_scenarios():
        for number in bench.rounds_in_time(scenario.rounds, begun + CONTROL_LIMIT_S):
            for side in in_turn(SIDES, number):
                bench.record(side.name, scenario.name, partial(_on_fresh_cluster, scenario, side, bench.quick))


def run_idle_partitions(bench: Bench) -> None:
    """Last: it takes the longest. Of each side, a cluster alone and one with idle partitions are visited in turn."""
    counts = idle_partitions.QUICK_COUNTS if bench.quick else idle_partitions.PEER_COUNTS
    passes = data_plane.QUICK_PASSES if bench.quick else data_plane.PASSES
    for side in SIDES:
        with ExitStack() as stack:
            clusters: dict[int, BenchCluster] = {count: side(3) for count in counts}
            for cluster in clusters.values():
                stack.enter_context(cluster)
            idle_partitions.prepare(clusters, passes)
            idle_s = idle_partitions.IDLE_S / (4 if bench.quick else 1)
            bench.record(side.name, "no load", partial(idle_partitions.without_load, clusters, idle_s))
            for number in range(1 if bench.quick else idle_partitions.PEER_ROUNDS):
                what = f"idle partitions, round {number + 1}"
                bench.record(side.name, what, partial(idle_partitions.one_round, clusters, number))


def control_plane_scenarios() -> Sequence[Scenario]:
    if importlib.util.find_spec("bench.control_plane.peer") is None:
        return ()
    scenarios: Sequence[Scenario] = importlib.import_module("bench.control_plane.peer").SCENARIOS
    return scenarios


def _on_fresh_cluster(scenario: Scenario, side: Side, quick: bool) -> Iterator[Row]:
    with side(scenario.brokers, scenario.configs) as cluster:
        yield from scenario.run(cluster, quick)


def run_data_plane(bench: Bench) -> None:
    """Both clusters are up all the time; one is idle while the other is measured."""
    with ExitStack() as stack:
        clusters: list[BenchCluster] = [side(3) for side in SIDES]
        for cluster in clusters:
            stack.enter_context(cluster)
            bench.warm_up[cluster.name] = data_plane.warm_up(cluster, bench.quick)
            said = ", ".join(report.number(rate) for rate in bench.warm_up[cluster.name])
            print(f"  {cluster.name:5} warm-up: {said} records/s", flush=True)
        for number in bench.rounds_in_time(ROUNDS, bench.begun + LIMIT_S):
            for index, step in enumerate(data_plane.steps()):
                for cluster in in_turn(clusters, number + index):
                    _step(bench, step, cluster, f"step-{index}-{number}")
        for cluster in clusters:
            bench.record(cluster.name, "memory", partial(_memory_at_the_end, cluster))


def _step(bench: Bench, step: data_plane.Step, cluster: BenchCluster, topic: str) -> None:
    cluster.create_topic(topic, step.partitions, step.case.replication_factor)
    divisor = QUICK_DIVISOR if bench.quick else 1
    bench.record(cluster.name, step.name, partial(step.run, cluster, topic, divisor))
    cluster.delete_topic(topic)


def _memory_at_the_end(cluster: BenchCluster) -> Iterator[Row]:
    yield data_plane.memory(cluster, "after all rounds")


def in_turn(sides: Sequence[T], number: int) -> Sequence[T]:
    """The order changes from one to the next, so that neither side always comes after the other."""
    return sides if number % 2 == 0 else list(reversed(sides))


def text(bench: Bench, load_at_start: float, minutes: float) -> str:
    """The section for RESULTS.md."""
    rounds = "one round" if bench.quick else f"up to {bench.rounds} rounds"
    lines = [
        "## Beside Apache Kafka",
        "",
        f"`make bench PEER=kafka{' QUICK=1' if bench.quick else ''}`, {minutes:.0f} minutes. Apache Kafka {VERSION} in"
        f" ZooKeeper mode, a JVM of `{HEAP}` per broker, with the same settings as klamm's brokers; klamm's embedded",
        "ZooKeeper on both sides; the same clients on the same machine, in turn. Medians of"
        f" {rounds}; the spread is (largest - smallest) / median, klamm's / Kafka's. A ratio is klamm / Kafka.",
        "",
        f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
        "Clients, brokers and ZooKeeper share its cores. Dirty pages are written out (`sync`) before every step.",
        *_warm_up_note(bench.warm_up),
        "",
        report.comparison_table(bench.comparisons()),
    ]
    if bench.failures:
        lines += ["", "Failed: " + "; ".join(bench.failures) + "."]
    return "\n".join(lines)


def _warm_up_note(rates: Mapping[str, Sequence[float]]) -> list[str]:
    """How many passes each side had before the data plane was measured, and how much faster it became."""
    if not rates:
        return []
    said = [
        f"{side}: {len(found)} passes, {report.number(found[0])} to {report.number(max(found))} records/s"
        for side, found in rates.items()
    ]
    return ["Each side was loaded until its throughput stopped rising, before its rows: " + "; ".join(said) + "."]


def run(quick: bool, parts: Sequence[str] = PARTS, *, write: bool = True) -> int:
    """The number of steps that failed."""
    libraries()
    load_at_start = report.load_average()
    bench = Bench(quick)
    runs = {
        "start": run_starts,
        "control": run_control_plane,
        "data": run_data_plane,
        "idle": run_idle_partitions,
    }
    for part in parts:
        print(f"# {part}", flush=True)
        runs[part](bench)
    section = text(bench, load_at_start, (time.monotonic() - bench.begun) / 60)
    print(section)
    if write:
        report.write_section(SECTION, section)
    return len(bench.failures)
