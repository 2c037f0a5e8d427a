"""The options that sources and sinks give to `format("klamm")`, and what is wrong with them, found without Spark."""

from __future__ import annotations

from collections.abc import Iterator

from klamm.errors import KlammError
from klamm.spark.pipeline.model import Sink, Source
from klamm.spark.pipeline.problems import Problem, suggestion

_ANY_SERVERS = "localhost:9092"
"""Which brokers there are is known at the start of a run; that option is not looked at here."""


def reading_options(source: Source, servers: str) -> dict[str, str]:
    """Raises KlammError for a schema that is missing or cannot be read."""
    from klamm.spark.topics import value_options

    options = {
        "kafka.bootstrap.servers": servers,
        "startingOffsets": source.starting_offsets,
        "subscribe": source.topic,
        "subscribePattern": source.pattern,
        **source.options,
        **value_options(source.format, source.schema, source.schema_file, source.options.get("valueMessage")),
    }
    return {name: value for name, value in options.items() if value is not None}


def source_problems(source: Source) -> Iterator[Problem]:
    """Options, schema, and columns that the schema does not have."""
    what = f"source {source.name!r}"
    try:
        columns = _columns(source)
    except KlammError as error:
        yield Problem(source.line, f"{what}: {error}")
        return
    known = {column.lower() for column in columns}
    named = {"watermark": [source.watermark.column] if source.watermark is not None else []}
    named["deduplicate"] = list(source.deduplicate)
    for key, names in named.items():
        for name in names:
            if name.partition(".")[0].strip("`").lower() not in known:
                yield Problem(source.line, f"{what} has no column {name!r} for {key!r}.{suggestion(name, columns)}")


def _columns(source: Source) -> list[str]:
    from klamm.spark.options import parse_read_options
    from klamm.spark.schema import full_schema, read_schema
    from klamm.spark.values import load_value_schema, value_decoder

    options = parse_read_options(reading_options(source, _ANY_SERVERS), streaming=not source.static)
    decoder = value_decoder(load_value_schema(options), options)
    full = full_schema(options, decoder.arrow_fields if decoder is not None else ())
    return list(read_schema(options, full).names)


def sink_problems(sink: Sink) -> Iterator[Problem]:
    try:
        if sink.topic is not None:
            from klamm.spark.writer_options import parse

            parse({"kafka.bootstrap.servers": _ANY_SERVERS, "topic": sink.topic, **sink.options})
        elif sink.table is not None and sink.format == "delta":
            from klamm.spark.tables.delta import parse_options

            parse_options({"path": sink.table, "badRecords": sink.bad_records or "", **sink.options})
    except KlammError as error:
        yield Problem(sink.line, f"sink {sink.name!r}: {error}")
