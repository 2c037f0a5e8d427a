"""Runs a pipeline on Spark: DataFrames for its sources and views, one streaming query per sink."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.clock import Clock, SystemClock
from klamm.errors import KlammError
from klamm.spark.pipeline.dead_letters import DeadLetters, Location, is_none_of, letters
from klamm.spark.pipeline.diagnosis import MAX_SECONDS, Diagnosis, Diagnostician, reads
from klamm.spark.pipeline.failures import failure_of, spark_sentence, start_advice
from klamm.spark.pipeline.load_file import module_name
from klamm.spark.pipeline.options import prefixed, reading_options, topic_options
from klamm.spark.pipeline.pipeline_model import PipelineSpec, Sink, Source, Trigger, View
from klamm.spark.pipeline.plan import stateful_operators
from klamm.spark.pipeline.shape import QueryShape, shape_of
from klamm.spark.pipeline.supervise import Failure, is_permanent
from klamm.spark.source.checkpoint_files import SparkCheckpoint
from klamm.spark.source.checkpoint_locations import CheckpointUnreachableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WAITS: Final = "Getting offsets from"


class PipelineRunner:
    """Builds the pipeline's DataFrames once, and starts its queries on demand."""

    def __init__(
        self,
        spec: PipelineSpec,
        spark: SparkSession,
        bootstrap_servers: str,
        trigger: Trigger,
        append_to_existing: bool = False,
        clock: Clock | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        """`client` are settings of security for every connection with the brokers."""
        self.spec = spec
        self.is_stopping: Callable[[], bool] = lambda: False
        self._clock = clock or SystemClock()
        self._append_to_existing = append_to_existing
        self._spark = spark
        self._servers = bootstrap_servers
        self._client = client or {}
        self._trigger = trigger
        self._frames: dict[str, DataFrame] = {}
        self._diagnoses: dict[tuple[str, str], Diagnosis] = {}

    def build(self) -> None:
        """Create a DataFrame per source and view; an error of Spark becomes one with step and line."""
        if self.spec.kind == "python":
            _pickle_by_value(Path(self.spec.file))
        for source in self.spec.sources:
            self._keep(source, partial(self._source, source))
        for view in self.spec.views:
            self._keep(view, partial(self._view, view, self._frames))

    def shapes(self) -> dict[str, QueryShape]:
        return {
            sink.name: shape_of(self.spec, sink, stateful_operators(self._frames[sink.view]))
            for sink in self.spec.sinks
        }

    def start(self, sink: Sink) -> SparkQuery:
        """Refuse a query that can never start, with its line in the file and the remedy."""
        frame = self._without_dead_letters(sink)
        try:
            query = self._into_topic(frame, sink) if sink.topic is not None else self._into_table(frame, sink)
        except Exception as error:
            if not is_permanent(error):
                raise
            place = f"{self.spec.file}:{sink.line}: sink {sink.name!r}"
            reason = spark_sentence(error, self.spec.file).removesuffix(".")
            raise KlammError(f"{place}: {reason}.{start_advice(error, sink)}") from error
        return SparkQuery(query, self.spec.file, sink.name, partial(self._examined, sink))

    def frame(self, name: str) -> DataFrame:
        return self._frames[name]

    def assemble(self, name: str, sources: Mapping[str, DataFrame]) -> DataFrame:
        """Return a view by name, with other frames in place of the sources."""
        frames: dict[str, DataFrame] = {}
        upstream = self.spec.upstream(name)
        for step in self.spec.steps:
            if step.name not in upstream:
                continue
            made = sources[step.name] if isinstance(step, Source) else self._view(step, frames)
            if isinstance(step, View) and made.isStreaming:
                made = _finished(made, step)
            made.createOrReplaceTempView(step.name)
            frames[step.name] = made
        return frames[name]

    def _without_dead_letters(self, sink: Sink) -> DataFrame:
        """Return the frame of a sink, without its dead letters."""
        if not (aside := self._aside(sink)):
            return self._frames[sink.view]
        frames: dict[str, DataFrame] = {}
        for source in self.spec.sources:
            here = [location for location in aside if reads(source, location[0].topic)]
            frame = self._frames[source.name]
            frames[source.name] = frame.where(is_none_of(source, here)) if here and not source.static else frame
        return self.assemble(sink.view, frames)

    def _aside(self, sink: Sink) -> set[Location]:
        """Return the dead letters of a sink's query."""
        upstream = self.spec.upstream(sink.view)
        views = [view for view in self.spec.views if view.name in upstream and view.on_error == "dead_letter"]
        query_id = self._query_id(sink) if views else ""
        return {location for view in views for location in DeadLetters(self.spec, view).locations(query_id)}

    def _query_id(self, sink: Sink) -> str:
        return SparkCheckpoint(self._spark, sink_checkpoint(self.spec, sink)).query_id()

    def _examined(self, sink: Sink, failure: Failure) -> Failure:
        """Return the failure with the record that caused it, which may have become a dead letter."""
        if not failure.batch or failure.permanent:
            return failure
        key = (sink.name, failure.batch)
        if (found := self._diagnoses.get(key)) is None:
            try:
                found = self._diagnosed(sink)
            except CheckpointUnreachableError:
                return failure
        self._diagnoses = {key: found}
        named = replace(failure, reason=f"{failure.reason}{found}")
        if found.view is None or found.view.on_error != "dead_letter" or not found.records:
            return named
        try:
            moved = self._put_aside(sink, found, self._query_id(sink))
        except Exception as error:
            sentence = spark_sentence(error, self.spec.file)
            return replace(failure, reason=f"{named.reason}; the dead letters were not written: {sentence}")
        if moved is None:
            return named
        self._diagnoses = {}  # the batch is repeated without these records, and may fail on others
        return moved

    def _diagnosed(self, sink: Sink) -> Diagnosis:
        deadline = self._clock.monotonic() + MAX_SECONDS

        def is_over() -> bool:
            return self.is_stopping() or self._clock.monotonic() >= deadline

        aside = self._aside(sink)
        examiner = Diagnostician(self.spec, self._spark, self._servers, self.assemble, aside, is_over, self._client)
        return examiner.diagnose(sink, sink_checkpoint(self.spec, sink))

    def _put_aside(self, sink: Sink, found: Diagnosis, query_id: str) -> Failure | None:
        """Move the records to the dead letters; returns None if they are there already and the query still fails."""
        assert found.view is not None
        table = DeadLetters(self.spec, found.view)
        known = table.locations(query_id)
        new = [record for record in found.records if (record.at.tp, record.at.start) not in known]
        if not new or not query_id:
            return None
        table.add(letters(self._spark, self._brokers, new, sink=sink.name, query_id=query_id))
        what = f"record {new[0]}" if len(new) == 1 else f"{len(new)} records, the first at {new[0]},"
        reason = f"view {found.view.name!r} failed, {what} went to the dead letters {table.path}: {new[0].reason}"
        return Failure(reason, moved=len(new))

    def _keep(self, step: Source | View, make: Callable[[], Any]) -> None:
        what = "source" if isinstance(step, Source) else "view"
        try:
            frame = _finished(make(), step)
            frame.createOrReplaceTempView(step.name)
        except Exception as error:
            place = f"{self.spec.file}:{step.line}: {what} {step.name!r}"
            raise KlammError(f"{place}: {spark_sentence(error, self.spec.file)}") from error
        self._frames[step.name] = frame

    @property
    def _brokers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._servers, **prefixed(self._client)}

    def _source(self, source: Source) -> DataFrame:
        given = reading_options(source, self._servers, self._client)
        if source.static:
            return self._spark.read.format("klamm").options(**given).load()
        return self._spark.readStream.format("klamm").options(**given).load()

    def _view(self, view: View, frames: Mapping[str, DataFrame]) -> DataFrame:
        from pyspark.sql import DataFrame

        if view.sql is not None:
            return self._spark.sql(view.sql)
        assert view.function is not None
        made = view.function(*(frames[name] for name in view.inputs))
        if not isinstance(made, DataFrame):
            raise KlammError(f"the function returned {type(made).__name__}, not a DataFrame.")
        return made

    def _into_topic(self, frame: DataFrame, sink: Sink) -> StreamingQuery:
        import klamm.spark as ks

        query: StreamingQuery = ks.to_topic(
            topic_columns(frame, sink),
            sink.topic,
            bootstrap_servers=self._servers,
            mode=sink.mode,
            **self._common(replace(sink, options={**prefixed(self._client), **topic_options(sink)})),
        )
        return query

    def _into_table(self, frame: DataFrame, sink: Sink) -> StreamingQuery:
        import klamm.spark as ks

        assert sink.table is not None
        given = {
            "partition_by_date": sink.partition_by_date,
            "compact_every": sink.compact_every,
            "bad_records": sink.bad_records,
        }
        if sink.format == "delta":
            given["append_to_existing"] = sink.append_to_existing or self._append_to_existing
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        query: StreamingQuery = ks.to_table(frame, sink.table, format=sink.format, **chosen, **self._common(sink))
        return query

    def _common(self, sink: Sink) -> dict[str, Any]:
        return {
            "checkpoint": sink_checkpoint(self.spec, sink),
            "trigger": spark_trigger(self._trigger),
            "name": f"{self.spec.name}.{sink.name}",
            **sink.options,
        }


def _finished(frame: Any, step: Source | View) -> Any:
    if step.watermark is not None:
        frame = frame.withWatermark(step.watermark.column, step.watermark.delay)
    if step.deduplicate:
        frame = frame.dropDuplicatesWithinWatermark(list(step.deduplicate))
    return frame


def sink_checkpoint(spec: PipelineSpec, sink: Sink) -> str:
    """Return the checkpoint directory of a sink's query."""
    return f"{spec.checkpoint.rstrip('/')}/{sink.name}"


def spark_trigger(trigger: Trigger) -> dict[str, Any]:
    if trigger.available_now:
        return {"availableNow": True}
    return {"processingTime": f"{trigger.interval_ms} milliseconds"}


def topic_columns(frame: DataFrame, sink: Sink) -> DataFrame:
    """Build `key` and `value` of the records: the whole row as JSON, or the column that the sink names."""
    from pyspark.sql import functions as F

    if sink.format == "raw" and sink.value is None:
        return frame
    value = F.to_json(F.struct("*")) if sink.value is None else F.col(sink.value)
    key = F.col(sink.key).cast("string") if sink.key is not None else F.lit(None).cast("string")
    return frame.select(key.alias("key"), value.alias("value"))


def _pickle_by_value(path: Path) -> None:
    """Executors cannot import the file as a module, so its definitions travel with the functions."""
    from pyspark import cloudpickle

    with contextlib.suppress(ValueError):
        cloudpickle.register_pickle_by_value(  # type: ignore[no-untyped-call]
            sys.modules[module_name(path)]
        )


class SparkQuery:
    """A StreamingQuery as the supervisor sees it."""

    def __init__(
        self,
        query: StreamingQuery,
        file: str,
        sink: str,
        examined: Callable[[Failure], Failure] = lambda failure: failure,
    ) -> None:
        self.query = query
        self._file = file
        self._sink = sink
        self._examined = examined

    def is_active(self) -> bool:
        return bool(self.query.isActive)

    def failure(self) -> Failure | None:
        error = self.query.exception()
        return None if error is None else self._examined(failure_of(error, self._file, self._sink))

    def is_in_batch(self) -> bool:
        """Spark counts the source's wait for records as part of a trigger, but not of a batch."""
        status = self.query.status
        return bool(status["isTriggerActive"]) and not str(status["message"]).startswith(_WAITS)

    def batches(self) -> int:
        progress = self.progress()
        return int(progress["batchId"]) + 1 if progress else 0

    def stop(self) -> None:
        self.query.stop()

    def progress(self) -> Mapping[str, Any]:
        last = self.query.lastProgress
        parsed: dict[str, Any] = json.loads(last.json) if last is not None else {}
        return parsed
