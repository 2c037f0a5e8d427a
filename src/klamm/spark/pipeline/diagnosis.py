"""Finds why a batch fails: the view and the records, by running the view on parts of the batch.

The view is run as a batch query over the records of the failed micro-batch, which the checkpoint names. This works for
any SQL and any function that accepts a batch DataFrame. Otherwise the offsets of the batch are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.pipeline.dead_letters import Location, is_none_of
from klamm.spark.pipeline.failures import is_data_error, spark_sentence
from klamm.spark.pipeline.options import reading_options
from klamm.spark.pipeline.pipeline_model import PipelineSpec, Sink, Source, View
from klamm.spark.pipeline.poison import PoisonRecord, Ranges, describe_ranges, search, size
from klamm.spark.source.batch_offsets import logged_offsets
from klamm.spark.source.checkpoint_files import CheckpointFiles, SparkCheckpoint, newest_batch
from klamm.spark.source.source_offsets import OffsetRange, parse_source_offset, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BATCH: Final = 5_000_000
"""Batches with more offsets are not searched: their records are kept in memory and on disk meanwhile."""
MAX_RECORDS: Final = 100
"""Maximum number of records moved to the dead letters at once; the restarted query finds the next ones."""
MAX_SECONDS: Final = 60.0
"""Maximum search time per batch: meanwhile the other queries of the pipeline are not supervised."""
_BATCH_ONLY: Final = ("starting", "ending", "maxoffsets", "minoffsets", "maxtrigger", "failondataloss", "pushdown")
"""Options of the source that limit what a stream reads."""

Frames = Mapping[str, Any]
Assemble = Callable[[str, Frames], Any]
"""A view by its name over other frames in place of the sources."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`view` fails on these records. If none were found, `within` is the range that contains them, if known."""

    view: View | None
    records: tuple[PoisonRecord, ...]
    within: str

    def __str__(self) -> str:
        if not self.records:
            return f" (in the batch {self.within})" if self.within else ""
        name = f"view {self.view.name!r}, " if self.view is not None else ""
        return f" (at {name}record {self.records[0]})"


def failed_ranges(checkpoint: CheckpointFiles) -> list[tuple[OffsetRange, ...]] | None:
    """Return what the newest batch of a checkpoint reads, per source of the query; None if unknown."""
    found = logged_offsets(checkpoint, newest_batch(checkpoint))
    if found is None:
        return None
    ranges = []
    for start, end in zip(found.start, found.end, strict=True):
        begins = parse_source_offset(start).offsets if isinstance(start, Mapping) else {}
        ends = parse_source_offset(end).offsets if isinstance(end, Mapping) else {}
        ranges.append(tuple(OffsetRange(tp, begins.get(tp, last), last) for tp, last in sorted(ends.items())))
    return ranges


def ranges_of(source: Source, queries: Sequence[tuple[OffsetRange, ...]]) -> list[OffsetRange]:
    """Return the part of a batch that comes from a source. A topic that is read twice counts from its first record."""
    found: dict[TopicPartition, OffsetRange] = {}
    for one in (r for ranges in queries for r in ranges if reads(source, r.tp.topic)):
        other = found.get(one.tp, one)
        found[one.tp] = OffsetRange(one.tp, min(one.start, other.start), max(one.end, other.end))
    return sorted(found.values())


def reads(source: Source, topic: str) -> bool:
    if source.pattern is not None:
        return re.search(source.pattern, topic) is not None
    return topic in [name.strip() for name in (source.topic or "").split(",")]


def within(source: Source, ranges: Ranges) -> Any:
    """Return the condition that a row belongs to these ranges."""
    from pyspark.sql import functions as F

    topic, partition, offset = (F.col(name) for name in source.location_columns)
    conditions = [
        (topic == r.tp.topic) & (partition == r.tp.partition) & (offset >= r.start) & (offset < r.end) for r in ranges
    ]
    return reduce(lambda one, other: one | other, conditions, F.lit(False))


class Diagnostician:
    """Examines one failed batch of a sink's query, which skips the records `aside`, until `is_over`."""

    def __init__(
        self,
        spec: PipelineSpec,
        spark: SparkSession,
        servers: str,
        assemble: Assemble,
        aside: Collection[Location] = (),
        is_over: Callable[[], bool] = lambda: False,
        client: Mapping[str, str] | None = None,
    ) -> None:
        self._spec = spec
        self._spark = spark
        self._servers = servers
        self._client = client
        self._assemble = assemble
        self._aside = aside
        self._is_over = is_over

    def diagnose(self, sink: Sink, checkpoint: str) -> Diagnosis:
        try:
            batch = failed_ranges(SparkCheckpoint(self._spark, checkpoint))
        except KlammError:
            batch = None  # the checkpoint cannot be read: report the failure itself
        if batch is None:
            return Diagnosis(None, (), "")
        everything = [r for ranges in batch for r in ranges if r.size > 0]
        unknown = Diagnosis(None, (), describe_ranges(everything))
        if not 0 < size(everything) <= MAX_BATCH:
            return unknown
        upstream = self._spec.upstream(sink.view)
        sources = [source for source in self._spec.sources if source.name in upstream]
        try:
            frames = {source.name: self._frame(source, ranges_of(source, batch)) for source in sources}
            trial = _Trial(self._assemble, frames)
            try:
                return self._search(upstream, sources, batch, trial) or unknown
            finally:
                trial.close()
        except Exception:
            return unknown  # the view does not support batches, or brokers are unreachable: report the failure itself

    def _search(
        self,
        upstream: Sequence[str],
        sources: list[Source],
        batch: Sequence[tuple[OffsetRange, ...]],
        trial: _Trial,
    ) -> Diagnosis | None:
        views = [view for view in self._spec.views if view.name in upstream]
        failing = next((view for view in views if trial.run(view.name, {}) is not None), None)
        if failing is None:
            return None
        limit = MAX_RECORDS if failing.on_error == "dead_letter" else 1
        inputs = self._spec.upstream(failing.name)
        streams = [source for source in sources if source.name in inputs and not source.static]
        records: list[PoisonRecord] = []
        # First without the other sources: a failure then needs no second record.
        for others_empty in (True, False) if len(streams) > 1 else (False,):
            for source in streams:
                others: dict[str, Any] = {s.name: within(s, ()) for s in streams if s is not source and others_empty}

                def fails(part: Ranges, source: Source = source, others: dict[str, Any] = others) -> str | None:
                    return trial.run(failing.name, {**others, source.name: within(source, part)})

                if fails(()) is None:
                    found = search(ranges_of(source, batch), fails, limit=limit, is_over=self._is_over)
                    records += found.records
            if records:
                break
        return Diagnosis(
            failing, tuple(records), describe_ranges([r for ranges in batch for r in ranges if r.size > 0])
        )

    def _frame(self, source: Source, ranges: Ranges) -> DataFrame:
        """Return the records of the batch as a DataFrame that is read once; a static source as in the query."""
        given = reading_options(source, self._servers, self._client)
        if source.static:
            return self._spark.read.format("klamm").options(**given).load()
        kept = {name: value for name, value in given.items() if not name.lower().startswith(_BATCH_ONLY)}
        starts = to_json({r.tp: r.start for r in ranges})
        ends = to_json({r.tp: r.end for r in ranges})
        reader = self._spark.read.format("klamm").options(**kept)
        frame = reader.options(startingOffsets=starts, endingOffsets=ends, failOnDataLoss="false").load()
        # Otherwise the search would find the dead letters again, and none of the later records.
        if here := [location for location in self._aside if reads(source, location[0].topic)]:
            frame = frame.where(is_none_of(source, here))
        return frame.persist()


class _Trial:
    """Runs views over parts of the batch."""

    def __init__(self, assemble: Assemble, frames: Mapping[str, DataFrame]) -> None:
        self._assemble = assemble
        self._frames = frames

    def run(self, view: str, conditions: Mapping[str, Any]) -> str | None:
        """Return why the view fails on the rows that meet the conditions; None if it does not. Other errors are
        raised."""
        frames = {
            name: frame.where(conditions[name]) if name in conditions else frame for name, frame in self._frames.items()
        }
        try:
            self._assemble(view, frames).write.format("noop").mode("overwrite").save()
        except Exception as error:
            if not is_data_error(error):
                raise
            return spark_sentence(error)
        return None

    def close(self) -> None:
        for frame in self._frames.values():
            frame.unpersist()
