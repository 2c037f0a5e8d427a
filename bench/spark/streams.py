"""Streams: what a small micro-batch costs, and how old a record is when its row reaches the sink."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Producer

import klamm.spark as ks
from bench.spark import sink, sparks, topics
from bench.spark.figures import CONNECTOR, KLAMM, Figure, Goal, in_turn
from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.source.client_options import task_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


ROWS: Final = 100
"""Of a small micro-batch."""
BATCHES: Final = 60
ONCE: Final = "a topic, exactly once"
FLOOR_MS: Final = 120.0
RATE: Final = 200
"""Records a second."""
SECONDS: Final = 15.0
QUICK_SECONDS: Final = 6.0
LIMIT_S: Final = 120


class _Streams:
    def __init__(self, bench: sparks.Bench) -> None:
        self.bench = bench
        self.spark, self.servers = bench.spark, bench.servers
        self.batches = BATCHES // 3 if bench.is_quick else BATCHES
        self._places = 0
        _register(bench)

    def place(self) -> Path:
        self._places += 1
        place = self.bench.scratch / f"stream-{self._places}"
        (place / "ages").mkdir(parents=True)
        return place

    # --- what a micro-batch costs ---

    def floors(self) -> Iterator[Figure]:
        self.bench.cluster.create_topic("small-copy", 1, 1)
        for partitions in (1, topics.PARTITIONS):
            topic = f"small-{partitions}"
            topics.fill(self.bench.cluster, topic, 100, 2 * ROWS * self.batches, partitions)
            counted = "1 partition" if partitions == 1 else f"{partitions} partitions"
            for what in self.sinks(partitions):
                goal = Goal(most=FLOOR_MS) if partitions == 1 and what == "a Python sink" else Goal()
                name = f"Micro-batch of {ROWS} rows, {counted}, into {what}"
                sides = [side for side in self.bench.sides if side == KLAMM or what not in ("Delta", ONCE)]
                found = {side: [self.batch_ms(side, topic, partitions, what)] for side in sides}
                yield Figure(name, "ms", found[KLAMM], found.get(CONNECTOR, ()), goal)

    def sinks(self, partitions: int) -> Sequence[str]:
        if self.bench.is_quick:
            return ("a Python sink",)
        if partitions > 1:
            return ("a Python sink", "a topic", ONCE)
        return ("noop", "a Python sink", "a topic", ONCE, "Delta")

    def batch_ms(self, side: str, topic: str, partitions: int, what: str) -> float:
        """The median without the first third, while the JVM warms up."""
        starts = {topic: self.near_the_end(topic, partitions)}
        limits = {"maxOffsetsPerTrigger": str(ROWS), "startingOffsets": json.dumps(starts)}
        frame = sparks.stream(self.spark, side, self.servers, topic, **limits)
        place = self.place()
        query = self.into(what, side, frame, place)
        if not query.awaitTermination(LIMIT_S):
            raise KlammError(f"{self.batches} batches of {side} into {what} took more than {LIMIT_S} s.")
        times = [found["durationMs"]["triggerExecution"] for found in query.recentProgress if found["numInputRows"]]
        shutil.rmtree(place, ignore_errors=True)
        return float(statistics.median(times[len(times) // 3 :]))

    def into(self, what: str, side: str, frame: DataFrame, place: Path) -> StreamingQuery:
        checkpoint = f"{place}/c"
        if what == "Delta":
            return ks.to_table(frame, f"{place}/t", checkpoint=checkpoint, trigger="available_now", compact_every=0)
        if what in ("a topic", ONCE):
            frame = frame.select("key", "value")
            guarantee = "exactly_once" if what == ONCE else "at_least_once"
            options = {"kafka.bootstrap.servers": self.servers, "topic": "small-copy", "guarantee": guarantee}
            writer = frame.writeStream.format(side).options(**options)
        elif what == "noop":
            writer = frame.writeStream.format("noop")
        else:
            writer = frame.writeStream.format(sink.AgeSink.name()).option("path", str(place / "ages"))
        query: StreamingQuery = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        return query

    def near_the_end(self, topic: str, partitions: int) -> dict[str, int]:
        """Where to begin so that just the batches that are wanted are left."""
        tps = [TopicPartition(topic, index) for index in range(partitions)]
        each = -(-ROWS * self.batches // partitions)
        with task_client(self.servers) as client:
            ends = client.latest(tps)
        return {str(tp.partition): max(0, end - each) for tp, end in ends.items()}

    def start(self) -> Figure:
        topics.fill(self.bench.cluster, "small-start", 100, 100)
        found = in_turn({side: partial(self.start_s, side) for side in self.bench.sides}, min(3, self.bench.rounds))
        name = f"Start of a stream to the end of its first batch, {topics.PARTITIONS} partitions, into noop"
        return Figure(name, "s", found[KLAMM], found.get(CONNECTOR, ()))

    def start_s(self, side: str) -> float:
        """From `load` on, with AvailableNow, so that the query ends with the batch."""
        place = self.place()
        begun = time.perf_counter()
        frame = sparks.stream(self.spark, side, self.servers, "small-start", startingOffsets="earliest")
        query = self.into("noop", side, frame, place)
        query.awaitTermination()
        seconds = time.perf_counter() - begun
        shutil.rmtree(place, ignore_errors=True)
        return seconds

    # --- from the producer to the sink ---

    def latencies(self) -> Iterator[Figure]:
        for partitions in (1, topics.PARTITIONS):
            if self.bench.is_quick and partitions > 1:
                return
            topic = f"live-{partitions}"
            self.bench.cluster.create_topic(topic, partitions, 1)
            ages = {side: self.ages_ms(side, topic) for side in self.bench.sides}
            counted = "1 partition" if partitions == 1 else f"{partitions} partitions"
            for percent in (50, 99):
                found = {side: [float(np.percentile(ages[side], percent))] for side in ages}
                name = f"From produce to a Python sink, {RATE}/s, {counted}, p{percent}"
                yield Figure(name, "ms", found[KLAMM], found.get(CONNECTOR, ()))

    def ages_ms(self, side: str, topic: str) -> Any:
        """The ages of all records that were sent while the query ran warm."""
        place = self.place()
        frame = sparks.stream(self.spark, side, self.servers, topic, startingOffsets="latest")
        writer = frame.writeStream.format(sink.AgeSink.name()).option("path", str(place / "ages"))
        query: StreamingQuery = writer.option("checkpointLocation", f"{place}/c").start()
        try:
            with self.producing(topic):
                self.wait_for_batches(query, 20)
                for old in list((place / "ages").glob("*.npy")):
                    old.unlink()
                time.sleep(QUICK_SECONDS if self.bench.is_quick else SECONDS)
                found = [np.load(path) for path in sorted((place / "ages").glob("*.npy"))]
        finally:
            query.stop()
            shutil.rmtree(place, ignore_errors=True)
        return np.concatenate(found)

    def wait_for_batches(self, query: StreamingQuery, count: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while sum(1 for found in query.recentProgress if found["numInputRows"]) < count:
            if time.monotonic() > deadline or not query.isActive:
                raise KlammError(f"The query did not run {count} batches: {query.exception()}")
            time.sleep(0.2)

    @contextmanager
    def producing(self, topic: str) -> Iterator[None]:
        """Records at a steady rate, each sent at once, from librdkafka in this process."""
        done = Event()
        thread = Thread(target=_produce, args=(self.servers, topic, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _produce(servers: str, topic: str, done: Event) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1, "log_level": 0})
    begun = time.monotonic()
    sent = 0
    while not done.wait(max(0.0, begun + sent / RATE - time.monotonic())):
        producer.produce(topic, b"x" * 100, topics.KEY % sent)
        producer.poll(0)
        sent += 1
    producer.flush(10)


def _register(bench: sparks.Bench) -> None:
    """The sink travels by value: workers do not have the bench on their path."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sink)  # type: ignore[no-untyped-call]
    bench.spark.dataSource.register(sink.AgeSink)


def figures(bench: sparks.Bench) -> Iterator[Figure]:
    streams = _Streams(bench)
    yield streams.start()
    yield from streams.floors()
    yield from streams.latencies()
