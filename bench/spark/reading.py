"""Batch reads of one topic: by Fetch, from the segment files, and by Spark's own connector, in turn.

The query is `SELECT count(*), sum(length(value))`, so that every value reaches Spark; "all columns" writes every
column of every row into Spark's noop sink.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from bench.spark import sparks, topics
from bench.spark.figures import CONNECTOR, KLAMM, Figure, Goal, in_turn, rates
from klamm.errors import KlammError

MODES: Final = ("fetch", "direct")
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
        queries = {"": partial(_sum_seconds, bench, topic, rows, value_bytes)}
        if value_bytes == SIZES[0][0] and not bench.is_quick:
            queries[", all columns"] = partial(_noop_seconds, bench, topic)
        for what, seconds in queries.items():
            measures = {mode: partial(seconds, KLAMM, mode) for mode in MODES}
            if bench.has_connector:
                measures[CONNECTOR] = partial(seconds, CONNECTOR, "")
            found = in_turn(measures, bench.rounds)
            for mode in MODES:
                goal = Goal(least=GOALS.get((mode, value_bytes)), ratio=RATIO) if not what else Goal()
                yield _figure(f"Read {size}, {mode}{what}", "M rows/s", rows / 1e6, found, mode, goal)
                if not what:
                    mib = rows * (value_bytes + topics.KEY_BYTES) / MIB
                    yield _figure(f"Read {size}, {mode}", "MiB/s", mib, found, mode, Goal())


def _figure(name: str, unit: str, amount: float, found: dict[str, list[float]], mode: str, goal: Goal) -> Figure:
    return Figure(name, unit, rates(amount, found, mode), rates(amount, found, CONNECTOR), goal)


def _sum_seconds(bench: sparks.Bench, topic: str, rows: int, value_bytes: int, format_: str, mode: str) -> float:
    frame = sparks.batch(bench.spark, format_, bench.servers, topic, readMode=mode)
    begun = time.perf_counter()
    answer = frame.selectExpr("count(*)", "sum(length(value))").first()
    seconds = time.perf_counter() - begun
    if answer is None or tuple(answer) != (rows, rows * value_bytes):
        raise KlammError(f"{format_} {mode} gave {answer} for {rows} rows of {value_bytes} bytes.")
    return seconds


def _noop_seconds(bench: sparks.Bench, topic: str, format_: str, mode: str) -> float:
    frame = sparks.batch(bench.spark, format_, bench.servers, topic, readMode=mode)
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def _nothing_seconds(bench: sparks.Bench, format_: str) -> float:
    begun = time.perf_counter()
    sparks.batch(bench.spark, format_, bench.servers, "read-nothing").count()
    return time.perf_counter() - begun
