"""A pipeline from a YAML file: `read_yaml(text, file)`. docs/how-to/pipelines.md describes the keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from klamm.spark.pipeline.checks import checked
from klamm.spark.pipeline.fields import Fields
from klamm.spark.pipeline.pipeline_model import (
    FORMATS,
    GUARANTEES,
    MODES,
    ON_ERROR,
    TABLE_FORMATS,
    PipelineSpec,
    Restart,
    Sink,
    Source,
    Trigger,
    View,
    duration_ms,
)
from klamm.spark.pipeline.pipeline_problems import PipelineError, Problem
from klamm.spark.pipeline.yaml_tree import Scalar, Table, Tree, parse

_TOP: Final = (
    "name",
    "bootstrap_servers",
    "checkpoint",
    "trigger",
    "restart",
    "settings",
    "sources",
    "views",
    "sinks",
)
_SOURCE: Final = (
    "topic",
    "pattern",
    "format",
    "schema",
    "schema_file",
    "starting_offsets",
    "static",
    "watermark",
    "deduplicate",
    "options",
)
_VIEW: Final = ("sql", "watermark", "deduplicate", "on_error", "dead_letters")
_SINK: Final = (
    "from",
    "topic",
    "table",
    "format",
    "mode",
    "key",
    "value",
    "partition_by_date",
    "compact_every",
    "bad_records",
    "append_to_existing",
    "group",
    "guarantee",
    "options",
)


def read_yaml(text: str, file: str, environment: Mapping[str, str] = os.environ) -> PipelineSpec:
    """Return the checked pipeline. Raises PipelineError with all problems."""
    tree = parse(text, file, environment)
    problems: list[Problem] = []
    top = Fields(tree, "a pipeline", _TOP, problems)
    name, checkpoint = top.text("name"), top.text("checkpoint")
    for key in ("name", "checkpoint", "sources", "sinks"):
        if not top.has(key):
            problems.append(Problem(1, f"the pipeline has no {key!r}."))
    spec = PipelineSpec(
        name=name or "",
        file=file,
        checkpoint=checkpoint or "",
        bootstrap_servers=top.text("bootstrap_servers"),
        trigger=_trigger(top),
        restart=_restart(top, problems),
        settings=top.options("settings"),
        sources=tuple(_source(*entry, problems) for entry in _entries(top, "sources", "source", problems)),
        views=tuple(_view(*entry, problems) for entry in _entries(top, "views", "view", problems)),
        sinks=tuple(_sink(*entry, problems) for entry in _entries(top, "sinks", "sink", problems)),
        kind="yaml",
    )
    return checked(spec, problems)


def _entries(top: Fields, key: str, what: str, problems: list[Problem]) -> list[tuple[str, Table, int]]:
    """Return the named mappings under `key`; a view may be just its SQL."""
    entries: list[tuple[str, Table, int]] = []
    for name, tree in top.tables(key).items():
        line = top.name_line(key, name)
        if what == "view" and isinstance(tree, Scalar) and isinstance(tree.value, str):
            tree = Table({"sql": tree}, tree.line, {"sql": line})
        if isinstance(tree, Table):
            entries.append((name, tree, line))
        else:
            problems.append(Problem(line, f"{what} {name!r} must be keys with values."))
    return entries


def _trigger(top: Fields) -> Trigger:
    text = top.text("trigger")
    if text is None:
        return Trigger()
    if text.replace(" ", "_").lower() in ("available_now", "once"):
        return Trigger(available_now=True)
    try:
        return Trigger(interval_ms=duration_ms(text))
    except ValueError:
        top.wrong(top.key_line("trigger"), f"'trigger' must be a duration like 5s, or available_now, not {text!r}.")
        return Trigger()


def _restart(top: Fields, problems: list[Problem]) -> Restart:
    items = top.tables("restart")
    lines = {name: top.name_line("restart", name) for name in items}
    fields = Fields(
        Table(items, top.key_line("restart"), lines), "'restart'", ("attempts", "first_delay", "max_delay"), problems
    )
    defaults = Restart()
    return Restart(
        attempts=fields.count("attempts", defaults.attempts) or 0,
        first_delay_ms=fields.duration("first_delay", defaults.first_delay_ms, 1),
        max_delay_ms=fields.duration("max_delay", defaults.max_delay_ms, 1),
    )


def _source(name: str, tree: Table, line: int, problems: list[Problem]) -> Source:
    fields = Fields(tree, f"source {name!r}", _SOURCE, problems)
    topic, pattern = fields.text("topic"), fields.text("pattern")
    return Source(
        name=name,
        line=line,
        topic=name if topic is None and pattern is None else topic,
        pattern=pattern,
        format=fields.choice("format", FORMATS, "json"),
        schema=fields.text("schema"),
        schema_file=fields.text("schema_file"),
        starting_offsets=fields.text("starting_offsets", "earliest") or "earliest",
        static=fields.flag("static"),
        watermark=fields.watermark(),
        deduplicate=fields.names("deduplicate"),
        options=fields.options("options"),
        lines=fields.lines(),
    )


def _view(name: str, tree: Table, line: int, problems: list[Problem]) -> View:
    fields = Fields(tree, f"view {name!r}", _VIEW, problems)
    sql = fields.text("sql")
    if sql is None and not fields.has("sql"):
        problems.append(Problem(line, f"view {name!r} has no 'sql'."))
    return View(
        name=name,
        line=_sql_line(tree.items.get("sql"), line),
        sql=sql or "",
        watermark=fields.watermark(),
        deduplicate=fields.names("deduplicate"),
        on_error=fields.choice("on_error", ON_ERROR, "fail"),
        dead_letters=fields.text("dead_letters"),
    )


def _sql_line(tree: Tree | None, line: int) -> int:
    """Return the first line of the query: a block (`sql: |`) begins on the line after its mark."""
    if not isinstance(tree, Scalar) or not isinstance(tree.value, str):
        return line
    return tree.line + 1 if "\n" in tree.value else tree.line


def _sink(name: str, tree: Table, line: int, problems: list[Problem]) -> Sink:
    fields = Fields(tree, f"sink {name!r}", _SINK, problems)
    view, table = fields.text("from"), fields.text("table")
    if view is None:
        problems.append(Problem(line, f"sink {name!r} has no 'from': name the view to write."))
    formats, default = (TABLE_FORMATS, "delta") if table is not None else (("json", "raw"), "json")
    return Sink(
        name=name,
        line=line,
        view=view or "",
        topic=fields.text("topic"),
        table=table,
        format=fields.choice("format", formats, default),
        mode=fields.choice("mode", MODES, "append"),
        key=fields.text("key"),
        value=fields.text("value"),
        partition_by_date=fields.text("partition_by_date"),
        compact_every=fields.count("compact_every", None),
        bad_records=fields.text("bad_records"),
        append_to_existing=fields.flag("append_to_existing") if fields.has("append_to_existing") else None,
        group=fields.text("group"),
        guarantee=fields.choice("guarantee", GUARANTEES, GUARANTEES[0]) if fields.has("guarantee") else None,
        options=fields.options("options"),
        lines=fields.lines(),
    )


__all__ = ["PipelineError", "read_yaml"]
