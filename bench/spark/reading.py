"""Batch reads of one topic: by Fetch, from the segment files, and by Spark's own connector, in turn.

The query is `SELECT count(*), sum(length(value))`, so that every value reaches Spark; "all columns" writes every
column of every row into Spark's noop sink.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from bench.spark import sparks, topics
from bench.spark.figures import CONNECTOR, KLAMM, Figure, Goal, in_turn, rates
from bench.spark.processes import BROKER, JVM, WORKER, cpu_s
from klamm.errors import KlammError

WAYS: Final[dict[str, dict[str, str]]] = {
    "fetch": {"readMode": "fetch"},
    "direct": {"readMode": "direct"},
    "fetch, columns=value": {"readMode": "fetch", "columns": "value"},
}
"""klamm's ways; the last one is not the default, and not for the other queries."""
PLAIN: Final = ("fetch", "direct")
SIZES: Final = ((100, "100 B", 9_000_000), (1024, "1 KiB", 1_200_000))
GOALS: Final = {("fetch", 100): 2.0, ("direct", 100): 3.0}
RATIO: Final = 3.0
MIB: Final = 1 << 20


def figures(bench: sparks.Bench) -> Iterator[Figure]:
    bench.cluster.create_topic("read-nothing", topics.PARTITIONS, 1)
    found = in_turn({side: partial(_nothing_seconds, bench, side) for side in bench.sides}, bench.rounds)
    yield Figure("A query over nothing, 6 partitions", "s", found[KLAMM], found.get(CONNECTOR, ()))
    for value_bytes, size, count in SIZES:
        topic = f"read-{value_bytes}"
        rows = topics.fill(bench.cluster, topic, value_bytes, count // bench.scale)
        sums = partial(_sum_seconds, bench, topic, rows, value_bytes)
        found = _measured(bench, WAYS, sums, bench.rounds)
        mib = rows * (value_bytes + topics.KEY_BYTES) / MIB
        for way in WAYS:
            goal = Goal(least=GOALS.get((way, value_bytes)), ratio=RATIO) if way in PLAIN else Goal()
            yield _figure(f"Read {size}, {way}", "M rows/s", rows / 1e6, found, way, goal)
            yield _figure(f"Read {size}, {way}", "MiB/s", mib, found, way, Goal())
        if value_bytes == SIZES[0][0]:
            yield from _cpu_figures(bench, size, rows, sums)
        if value_bytes == SIZES[0][0] and not bench.is_quick:
            found = _measured(bench, PLAIN, partial(_noop_seconds, bench, topic), min(3, bench.rounds))
            for way in PLAIN:
                yield _figure(f"Read {size}, {way}, all columns", "M rows/s", rows / 1e6, found, way, Goal())


def _cpu_figures(
    bench: sparks.Bench, size: str, rows: int, seconds: Callable[[str, dict[str, str]], float]
) -> Iterator[Figure]:
    """Where the time goes: one more read each way, by the CPU time of the processes."""
    found = {way: _cpu_ns(rows, partial(seconds, KLAMM, WAYS[way])) for way in PLAIN}
    beside = _cpu_ns(rows, partial(seconds, CONNECTOR, {})) if bench.has_connector else {}
    for way in PLAIN:
        for kind in (JVM, WORKER, BROKER):
            connector = [beside[kind]] if beside.get(kind) else []
            yield Figure(f"Read {size}, {way}: CPU of {kind}", "ns a row", [found[way].get(kind, 0.0)], connector)


def _cpu_ns(rows: int, run: Callable[[], float]) -> dict[str, float]:
    before = cpu_s(os.getpid())
    run()
    after = cpu_s(os.getpid())
    return {kind: (used - before.get(kind, 0.0)) / rows * 1e9 for kind, used in after.items()}


def _measured(
    bench: sparks.Bench, ways: Iterable[str], seconds: Callable[[str, dict[str, str]], float], rounds: int
) -> dict[str, list[float]]:
    measures = {way: partial(seconds, KLAMM, WAYS[way]) for way in ways}
    if bench.has_connector:
        measures[CONNECTOR] = partial(seconds, CONNECTOR, {})
    return in_turn(measures, rounds)


def _figure(name: str, unit: str, amount: float, found: dict[str, list[float]], way: str, goal: Goal) -> Figure:
    return Figure(name, unit, rates(amount, found, way), rates(amount, found, CONNECTOR), goal)


def _sum_seconds(
    bench: sparks.Bench, topic: str, rows: int, value_bytes: int, format_: str, options: dict[str, str]
) -> float:
    frame = sparks.batch(bench.spark, format_, bench.servers, topic, **options)
    begun = time.perf_counter()
    answer = frame.selectExpr("count(*)", "sum(length(value))").first()
    seconds = time.perf_counter() - begun
    if answer is None or tuple(answer) != (rows, rows * value_bytes):
        raise KlammError(f"{format_} gave {answer} for {rows} rows of {value_bytes} bytes.")
    return seconds


def _noop_seconds(bench: sparks.Bench, topic: str, format_: str, options: dict[str, str]) -> float:
    frame = sparks.batch(bench.spark, format_, bench.servers, topic, **options)
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def _nothing_seconds(bench: sparks.Bench, format_: str) -> float:
    begun = time.perf_counter()
    sparks.batch(bench.spark, format_, bench.servers, "read-nothing").count()
    return time.perf_counter() - begun
