"""A pipeline as a value: frozen, checked, free of Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

FORMATS: Final = ("raw", "string", "json", "avro", "protobuf")
MODES: Final = ("append", "update", "complete")
TABLE_FORMATS: Final = ("delta", "parquet")
GUARANTEES: Final = ("at_least_once", "exactly_once")
ON_ERROR: Final = ("fail", "dead_letter")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_WORDS: Final = {
    "ms": ("ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "second", "seconds"),
    "m": ("m", "min", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_UNIT_OF: Final = {word: unit for unit, words in _WORDS.items() for word in words}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def duration_ms(text: str) -> int:
    """`5s`, `10 minutes`, `1h 30m` in milliseconds; ValueError with a sentence for anything else."""
    position, total = 0, 0.0
    while (match := _DURATION.match(text, position)) is not None:
        unit = _UNIT_OF.get(match[2].lower())
        if unit is None:
            raise ValueError(f"{text!r} is not a duration: {match[2]!r} is not a unit; use ms, s, m, h, d or w.")
        total += float(match[1]) * _UNITS_MS[unit]
        position = match.end()
    if position != len(text) or not text.strip():
        raise ValueError(f"{text!r} is not a duration; write it as 500ms, 5s, 10 minutes or 1h 30m.")
    return round(total)


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay_ms: int

    @property
    def delay(self) -> str:
        return f"{self.delay_ms} milliseconds"


@dataclass(frozen=True, slots=True)
class Trigger:
    """`available_now` reads the available records and ends; an interval of 0 starts a batch as soon as the last is
    done."""

    available_now: bool = False
    interval_ms: int = 0

    def __str__(self) -> str:
        if self.available_now:
            return "once, over the available records"
        return f"every {self.interval_ms / 1000:g} s" if self.interval_ms else "as soon as there is data"


@dataclass(frozen=True, slots=True)
class Restart:
    """Restarts of a failed query: up to `attempts` consecutive ones, with exponential back-off."""

    attempts: int = 10
    first_delay_ms: int = 1000
    max_delay_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Source:
    """A topic (or the topics that match `pattern`) as a view. `static` is read once, when the run starts."""

    name: str
    line: int
    topic: str | None = None
    pattern: str | None = None
    format: str = "json"
    schema: str | None = None
    schema_file: str | None = None
    starting_offsets: str = "earliest"
    static: bool = False
    watermark: Watermark | None = None
    deduplicate: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Lines of keys, and of options as `options.<name>`, for files with line numbers."""

    def line_of(self, key: str) -> int:
        return line_of(self, key)

    @property
    def location_columns(self) -> tuple[str, str, str]:
        """The columns that identify the record of a row."""
        return ("topic", "partition", "offset") if self.format == "raw" else ("_topic", "_partition", "_offset")

    @property
    def reads(self) -> str:
        return self.topic if self.topic is not None else f"/{self.pattern}/"


@dataclass(frozen=True, slots=True)
class View:
    """A step: SQL over sources and other views, or a function that takes its inputs as DataFrames."""

    name: str
    line: int
    sql: str | None = None
    function: Callable[..., Any] | None = None
    inputs: tuple[str, ...] = ()
    watermark: Watermark | None = None
    deduplicate: tuple[str, ...] = ()
    on_error: str = "fail"
    """Reaction to a record on which the view fails: the query ends, or the record becomes a dead letter."""
    dead_letters: str | None = None
    """Path of their table; default: `dead_letters_of`."""


@dataclass(frozen=True, slots=True)
class Sink:
    """The output of a view: one streaming query with its own checkpoint, `<checkpoint>/<name>`."""

    name: str
    line: int
    view: str
    topic: str | None = None
    table: str | None = None
    format: str = ""
    mode: str = "append"
    key: str | None = None
    value: str | None = None
    partition_by_date: str | None = None
    compact_every: int | None = None
    bad_records: str | None = None
    append_to_existing: bool | None = None
    group: str | None = None
    guarantee: str | None = None
    """Of a topic: at_least_once, which is the default, or exactly_once."""
    options: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)

    def line_of(self, key: str) -> int:
        return line_of(self, key)

    @property
    def written(self) -> str:
        """The guarantee in words."""
        options = {name.lower(): value for name, value in self.options.items()}
        guarantee = self.guarantee or options.get("guarantee", GUARANTEES[0])
        is_delta = self.topic is None and self.format == "delta"
        return "exactly once" if is_delta or guarantee == GUARANTEES[1] else "at least once"

    @property
    def target(self) -> str:
        return f"topic {self.topic}" if self.topic is not None else f"{self.format} table {self.table}"


def line_of(part: Source | Sink, key: str) -> int:
    """Return the line of `key`, or of its parent."""
    while key not in part.lines and "." in key:
        key = key.partition(".")[0]
    return part.lines.get(key, part.line)


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A pipeline as `klamm pipeline run` runs it. Views are ordered: each comes after its inputs."""

    name: str
    file: str
    checkpoint: str
    bootstrap_servers: str | None
    trigger: Trigger
    restart: Restart
    settings: Mapping[str, str]
    sources: tuple[Source, ...]
    views: tuple[View, ...]
    sinks: tuple[Sink, ...]
    kind: Literal["yaml", "python"]

    @property
    def steps(self) -> tuple[Source | View, ...]:
        return (*self.sources, *self.views)

    def upstream(self, name: str) -> tuple[str, ...]:
        """Return the views and sources that `name` depends on, itself included, in the order of the file."""
        inputs = {view.name: view.inputs for view in self.views}
        wanted: set[str] = set()
        waiting = [name]
        while waiting:
            if (current := waiting.pop()) not in wanted:
                wanted.add(current)
                waiting.extend(inputs.get(current, ()))
        return tuple(step.name for step in self.steps if step.name in wanted)


def dead_letters_of(spec: PipelineSpec, view: View) -> str:
    """Return the dead-letter table of a view: beside the checkpoint, unless the view names one."""
    return view.dead_letters or f"{spec.checkpoint.rstrip('/')}_dead_letters/{view.name}"


def find_cycle(edges: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return a cycle of names, with the first one repeated at the end; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> tuple[str, ...]:
        if name in path:
            return (*path[path.index(name) :], name)
        if name in done:
            return ()
        for other in edges.get(name, ()):
            if found := visit(other, (*path, name)):
                return found
        done.add(name)
        return ()

    return next((found for name in edges if (found := visit(name, ()))), ())


def in_order(views: Iterable[View]) -> tuple[View, ...]:
    """Sort views after their inputs; independent views keep the order of the file."""
    remaining = list(views)
    waiting = {view.name for view in remaining}
    ordered: list[View] = []
    while remaining:
        ready = next(view for view in remaining if not waiting & set(view.inputs))
        remaining.remove(ready)
        waiting.discard(ready.name)
        ordered.append(ready)
    return tuple(ordered)
