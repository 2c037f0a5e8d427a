"""Prometheus text, with the names of the JMX exporter's rules for Kafka (kafka-2_0_0.yml, lower-case names).

| metric | exported as |
|---|---|
| meter `<x>PerSec` | counter `<group>_<type>_<x>_total` |
| gauge | gauge `<group>_<type>_<name>`; a value that is not a number is omitted, as in the exporter |
| histogram, timer | gauge `<group>_<type>_<name>{quantile=...}` and counter `..._count`, no `_sum` |
| meter `<x>Percent` | gauge `<group>_<type>_<x>_percent` (only without tags) and counter `..._count` in nanoseconds |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from klamm.metrics.instruments import (
    PERCENTILES,
    BusyRatio,
    Counter,
    Gauge,
    GaugeTable,
    Histogram,
    HistogramColumn,
    Meter,
    Tags,
    Timer,
)

Metric: TypeAlias = Meter | Counter | Gauge | Histogram | HistogramColumn | Timer | BusyRatio

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9:]+")
PIECE: Final = 30
"""Members per piece. Meters and gauges have very many: one per partition or topic."""
HISTOGRAMS: Final = 5
"""The same for histograms: sorting the samples of one takes a tenth of a millisecond."""
_QUANTILES: Final = tuple(f"0.{p}" for p in PERCENTILES)


def base_name(group: str, type_: str, name: str) -> str:
    """`kafka.network`, `RequestMetrics`, `TotalTimeMs` -> `kafka_network_requestmetrics_totaltimems`."""
    return _UNSAFE.sub("_", f"{group}_{type_}_{name}").lower()


def exported_names(group: str, type_: str, name: str) -> tuple[str, ...]:
    """Return all names under which a family can be exported, for every kind of metric."""
    base = base_name(group, type_, name)
    percent = f"{base.removesuffix('percent')}_percent"
    return base, f"{base}_count", _total_name(base), percent


def render_family(group: str, type_: str, name: str, members: Mapping[Tags, Metric]) -> Iterator[str]:
    """Yield all members of one name as text, in pieces if there are many. They are of one kind."""
    tags = list(members)  # building a list of all pairs would block the loop
    base = base_name(group, type_, name)
    match next(iter(members.values()), None):
        case Histogram() | HistogramColumn() | Timer():
            # The lines of one name belong together, below one head.
            yield from _in_pieces(members, tags, HISTOGRAMS, lambda items: _quantiles(base, items))
            yield from _in_pieces(members, tags, PIECE, lambda items: _render_counts(base, items))
        case BusyRatio():
            yield from _in_pieces(members, tags, max(len(tags), 1), lambda items: _render(base, items))
        case _:
            yield from _in_pieces(members, tags, PIECE, lambda items: _render(base, items))


def _in_pieces(
    members: Mapping[Tags, Metric], tags: list[Tags], size: int, render: Callable[[list[tuple[Tags, Any]]], list[str]]
) -> Iterator[str]:
    """Yield the lines of all members, `size` members per piece. Only the first piece has the head."""
    has_head = False
    for start in range(0, len(tags), size):
        items = [(each, members[each]) for each in tags[start : start + size] if each in members]
        if not items:  # removed meanwhile
            continue
        lines = render(items)
        if lines and has_head:
            del lines[0]
        has_head |= bool(lines)
        yield "".join(lines)


def render_table(group: str, type_: str, name: str, table: GaugeTable[Any, Any]) -> Iterator[str]:
    """Yield the gauges of a table as text, in pieces."""
    base = base_name(group, type_, name)
    keys = table.keys()
    keys.reverse()
    has_head = False
    while keys:
        some = keys[: -PIECE - 1 : -1]
        del keys[-PIECE:]  # freeing all of them at the end would hold the loop
        lines = _gauges(base, table.samples(some))
        if lines and has_head:
            del lines[0]
        has_head |= bool(lines)
        yield "".join(lines)


def _render(base: str, items: list[tuple[Tags, Metric]]) -> list[str]:
    match items[0][1]:
        case Meter() | Counter():
            return _counters(_total_name(base), ((t, m.count) for t, m in items if isinstance(m, Meter | Counter)))
        case Gauge():
            return _gauges(base, ((t, m.value) for t, m in items if isinstance(m, Gauge)))
        case BusyRatio():
            return _percents(base, [(t, m) for t, m in items if isinstance(m, BusyRatio)])
        case _:
            raise AssertionError("histograms have two names")


def _total_name(base: str) -> str:
    stem, per_sec, _ = base.rpartition("persec")
    return f"{stem}_total" if per_sec else f"{base}_count"


def _counters(name: str, values: Iterable[tuple[Tags, int]]) -> list[str]:
    return [_head(name, "counter"), *(f"{name}{_labels(tags)} {value}\n" for tags, value in values)]


def _gauges(name: str, values: Iterable[tuple[Tags, object]]) -> list[str]:
    lines = [f"{name}{_labels(tags)} {_number(v)}\n" for tags, v in values if isinstance(v, int | float)]
    return [_head(name, "gauge"), *lines] if lines else []


def _percents(base: str, items: list[tuple[Tags, BusyRatio]]) -> list[str]:
    lines = _counters(f"{base}_count", ((tags, ratio.count_ns) for tags, ratio in items))
    untagged = [((), ratio.value) for tags, ratio in items if not tags]
    return lines + _gauges(base.removesuffix("percent") + "_percent", untagged)


def _quantiles(base: str, items: list[tuple[Tags, Histogram | HistogramColumn | Timer]]) -> list[str]:
    lines = [_head(base, "gauge")]
    for tags, histogram in items:
        for quantile, value in zip(_QUANTILES, histogram.percentiles(), strict=True):
            lines.append(f"{base}{_labels((*tags, ('quantile', quantile)))} {_number(value)}\n")
    return lines


def _render_counts(base: str, items: list[tuple[Tags, Histogram | HistogramColumn | Timer]]) -> list[str]:
    return _counters(f"{base}_count", ((tags, histogram.count) for tags, histogram in items))


def _head(name: str, kind: str) -> str:
    return f"# TYPE {name} {kind}\n"


def _labels(tags: Tags) -> str:
    if not tags:
        return ""
    return "{" + ",".join(f'{_UNSAFE.sub("_", key)}="{_escape(value)}"' for key, value in tags) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: int | float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
