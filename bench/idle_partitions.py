"""Latency beside idle partitions, and their cost while nothing happens: `python -m bench.idle_partitions`.

Three brokers, replication factor 3, a librdkafka client outside of them. The same topic is measured alone and beside
more and more idle partitions of other topics. The goals compare klamm with itself: cost follows the change.
With `--peer kafka` the part `idle` of the comparison measures the same rows on both sides, for fewer partitions.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import data_plane, librdkafka, report
from bench.clusters import BenchCluster, KlammCluster
from bench.report import Row
from bench.scenario import Scenario

SECTION: Final = "idle-partitions"
COUNTS: Final = (0, 2_000, 10_000)
PEER_COUNTS: Final = (0, 2_000)
QUICK_COUNTS: Final = (0, 500)
RATIO_GOALS: Final = {2_000: 1.2, 10_000: 1.5}
CPU_GOAL: Final = 3.0
"""Percent of a core per broker beside 10,000 idle partitions."""
RATE: Final = 1_000
LATENCY: Final = f"End to end, {RATE}/s, RF 3 acks all"
RECORDS: Final = 20_000
SIZE: Final = 100
PER_TOPIC: Final = 500
IDLE_S: Final = 20.0
SETTLE_S: Final = 5.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def measure(cluster: BenchCluster, counts: Sequence[int], records: int, idle_s: float) -> Iterator[Row]:
    """The rows for each number of idle partitions; idle topics are added, never removed."""
    passes = data_plane.PASSES if records > RECORDS // 10 else data_plane.QUICK_PASSES
    warm_up(lambda number: _latency(cluster, f"warm-up-{number}", records // 4), passes)
    idle = 0
    for count in counts:
        while idle < count:
            partitions = min(PER_TOPIC, count - idle)
            cluster.create_topic(f"idle-{idle}", partitions, 3)
            idle += partitions
        time.sleep(SETTLE_S)
        yield Row(_name("CPU of a broker without load", count), _cpu_percent(cluster, idle_s), "%")
        before = _all_cpu_s(cluster)
        figures = _latency(cluster, f"busy-{count}", records)
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


def _cpu_percent(cluster: BenchCluster, seconds: float) -> float:
    """The mean of all brokers."""
    before = _all_cpu_s(cluster)
    begun = time.monotonic()
    time.sleep(seconds)
    return 100 * (_all_cpu_s(cluster) - before) / (time.monotonic() - begun) / len(cluster.brokers)


def _all_cpu_s(cluster: BenchCluster) -> float:
    return sum(_cpu_s(cluster.pid(broker)) for broker in cluster.brokers)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _beside_kafka(cluster: BenchCluster, quick: bool) -> Iterator[Row]:
    counts = QUICK_COUNTS if quick else PEER_COUNTS
    return measure(cluster, counts, RECORDS // (10 if quick else 2), IDLE_S / 2)


SCENARIO: Final = Scenario("idle partitions", _beside_kafka, rounds=1)


def table(rows: Sequence[Row]) -> str:
    """Each row beside the one of the same name alone."""
    alone = {row.name.removesuffix(", alone"): row.value for row in rows if row.name.endswith(", alone")}
    lines = ["| | value | unit | beside / alone | goal |", "|---|---|---|---|---|"]
    for row in rows:
        what, _, beside = row.name.rpartition(", ")
        if ", beside " in row.name:
            what, _, beside = row.name.partition(", beside ")
        count = int(beside.split()[0].replace(",", "")) if beside != "alone" else 0
        ratio = "" if row.unit == "%" or not count else f"{row.value / alone[what]:.2f}"
        lines.append(f"| {row.name} | {row.value:.2f} | {row.unit} | {ratio} | {_goal(row, count)} |")
    return "\n".join(lines)


def _goal(row: Row, count: int) -> str:
    if row.unit == "%":
        return f"<= {CPU_GOAL:g} %" if count == COUNTS[-1] else ""
    is_latency = row.name.startswith(LATENCY)
    return f"<= {RATIO_GOALS[count]:g}" if is_latency and count in RATIO_GOALS else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.idle_partitions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and partitions; RESULTS.md is not written")
    args = parser.parse_args()
    load_at_start = report.load_average()
    rows: list[Row] = []
    with KlammCluster(3) as cluster:
        counts, records = (QUICK_COUNTS, RECORDS // 10) if args.quick else (COUNTS, RECORDS)
        for row in measure(cluster, counts, records, IDLE_S / (4 if args.quick else 1)):
            rows.append(row)
            print(f"  {row.name}: {row.value:.2f} {row.unit}", flush=True)
    lines = [
        "## Beside idle partitions",
        "",
        f"`python -m bench.idle_partitions`. Machine: {report.machine()}. {report.load_note(load_at_start)}",
        "",
        table(rows),
    ]
    print("\n".join(lines))
    if not args.quick:
        report.write_section(SECTION, "\n".join(lines))
    sys.exit(0)


if __name__ == "__main__":
    main()
