"""All metrics of a broker by Kafka's object name: `<group>:type=<type>,name=<name>[,tag=value...]`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, TypeVar

from klamm.clock import Clock
from klamm.metrics.exposition import Metric, exported_names, render_family, render_table
from klamm.metrics.instruments import (
    BusyRatio,
    Counter,
    Gauge,
    GaugeTable,
    HasHighest,
    Histogram,
    Meter,
    Peak,
    Tags,
    Timer,
)

M = TypeVar("M", bound=Metric)
K = TypeVar("K")
V = TypeVar("V")
FamilyKey = tuple[str, str, str]


class MetricsRegistry:
    """Registers, finds and removes metrics. Both loops of a broker may register; each metric has one writer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._families: dict[FamilyKey, dict[Tags, Metric]] = {}
        self._tables: dict[FamilyKey, GaugeTable[Any, Any]] = {}
        self._rows: dict[tuple[str, str], dict[Any, Any]] = {}
        self._peaks: dict[str, dict[Peak, None]] = {}
        self._tagged: dict[tuple[str, str], dict[tuple[FamilyKey, Tags], None]] = {}

    def meter(self, group: str, type_: str, name: str, tags: Mapping[str, str] | None = None) -> Meter:
        return self._get_or_add(group, type_, name, tags, Meter, lambda: Meter(self.clock))

    def histogram(self, group: str, type_: str, name: str, tags: Mapping[str, str] | None = None) -> Histogram:
        return self._get_or_add(group, type_, name, tags, Histogram, Histogram)

    def timer(self, group: str, type_: str, name: str, tags: Mapping[str, str] | None = None) -> Timer:
        return self._get_or_add(group, type_, name, tags, Timer, lambda: Timer(self.clock))

    def busy_ratio(
        self, group: str, type_: str, name: str, tags: Mapping[str, str] | None = None, *, inverted: bool = False
    ) -> BusyRatio:
        """A meter named `...Percent`: its value is the idle share (or, `inverted`, the busy share) of the time."""
        return self._get_or_add(group, type_, name, tags, BusyRatio, lambda: BusyRatio(self.clock, inverted=inverted))

    def gauge(
        self, group: str, type_: str, name: str, fn: Callable[[], object], tags: Mapping[str, str] | None = None
    ) -> Gauge:
        """Register `fn` under the name. It replaces an earlier gauge, whose owner was replaced."""
        return self.register(group, type_, name, tags, Gauge(fn))

    def counter(
        self, group: str, type_: str, name: str, fn: Callable[[], int], tags: Mapping[str, str] | None = None
    ) -> Counter:
        """Register a total that its owner keeps."""
        return self.register(group, type_, name, tags, Counter(fn))

    def peak(
        self,
        loop: str,
        group: str,
        type_: str,
        name: str,
        current: Callable[[], int | float],
        tags: Mapping[str, str] | None = None,
        owner: HasHighest | None = None,
    ) -> Peak:
        """Register the maximum of a value that code of the named loop changes (see `LoopMeter`)."""
        peak = self.register(group, type_, name, tags, Peak(current, owner))
        self._peaks.setdefault(loop, {})[peak] = None
        return peak

    def rotate_peaks(self, loop: str) -> None:
        """Begin a new period of the peaks that code of this loop writes. On that loop only."""
        for peak in list(self._peaks.get(loop, ())):
            peak.rotate()

    def rows(
        self,
        group: str,
        type_: str,
        gauges: Mapping[str, Callable[[V], object]],
        tags: Callable[[K], Mapping[str, str]],
    ) -> dict[K, V]:
        """Return the rows of one table per gauge, by key. The first call registers the tables."""
        rows = self._rows.get((group, type_))
        if rows is None:
            rows = self._rows.setdefault((group, type_), {})
            for name, value in gauges.items():
                self.gauge_table(group, type_, name, GaugeTable(rows, tags, value))
        return rows

    def gauge_table(self, group: str, type_: str, name: str, table: GaugeTable[Any, Any]) -> None:
        """Register all gauges of one name at once. `find` does not find its members."""
        self._tables[group, type_, name] = table

    def register(self, group: str, type_: str, name: str, tags: Mapping[str, str] | None, metric: M) -> M:
        """Register an existing metric, for instance a column of a `SampleTable`."""
        key, tag_key = (group, type_, name), _tags(tags)
        self._families.setdefault(key, {})[tag_key] = metric
        for tag in tag_key:
            self._tagged.setdefault(tag, {})[key, tag_key] = None
        return metric

    def find(self, group: str, type_: str, name: str, tags: Mapping[str, str] | None = None) -> Metric | None:
        return self._families.get((group, type_, name), {}).get(_tags(tags))

    def remove(self, group: str, type_: str, name: str, tags: Mapping[str, str] | None = None) -> None:
        self._remove((group, type_, name), _tags(tags))

    def remove_tagged(self, tag: str, value: str) -> None:
        """Remove every metric with the tag, for instance `topic` after a deletion.

        The cost is that of these metrics.
        """
        for key, tags in list(self._tagged.get((tag, value), ())):
            self._remove(key, tags)

    @property
    def size(self) -> int:
        """Kafka's `yammer-metrics-count`."""
        return sum(map(len, list(self._families.values()))) + sum(map(len, list(self._tables.values())))

    def families(self, names: Container[str] | None = None) -> Iterator[str]:
        """Yield the exposition in pieces, so that a scrape can yield to other work in between.

        With `names`, only the families that export one of these names.
        """
        for key, members in list(self._families.items()):
            if names is None or any(name in names for name in exported_names(*key)):
                yield from render_family(*key, members)
        for key, table in list(self._tables.items()):
            if names is None or any(name in names for name in exported_names(*key)):
                yield from render_table(*key, table)

    def exposition(self) -> str:
        return "".join(self.families())

    def _get_or_add(
        self,
        group: str,
        type_: str,
        name: str,
        tags: Mapping[str, str] | None,
        kind: type[M],
        make: Callable[[], M],
    ) -> M:
        found = self.find(group, type_, name, tags)
        if found is None:
            return self.register(group, type_, name, tags, make())
        if not isinstance(found, kind):
            raise ValueError(f"metric {group}:{type_}:{name} is a {type(found).__name__}, not a {kind.__name__}")
        return found

    def _remove(self, key: FamilyKey, tags: Tags) -> None:
        members = self._families.get(key)
        if members is None or (removed := members.pop(tags, None)) is None:
            return
        if isinstance(removed, Peak):
            for peaks in self._peaks.values():
                peaks.pop(removed, None)
        if not members:
            self._families.pop(key, None)
        for tag in tags:
            tagged = self._tagged.get(tag)
            if tagged is not None:
                tagged.pop((key, tags), None)
                if not tagged:
                    self._tagged.pop(tag, None)


def _tags(tags: Mapping[str, str] | None) -> Tags:
    return tuple(tags.items()) if tags else ()
