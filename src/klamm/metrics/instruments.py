"""The kinds of metrics.

One owner writes each in O(1) without a lock; derived values are computed when they are read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from klamm.clock import Clock

WINDOW: Final = 1028
"""Number of samples that a histogram keeps, the newest ones. Kafka's decaying reservoir has the same size."""
PEAK_PERIOD_S: Final = 5.0
PEAK_PERIODS: Final = 12
PERCENTILES: Final = (50, 75, 95, 98, 99, 999)
"""The percentile attributes a JMX histogram has; 999 stands for 99.9."""

Number = int | float
Tags: TypeAlias = tuple[tuple[str, str], ...]
K = TypeVar("K")
V = TypeVar("V")


class Meter:
    """A count of events (`meter.count += 1`) and the rates that follow from it.

    The rates are updated when they are read: the rate is assumed constant between two reads, so no periodic task is
    needed and an unread meter costs nothing.
    """

    __slots__ = ("_clock", "_rates", "_read_at", "_read_count", "count")

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self._clock = clock
        self._read_at = clock.monotonic()
        self._read_count = 0
        self._rates: dict[int, float] = {}

    def mark(self, n: int = 1) -> None:
        self.count += n

    def rate(self, window_minutes: int = 1) -> float:
        """Events per second, exponentially weighted over 1, 5 or 15 minutes."""
        self._tick()
        return self._rates.get(window_minutes, 0.0)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        elapsed = now - self._read_at
        if elapsed < 1.0 and self._rates:
            return
        if elapsed <= 0:
            return
        current = (self.count - self._read_count) / elapsed
        for minutes in (1, 5, 15):
            before = self._rates.get(minutes, current)
            self._rates[minutes] = current + (before - current) * math.exp(-elapsed / (60 * minutes))
        self._read_at, self._read_count = now, self.count


class Gauge:
    """A value that is computed when it is read. `fn` must be cheap and must not change anything."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn = fn

    @property
    def value(self) -> object:
        return self.fn()


class Counter:
    """A total that its owner keeps. It is exported like a meter, and costs the owner nothing."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], int]) -> None:
        self.fn = fn

    @property
    def count(self) -> int:
        return self.fn()


class HasHighest(Protocol):
    """An object that keeps the maximum of its own value."""

    highest: int


class Peak(Gauge):
    """The maximum of a value over the last minute. A peak is reported to every scraper.

    The owner writes (`if size > peak.highest: peak.highest = size`), or keeps `highest` in its own attribute if this
    code runs very often. The `LoopMeter` of the owner's loop calls `rotate`, so readers change nothing.
    """

    __slots__ = ("_current", "_owner", "_past", "highest")

    def __init__(self, current: Callable[[], Number], owner: HasHighest | None = None) -> None:
        super().__init__(self._maximum)
        self._current = current
        self._owner: HasHighest | Peak = self if owner is None else owner
        self._past: tuple[Number, ...] = (0,)
        self.highest: Number = 0

    def rotate(self) -> None:
        """Begin another period of `PEAK_PERIOD_S`."""
        self._past = (*self._past[1 - PEAK_PERIODS :], self._owner.highest)
        self._owner.highest = 0

    def _maximum(self) -> Number:
        return max(self._owner.highest, self._current(), *self._past)


class GaugeTable(Generic[K, V]):
    """Gauges of one name, one per entry of a mapping that its owner keeps up to date.

    Entries are not registered: a broker with 20,000 partitions would register 120,000 gauges while it starts.
    """

    __slots__ = ("_members", "_tags", "_value")

    def __init__(
        self, members: Mapping[K, V], tags: Callable[[K], Mapping[str, str]], value: Callable[[V], object]
    ) -> None:
        self._members = members
        self._tags = tags
        self._value = value

    def __len__(self) -> int:
        return len(self._members)

    def keys(self) -> list[K]:
        return list(self._members)

    def samples(self, keys: Sequence[K]) -> Iterator[tuple[Tags, object]]:
        """Yield tags and value of each key that still has an entry."""
        for key in keys:
            if (member := self._members.get(key)) is not None:
                yield tuple(self._tags(key).items()), self._value(member)


class Histogram:
    """The count of all samples, and percentiles of the newest `WINDOW` samples."""

    __slots__ = ("_cache", "count", "samples")

    def __init__(self) -> None:
        self.count = 0
        self.samples: deque[Number] = deque(maxlen=WINDOW)
        self._cache: tuple[int, tuple[Number, ...]] = (-1, ())

    def update(self, value: Number) -> None:
        self.samples.append(value)
        self.count += 1

    def percentiles(self) -> tuple[Number, ...]:
        """Return the percentiles in the order of `PERCENTILES`; zeros before the first sample."""
        if self._cache[0] != self.count:
            count = self.count
            self._cache = (count, percentiles_of(sorted(self.samples.copy())))
        return self._cache[1]


class SampleTable:
    """Several histograms that are always updated together: a row per update, a histogram per column.

    A column may be computed from the row when it is read: rows are written much more often.
    """

    __slots__ = ("count", "rows")

    def __init__(self) -> None:
        self.count = 0
        self.rows: deque[Sequence[Number]] = deque(maxlen=WINDOW)

    def append(self, row: Sequence[Number]) -> None:
        self.rows.append(row)
        self.count += 1

    def column(self, index: int) -> HistogramColumn:
        return HistogramColumn(self, itemgetter(index))

    def computed_column(self, value: Callable[[Sequence[Number]], Number]) -> HistogramColumn:
        return HistogramColumn(self, value)


class HistogramColumn:
    """One column of a `SampleTable`, read like a `Histogram`."""

    __slots__ = ("_cache", "_table", "_value")

    def __init__(self, table: SampleTable, value: Callable[[Sequence[Number]], Number]) -> None:
        self._table = table
        self._value = value
        self._cache: tuple[int, tuple[Number, ...]] = (-1, ())

    @property
    def count(self) -> int:
        return self._table.count

    def percentiles(self) -> tuple[Number, ...]:
        if self._cache[0] != self._table.count:
            count = self._table.count
            self._cache = (count, percentiles_of(sorted(map(self._value, self._table.rows.copy()))))
        return self._cache[1]


class Timer:
    """Durations in milliseconds, and the rate at which they happen: Kafka's `...RateAndTimeMs` metrics."""

    __slots__ = ("histogram", "meter")

    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram()
        self.meter = Meter(clock)

    def update(self, duration_ms: float) -> None:
        self.histogram.update(duration_ms)
        self.meter.count += 1

    @property
    def count(self) -> int:
        return self.histogram.count

    def percentiles(self) -> tuple[Number, ...]:
        return self.histogram.percentiles()


class BusyRatio:
    """The share of time in which its owner does no work (`ratio.busy_seconds += ...`).

    `count_ns`, the idle time, only grows and is exact; `value` is its rate, weighted over the last minute as Kafka's
    OneMinuteRate is. With `inverted` it is the busy share instead (`AcceptorBlockedPercent`).
    """

    __slots__ = ("_began_at", "_clock", "_inverted", "_read_at", "_read_ns", "_started_at", "_value", "busy_seconds")

    def __init__(self, clock: Clock, *, inverted: bool = False) -> None:
        self.busy_seconds = 0.0
        self._began_at: float | None = None
        self._clock = clock
        self._inverted = inverted
        self._started_at = self._read_at = clock.monotonic()
        self._read_ns = 0
        self._value: float | None = None

    def begin(self) -> None:
        """Start work that lasts several loop turns; readers see it meanwhile."""
        if self._began_at is None:
            self._began_at = self._clock.monotonic()

    def end(self) -> None:
        if self._began_at is not None:
            self.busy_seconds += self._clock.monotonic() - self._began_at
            self._began_at = None

    @property
    def count_ns(self) -> int:
        now = self._clock.monotonic()
        busy = self.busy_seconds + (now - self._began_at if self._began_at is not None else 0.0)
        seconds = busy if self._inverted else max(0.0, now - self._started_at - busy)
        return int(seconds * 1e9)

    @property
    def value(self) -> float:
        now = self._clock.monotonic()
        elapsed = now - self._read_at
        if self._value is None or elapsed >= 1.0:
            self._advance(now, elapsed)
        return self._value if self._value is not None else self._nothing_yet

    @property
    def _nothing_yet(self) -> float:
        return 0.0 if self._inverted else 1.0

    def _advance(self, now: float, elapsed: float) -> None:
        if elapsed <= 0:
            return
        count_ns = self.count_ns
        current = min(1.0, max(0.0, (count_ns - self._read_ns) / (elapsed * 1e9)))
        before = current if self._value is None else self._value
        self._value = current + (before - current) * math.exp(-elapsed / 60)
        self._read_at, self._read_ns = now, count_ns


def percentiles_of(ordered: Sequence[Number]) -> tuple[Number, ...]:
    """Return the percentiles of sorted samples, interpolated between neighbours as in Kafka's snapshots."""
    return tuple(_quantile(ordered, p / 1000 if p > 100 else p / 100) for p in PERCENTILES)


def _quantile(ordered: Sequence[Number], q: float) -> Number:
    if not ordered:
        return 0.0
    position = q * (len(ordered) + 1)
    if position < 1:
        return ordered[0]
    if position >= len(ordered):
        return ordered[-1]
    lower = ordered[int(position) - 1]
    return lower + (position - int(position)) * (ordered[int(position)] - lower)
