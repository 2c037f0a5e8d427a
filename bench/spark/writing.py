"""Topics into Parquet and Delta, rows into topics, topic to topic; beside it Spark's own connector as source or sink.

Delta is klamm's sink on both sides, Parquet is Spark's own writer on both sides.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import klamm.spark as ks
from bench.spark import sparks, topics
from bench.spark.figures import CONNECTOR, KLAMM, Figure, in_turn, rates
from klamm.spark.sink.write_options import AT_LEAST_ONCE, EXACTLY_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


ROUNDS: Final = 3
RAW_ROWS: Final = 2_400_000
JSON_ROWS: Final = 1_000_000
JSON_SCHEMA: Final = "id long, amount double, name string, at timestamp"
JSON_VALUE: Final = "to_json(struct(id, id / 2 as amount, concat('user ', id) as name, timestamp_seconds(id) as at))"
Run = Callable[[str, str], "StreamingQuery | None"]


class _Writes:
    def __init__(self, bench: sparks.Bench) -> None:
        self.bench = bench
        self.spark, self.servers = bench.spark, bench.servers
        self._places = 0

    def figures(self) -> Iterator[Figure]:
        raw = topics.fill(self.bench.cluster, "raw", 100, RAW_ROWS // self.bench.scale)
        yield self.figure("Topic of 100 B into Parquet", raw, self.into_parquet)
        yield self.figure("Topic of 100 B into Delta", raw, self.into_delta)
        rows = JSON_ROWS // self.bench.scale
        for name in ("json", "copy"):
            self.bench.cluster.create_topic(name, topics.PARTITIONS, 1)
        self.rows_into_topic("json", rows, KLAMM, "")
        yield self.figure("Topic of JSON into typed Delta", rows, self.typed_into_delta)
        yield self.figure("Rows of Spark into a topic", rows, partial(self.rows_into_topic, "copy", rows))
        yield self.figure("Topic into a topic", rows, self.topic_into_topic)
        once = partial(self.rows_into_topic, "copy", rows, guarantee=EXACTLY_ONCE)
        yield self.figure("Rows of Spark into a topic, exactly once", rows, once, (KLAMM,))
        once_on = partial(self.topic_into_topic, guarantee=EXACTLY_ONCE)
        yield self.figure("Topic into a topic, exactly once", rows, once_on, (KLAMM,))

    def figure(self, name: str, rows: int, run: Run, sides: Sequence[str] = ()) -> Figure:
        found = in_turn(
            {side: partial(self.seconds, run, side) for side in sides or self.bench.sides},
            min(ROUNDS, self.bench.rounds),
        )
        return Figure(name, "M rows/s", rates(rows / 1e6, found, KLAMM), rates(rows / 1e6, found, CONNECTOR))

    def seconds(self, run: Run, side: str) -> float:
        self._places += 1
        place = self.bench.scratch / f"written-{self._places}"
        begun = time.perf_counter()
        query = run(side, str(place))
        seconds = time.perf_counter() - begun
        if query is not None:
            query.awaitTermination()
            seconds = sum(batch["durationMs"]["triggerExecution"] for batch in query.recentProgress) / 1000
        shutil.rmtree(place, ignore_errors=True)
        return seconds

    def into_parquet(self, side: str, place: str) -> None:
        sparks.batch(self.spark, side, self.servers, "raw").write.parquet(place)

    def into_delta(self, side: str, place: str) -> StreamingQuery:
        return self.to_table(self.from_start(side, "raw"), place)

    def typed_into_delta(self, side: str, place: str) -> StreamingQuery:
        if side == KLAMM:
            frame = ks.topic(
                self.spark,
                "json",
                bootstrap_servers=self.servers,
                format="json",
                schema=JSON_SCHEMA,
                startingOffsets="earliest",
            )
        else:
            origin = "key", "topic AS _topic", "partition AS _partition", "offset AS _offset", "timestamp AS _timestamp"
            parsed = f"from_json(string(value), '{JSON_SCHEMA}') AS parsed"
            frame = self.from_start(side, "json").selectExpr(parsed, *origin).select("parsed.*", "*").drop("parsed")
        return self.to_table(frame, place)

    def to_table(self, frame: DataFrame, place: str) -> StreamingQuery:
        return ks.to_table(frame, f"{place}/table", checkpoint=f"{place}/c", trigger="available_now")

    def rows_into_topic(self, topic: str, rows: int, side: str, place: str, guarantee: str = AT_LEAST_ONCE) -> None:
        made = self.spark.range(rows).selectExpr("string(id) AS key", f"{JSON_VALUE} AS value")
        options = {"kafka.bootstrap.servers": self.servers, "topic": topic, "guarantee": guarantee}
        made.write.format(side).mode("append").options(**options).save()

    def topic_into_topic(self, side: str, place: str, guarantee: str = AT_LEAST_ONCE) -> StreamingQuery:
        frame = self.from_start(side, "json").select("key", "value")
        options = {"kafka.bootstrap.servers": self.servers, "topic": "copy", "checkpointLocation": f"{place}/c"}
        options["guarantee"] = guarantee
        query: StreamingQuery = frame.writeStream.format(side).options(**options).trigger(availableNow=True).start()
        return query

    def from_start(self, side: str, topic: str) -> DataFrame:
        return sparks.stream(self.spark, side, self.servers, topic, startingOffsets="earliest")


def figures(bench: sparks.Bench) -> Iterator[Figure]:
    yield from _Writes(bench).figures()
