"""Latency beside idle partitions, and their cost while nothing happens: `python -m bench.idle_partitions`.

Clusters of three brokers with replication factor 3, a librdkafka client outside of them. One cluster has nothing else,
the others have idle partitions of other topics. All of them run all the time, and short rounds visit them in turn. At
1,000 records per second a stall of 50 ms decides the p99 of a round of 5 s, so a single round says little: a row has
the median and the quartiles of all rounds, and a ratio is the median of the ratios of each round. The goals compare
klamm with itself: cost follows the change. With `--peer kafka` the part `idle` of the comparison measures the same
rows with the same rounds on both sides, for fewer partitions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from bench import data_plane, librdkafka, report
from bench.clusters import BenchCluster, KlammCluster
from bench.processes import cpu_seconds
from bench.report import Row

SECTION: Final = "idle-partitions"
COUNTS: Final = (0, 2_000, 10_000)
PEER_COUNTS: Final = (0, 2_000)
QUICK_COUNTS: Final = (0, 500)
RATIO_GOALS: Final = {2_000: 1.2, 10_000: 1.5}
CPU_GOAL: Final = 3.0
"""Percent of a core per broker beside 10,000 idle partitions."""
RATE: Final = 1_000
LATENCY: Final = f"End to end, {RATE}/s, RF 3 acks all"
RECORDS: Final = 5_000
"""Of a round."""
ROUNDS: Final = 10
PEER_ROUNDS: Final = 3
SIZE: Final = 100
PER_TOPIC: Final = 500
IDLE_S: Final = 20.0
SETTLE_S: Final = 5.0
Clusters = Mapping[int, BenchCluster]
"""By their number of idle partitions."""


def prepare(clusters: Clusters, passes: range) -> None:
    """Create the idle partitions and repeat the load until it stops getting faster."""
    for count, cluster in clusters.items():
        for first in range(0, count, PER_TOPIC):
            cluster.create_topic(f"idle-{first}", min(PER_TOPIC, count - first), 3)
        warm_up(lambda number, cluster=cluster: _latency(cluster, f"warm-up-{number}", RECORDS // 2), passes)  # type: ignore[misc]
    time.sleep(SETTLE_S)


def without_load(clusters: Clusters, seconds: float) -> Iterator[Row]:
    """All clusters at the same time."""
    before = {count: _all_cpu_s(cluster) for count, cluster in clusters.items()}
    begun = time.monotonic()
    time.sleep(seconds)
    elapsed_s = time.monotonic() - begun
    for count, cluster in clusters.items():
        used_s = _all_cpu_s(cluster) - before[count]
        yield Row(_name("CPU of a broker without load", count), 100 * used_s / elapsed_s / len(cluster.brokers), "%")


def one_round(clusters: Clusters, number: int, records: int = RECORDS) -> Iterator[Row]:
    """The rows of one round; the next one begins with another cluster."""
    counts = list(clusters)
    first = number % len(counts)
    for count in (*counts[first:], *counts[:first]):
        cluster = clusters[count]
        before = _all_cpu_s(cluster)
        figures = _latency(cluster, f"busy-{number}", records)
        used_ms = 1000 * (_all_cpu_s(cluster) - before)
        yield Row(_name("CPU of all brokers per 1,000 records", count), used_ms / records * 1000, "ms")
        for key in ("p50", "p99"):
            yield Row(_name(f"{LATENCY}, {key}", count), figures[key], "ms")


def warm_up(latency: Callable[[int], Mapping[str, float]], passes: range) -> tuple[float, ...]:
    """Repeat `latency` until its median stops falling, so that a JVM has compiled what the rows need. None counts."""
    return data_plane.until_steady(lambda number: 1 / latency(number)["p50"], passes)


def _name(what: str, count: int) -> str:
    return f"{what}, {f'beside {count:,} idle partitions' if count else 'alone'}"


def _latency(cluster: BenchCluster, topic: str, records: int) -> dict[str, float]:
    """The topic is new, because the consumer reads it from its beginning; it goes afterwards."""
    os.sync()  # else pages of the step before are written out meanwhile
    cluster.create_topic(topic, librdkafka.PARTITIONS, 3)
    options = {"topic": topic, "records": records, "size": SIZE, "acks": "all", "rate": RATE}
    figures = dict(librdkafka.run("latency", bootstrap=cluster.bootstrap_servers, **options))
    cluster.delete_topic(topic)
    return figures


def _all_cpu_s(cluster: BenchCluster) -> float:
    return sum(cpu_seconds(cluster.pid(broker)) for broker in cluster.brokers)


def table(rounds: Sequence[Iterable[Row]]) -> str:
    """Each row beside the one of the same name alone: median and quartiles of the rounds."""
    rows: dict[str, list[Row]] = {}
    for row in sorted((row for rows in rounds for row in rows), key=lambda row: _count(row.name)):
        rows.setdefault(row.name, []).append(row)
    lines = ["| | median | quartiles | unit | beside / alone | quartiles | goal |", "|---|---|---|---|---|---|---|"]
    for name, found in rows.items():
        values = [row.value for row in found]
        count = _count(name)
        alone = [row.value for row in rows.get(_name(name.partition(", beside ")[0], 0), ())]
        ratios = [a / b for a, b in zip(values, alone, strict=False)] if count and found[0].unit != "%" else []
        cells = (*_quartiles(values), found[0].unit, *_quartiles(ratios), _goal(found[0], count))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _count(name: str) -> int:
    beside = name.partition(", beside ")[2]
    return int(beside.split()[0].replace(",", "")) if beside else 0


def _quartiles(values: Sequence[float]) -> tuple[str, str]:
    """The median, and the quartiles around it."""
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values), ""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f}", f"{low:.2f} to {high:.2f}"


def _goal(row: Row, count: int) -> str:
    if row.unit == "%":
        return f"<= {CPU_GOAL:g} %" if count == COUNTS[-1] else ""
    is_latency = row.name.startswith(LATENCY)
    return f"<= {RATIO_GOALS[count]:g}" if is_latency and count in RATIO_GOALS else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.idle_partitions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and partitions; RESULTS.md is not written")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    load_at_start = report.load_average()
    counts, number_of_rounds = (QUICK_COUNTS, 2) if args.quick else (COUNTS, args.rounds)
    with ExitStack() as stack:
        clusters = {count: stack.enter_context(KlammCluster(3)) for count in counts}
        prepare(clusters, data_plane.QUICK_PASSES if args.quick else data_plane.PASSES)
        rounds = [list(without_load(clusters, IDLE_S / (4 if args.quick else 1)))]
        for number in range(number_of_rounds):
            rounds.append(list(one_round(clusters, number)))
            said = ", ".join(f"{row.value:.2f} ({row.name.removeprefix(LATENCY)[2:]})" for row in rounds[-1])
            print(f"  round {number + 1}: {said}", flush=True)
    lines = [
        "## Beside idle partitions",
        "",
        f"`python -m bench.idle_partitions`, {number_of_rounds} rounds of {RECORDS:,} records. Every number of idle",
        "partitions has a cluster of its own, and a round visits all of them. Ratios are those of the same round.",
        f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
        "",
        table(rounds),
    ]
    print("\n".join(lines))
    if not args.quick:
        report.write_section(SECTION, "\n".join(lines))
    sys.exit(0)


if __name__ == "__main__":
    main()
