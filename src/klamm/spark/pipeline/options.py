"""Options that sources and sinks pass to `format("klamm")`, checked without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from klamm.errors import KlammError
from klamm.spark.pipeline.pipeline_model import Sink, Source
from klamm.spark.pipeline.pipeline_problems import Problem
from klamm.spark.source.option_names import with_committed_reads
from klamm.spark.suggestion import suggestion

Columns = Mapping[str, str]
"""Columns of a source with Spark's type names; empty if unknown."""

_ANY_SERVERS: Final = "localhost:9092"
"""The brokers are known only when a run starts, so that option is not checked here."""
SET_ELSEWHERE: Final = {
    "subscribe": "topic",
    "subscribePattern": "pattern",
    "startingOffsets": "starting_offsets",
    "kafka.bootstrap.servers": "bootstrap_servers of the pipeline",
    "valueFormat": "format",
    "valueSchema": "schema",
    "valueSchemaFile": "schema_file",
    "topic": "topic",
    "checkpointLocation": "checkpoint of the pipeline",
    "badRecords": "bad_records",
    "appendToExisting": "append_to_existing",
    "compactEvery": "compact_every",
    "partitionByDate": "partition_by_date",
    "path": "table",
}
"""Options that have their own key in a file."""
_OPTION: Final = re.compile(r"'([\w.]+)'")
_DATES: Final = ("timestamp", "timestamp_ntz", "date")


def prefixed(client: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Kafka's clients as options of `format("klamm")`."""
    return {f"kafka.{name}": value for name, value in client.items()}


def reading_options(source: Source, servers: str, client: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of a source; committed records only unless it names another level.

    `client` are settings of security for all sources. Raises KlammError for a missing or unreadable schema.
    """
    from klamm.spark.dataframes import value_options

    options = {
        "kafka.bootstrap.servers": servers,
        "startingOffsets": source.starting_offsets,
        "subscribe": source.topic,
        "subscribePattern": source.pattern,
        **prefixed(client or {}),
        **source.options,
        **value_options(source.format, source.schema, source.schema_file, source.options.get("valueMessage")),
    }
    return with_committed_reads({name: value for name, value in options.items() if value is not None})


def source_problems(source: Source) -> tuple[list[Problem], Columns]:
    """Check options, schema and column names; returns the columns if the schema can be read."""
    what = f"source {source.name!r}"
    problems: list[Problem] = []
    if not (has_schema := _has_schema(source, problems)):
        # The other options are checked anyway; none of them needs a schema.
        source = replace(source, format="raw", schema=None, schema_file=None)
    if source.pattern is not None:
        source = replace(source, topic=None)
    try:
        columns = _columns(source)
    except KlammError as error:
        problems.append(Problem(_line_of_option(source, str(error)), f"{what}: {error}"))
        return problems, {}
    if not has_schema:
        return problems, {}
    named = {"watermark": [source.watermark.column] if source.watermark is not None else []}
    named["deduplicate"] = list(source.deduplicate)
    for key, names in named.items():
        for name in names:
            if _type_of(name, columns) is None:
                reason = f"{what} has no column {name!r} for {key!r}.{suggestion(name, columns)}"
                problems.append(Problem(source.line_of(key), reason))
    return problems, columns


def _has_schema(source: Source, problems: list[Problem]) -> bool:
    """Whether the values' format is known; a missing or superfluous schema is reported elsewhere."""
    given = [key for key in ("schema", "schema_file") if getattr(source, key) is not None]
    if len(given) != 1 or source.format not in ("json", "avro", "protobuf"):
        return not given and source.format in ("raw", "string")
    try:
        message = {name: value for name, value in source.options.items() if name.lower() == "valuemessage"}
        _columns(replace(source, topic=source.name, pattern=None, starting_offsets="earliest", options=message))
    except KlammError as error:
        problems.append(Problem(source.line_of(given[0]), f"source {source.name!r}: {error}"))
        return False
    return True


def _columns(source: Source) -> Columns:
    from klamm.spark.source.read_options import parse_read_options
    from klamm.spark.source.topic_schema import full_schema, read_schema
    from klamm.spark.source.value_format import load_value_schema, value_decoder

    options = parse_read_options(reading_options(source, _ANY_SERVERS), streaming=not source.static)
    decoder = value_decoder(load_value_schema(options), options)
    full = full_schema(options, decoder.arrow_fields if decoder is not None else ())
    return {column.name: column.dataType.simpleString() for column in read_schema(options, full)}


def _type_of(name: str, columns: Columns) -> str | None:
    """Return the type of a column, `struct` for a nested field; None if there is no such column."""
    first, dot, _ = name.partition(".")
    kinds = {column.lower(): kind for column, kind in columns.items()}
    found = kinds.get(first.strip("`").lower())
    return "struct" if found is not None and dot else found


def _line_of_option(part: Source | Sink, sentence: str) -> int:
    """Return the line of the option that the sentence names first."""
    for name in _OPTION.findall(sentence):
        for option in part.options:
            if option.lower() == name.lower():
                return part.line_of(f"options.{option}")
        if (key := SET_ELSEWHERE.get(name)) is not None and key in part.lines:
            return part.line_of(key)
    return part.line


def topic_options(sink: Sink) -> dict[str, str]:
    """Return the options of a sink that writes a topic, with the guarantee that is a key of its own."""
    return {**sink.options, "guarantee": sink.guarantee} if sink.guarantee is not None else {**sink.options}


def sink_problems(sink: Sink, columns: Columns) -> Iterator[Problem]:
    """`columns` are those of the sink's source, if it reads a source directly."""
    what = f"sink {sink.name!r}"
    try:
        if sink.topic is not None:
            from klamm.spark.sink.write_options import parse

            given = {"kafka.bootstrap.servers": _ANY_SERVERS, "topic": sink.topic, **topic_options(sink)}
            parse(given)
        elif sink.table is not None and sink.format == "delta":
            from klamm.spark.tables.delta import parse_options

            parse_options({"path": sink.table, "badRecords": sink.bad_records or "", **sink.options})
    except KlammError as error:
        yield Problem(_line_of_option(sink, str(error)), f"{what}: {error}")
    if not columns:
        return
    for key in ("key", "value", "partition_by_date"):
        name = getattr(sink, key)
        if isinstance(name, str) and _type_of(name, columns) is None:
            reason = f"{what}: {sink.view!r} has no column {name!r} for {key!r}.{suggestion(name, columns)}"
            yield Problem(sink.line_of(key), reason)
    date = sink.partition_by_date
    kind = _type_of(date, columns) if isinstance(date, str) else None
    if kind not in (None, "struct", *_DATES):
        reason = f"{what}: 'partition_by_date' needs a timestamp or a date, and {date!r} is {kind}."
        yield Problem(sink.line_of("partition_by_date"), reason)
