"""Checks between the parts of a pipeline, for YAML and Python alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from klamm.spark.pipeline.fields import check_name
from klamm.spark.pipeline.options import SET_ELSEWHERE, Columns, sink_problems, source_problems
from klamm.spark.pipeline.pipeline_model import (
    GUARANTEES,
    ON_ERROR,
    PipelineSpec,
    Sink,
    Source,
    View,
    dead_letters_of,
    find_cycle,
    in_order,
)
from klamm.spark.pipeline.pipeline_problems import PipelineError, Problem
from klamm.spark.source.option_names import READ, TABLE, WRITE, did_you_mean, unknown
from klamm.spark.sql.table_names import SqlTextError, relations
from klamm.spark.suggestion import suggestion

_TABLE_ONLY: Final = ("partition_by_date", "compact_every", "bad_records", "append_to_existing")
_TOPIC_ONLY: Final = ("key", "value", "guarantee")


def checked(spec: PipelineSpec, problems: list[Problem]) -> PipelineSpec:
    """Return the pipeline with its views in order. Raises PipelineError with `problems` and those found here."""
    problems = list(problems)
    names = {step.name for step in spec.steps}
    views = tuple(_with_inputs(view, names, problems) for view in spec.views)
    problems += _names(spec)
    columns: dict[str, Columns] = {}
    for source in spec.sources:
        wrong, columns[source.name] = source_problems(source)
        problems += [*_source(source), *wrong]
    for sink in spec.sinks:
        problems += [*_sink(sink, names), *sink_problems(sink, columns.get(sink.view, {}))]
    problems += [*_shared_targets(spec.sinks), *_shared_prefixes(spec.sinks)]
    problems += _parts_that_are_missing(spec)
    if cycle := find_cycle({view.name: view.inputs for view in views}):
        line = next(view.line for view in views if view.name == cycle[0])
        problems.append(Problem(line, f"views depend on each other in a cycle: {' -> '.join(cycle)}."))
    if problems:
        raise PipelineError(spec.file, problems)
    spec = replace(spec, views=in_order(views))
    problems += [*_watermarks(spec), *_dead_letters(spec)]
    if problems:
        raise PipelineError(spec.file, problems)
    return spec


def _with_inputs(view: View, names: set[str], problems: list[Problem]) -> View:
    """Return the view with its inputs; names in SQL are case-insensitive, as in Spark."""
    by_lower = {name.lower(): name for name in names}
    if view.sql is None:
        for name in view.inputs:
            if name not in names:
                problems.append(_unknown(view.line, f"view {view.name!r}", name, names - {view.name}))
        return replace(view, inputs=tuple(name for name in view.inputs if name in names))
    inputs: list[str] = []
    try:
        found = relations(view.sql)
    except SqlTextError as error:
        problems.append(Problem(view.line + error.line - 1, f"view {view.name!r}: {error}"))
        return view
    for relation in found:
        if relation.is_file:
            continue
        if (known := by_lower.get(relation.name.lower())) is not None:
            inputs.append(known)
        else:
            where = view.line + relation.line - 1
            problems.append(_unknown(where, f"view {view.name!r}", relation.name, names - {view.name}))
    if view.sql and not found:
        problems.append(Problem(view.line, f"view {view.name!r} reads no source and no view."))
    return replace(view, inputs=tuple(inputs))


def _unknown(line: int, reader: str, name: str, names: set[str]) -> Problem:
    return Problem(line, f"{reader} reads {name!r}, which is neither a source nor a view.{suggestion(name, names)}")


def _names(spec: PipelineSpec) -> Iterator[Problem]:
    problems: list[Problem] = []
    if spec.name:
        check_name(spec.name, "pipeline", 1, problems)
    for what, parts in (("source", spec.sources), ("view", spec.views), ("sink", spec.sinks)):
        for part in parts:
            check_name(part.name, what, part.line, problems)
    yield from problems
    first: dict[str, Source | View] = {}
    for step in spec.steps:
        earlier = first.setdefault(step.name.lower(), step)
        if earlier is not step:
            yield Problem(step.line, f"{step.name!r} names two steps; the first is in line {earlier.line}.")
    counts = Counter(sink.name for sink in spec.sinks)
    yield from (
        Problem(sink.line, f"{sink.name!r} is the name of two sinks.") for sink in spec.sinks if counts[sink.name] > 1
    )


def _source(source: Source) -> Iterator[Problem]:
    what = f"source {source.name!r}"
    if source.topic is not None and source.pattern is not None:
        yield Problem(source.line_of("pattern"), f"{what} has both 'topic' and 'pattern'; it needs one.")
    if source.schema is not None and source.schema_file is not None:
        yield Problem(source.line_of("schema_file"), f"{what} has both 'schema' and 'schema_file'; it needs one.")
    given = source.schema is not None or source.schema_file is not None
    if source.format in ("json", "avro", "protobuf") and not given:
        advice = " `klamm schema infer` writes one from the topic's records." if source.format == "json" else ""
        yield Problem(source.line, f"{what} of format {source.format} needs a 'schema' or a 'schema_file'.{advice}")
    if source.format in ("raw", "string") and given:
        line = source.line_of("schema" if source.schema is not None else "schema_file")
        yield Problem(line, f"{what} of format {source.format} takes no schema.")
    if source.deduplicate and source.watermark is None:
        line = source.line_of("deduplicate")
        yield Problem(line, f"{what}: 'deduplicate' needs a 'watermark', or its state would grow forever.")
    if source.static and (source.watermark is not None or source.deduplicate):
        yield Problem(source.line_of("static"), f"{what} is static: it has no watermark and no deduplication.")
    yield from _options(source, what, READ)


def _options(part: Source | Sink, what: str, known: Iterable[str]) -> Iterator[Problem]:
    elsewhere = {name.lower(): key for name, key in SET_ELSEWHERE.items()}
    for name in part.options:
        if (key := elsewhere.get(name.lower())) is not None:
            yield Problem(part.line_of(f"options.{name}"), f"{what}: option {name!r} must be written as {key!r}.")
    wanted = [name for name in known if name not in SET_ELSEWHERE]
    for name in unknown(part.options, (*known, *SET_ELSEWHERE)):
        reason = f"{what} has no option {name!r}.{did_you_mean(name, wanted)}"
        yield Problem(part.line_of(f"options.{name}"), reason)


def _sink(sink: Sink, names: set[str]) -> Iterator[Problem]:
    what = f"sink {sink.name!r}"
    if sink.view and sink.view not in names:
        yield _unknown(sink.line_of("from"), what, sink.view, names)
    if (sink.topic is None) == (sink.table is None):
        yield Problem(sink.line, f"{what} needs either a 'topic' or a 'table'.")
        return
    wrong = _TABLE_ONLY if sink.topic is not None else _TOPIC_ONLY
    for key in wrong:
        if getattr(sink, key) is not None:
            kind = "topic" if sink.topic is not None else "table"
            yield Problem(sink.line_of(key), f"{what} writes to a {kind}, which has no {key!r}.")
    if sink.table is not None and sink.mode != "append":
        yield Problem(sink.line_of("mode"), f"{what}: a table accepts only mode append, not {sink.mode}.")
    if sink.topic is not None:
        yield from _options(sink, what, WRITE)
        yield from _guarantee(sink, what)
    elif sink.format == "delta":  # Parquet is Spark's own sink, which checks its options itself
        yield from _options(sink, what, TABLE)


def _guarantee(sink: Sink, what: str) -> Iterator[Problem]:
    if sink.guarantee is not None and sink.guarantee not in GUARANTEES:
        yield Problem(sink.line_of("guarantee"), f"{what}: 'guarantee' is {' or '.join(GUARANTEES)}.")
    for name in sink.options:
        if name.lower() == "guarantee" and sink.guarantee is not None:
            yield Problem(sink.line_of(f"options.{name}"), f"{what} has 'guarantee' twice: as a key and as an option.")


def _shared_prefixes(sinks: tuple[Sink, ...]) -> Iterator[Problem]:
    """Two queries with one prefix would take the sink from each other."""
    first: dict[str, Sink] = {}
    for sink in sinks:
        for name, prefix in sink.options.items():
            if name.lower() == "transactionalidprefix" and (earlier := first.setdefault(prefix, sink)) is not sink:
                line = sink.line_of(f"options.{name}")
                yield Problem(line, f"sink {sink.name!r} has the transactionalIdPrefix of sink {earlier.name!r}.")


def _shared_targets(sinks: tuple[Sink, ...]) -> Iterator[Problem]:
    first: dict[str, Sink] = {}
    for sink in sinks:
        if sink.table is not None and (earlier := first.setdefault(sink.table.rstrip("/"), sink)) is not sink:
            yield Problem(sink.line, f"sink {sink.name!r} writes the table of sink {earlier.name!r}.")


def _parts_that_are_missing(spec: PipelineSpec) -> Iterator[Problem]:
    if not spec.sources:
        yield Problem(1, "the pipeline has no source.")
    elif all(source.static for source in spec.sources):
        yield Problem(spec.sources[0].line, "every source is static: at least one must be a stream.")
    if not spec.sinks:
        yield Problem(1, "the pipeline has no sink.")


def _dead_letters(spec: PipelineSpec) -> Iterator[Problem]:
    for view in spec.views:
        what = f"view {view.name!r}"
        if view.on_error not in ON_ERROR:
            yield Problem(view.line, f"'on_error' of {what} is {' or '.join(ON_ERROR)}, not {view.on_error!r}.")
        if view.on_error != "dead_letter":
            if view.dead_letters is not None:
                yield Problem(view.line, f"{what} has 'dead_letters' without 'on_error: dead_letter'.")
            continue
        if "://" in dead_letters_of(spec, view):
            yield Problem(view.line, f"{what}: the table 'dead_letters' must be a directory of this machine.")
        for source in spec.sources:
            if source.name in spec.upstream(view.name):
                yield from _locations(source, what)


def _locations(source: Source, what: str) -> Iterator[Problem]:
    """Dead letters are identified by topic, partition and offset."""
    for name, value in source.options.items():
        if name.lower() == "columns":
            found = {column.strip() for column in value.split(",")}
            if missing := ", ".join(column for column in source.location_columns if column not in found):
                reason = f"'columns' of source {source.name!r} must have {missing} for the dead letters of {what}."
                yield Problem(source.line_of(f"options.{name}"), reason)


def _watermarks(spec: PipelineSpec) -> Iterator[Problem]:
    """A view can deduplicate if it or one of its inputs has a watermark."""
    marked = {step.name for step in spec.steps if step.watermark is not None}
    for view in spec.views:
        if view.deduplicate and not marked & set(spec.upstream(view.name)):
            reason = f"view {view.name!r}: 'deduplicate' needs a watermark, here or in what it reads."
            yield Problem(view.line, reason)
