"""Filters of a batch query that save reading: on topic, partition, offset, timestamp and key.

Filters on topic, partition and offset are fully applied here. A lower bound of the timestamp moves the start of a
range, and keys are compared before rows travel to Spark; Spark checks both again.

Use it for a DataFrame with a single filter only: Spark 4.3 keeps the plan of the first filter and reuses it for every
later query on the same DataFrame or view. So the option is off by default.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from klamm.client.cluster_client import ClusterClient
from klamm.model import TopicPartition
from klamm.spark.source.read_options import RAW
from klamm.spark.source.reader import KlammReader
from klamm.spark.source.source_offsets import OffsetRange

Test = Callable[[Any], bool]

_COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda actual, values: actual in values,
}
_NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp", "timestamptype")


class PushdownReader(KlammReader):
    """Created only with option `pushdown`: Spark refuses readers with filters if its own setting is off."""

    _places: tuple[Filter, ...] = ()
    _first_ms: int | None = None
    _keys: tuple[bytes, ...] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Yield the filters that Spark still has to apply."""
        for one in filters:
            if not self._push(one):
                yield one

    def _push(self, one: Filter) -> bool:
        inner = one.child if isinstance(one, Not) else one
        name = self._column(inner)
        if isinstance(one, IsNotNull) and name in _NEVER_NULL:
            return True
        if type(inner) not in _COMPARISONS or name is None:
            return False
        value: Any = inner.value  # type: ignore[attr-defined]
        if value is None or (isinstance(inner, In) and None in value):
            return False  # Spark handles comparisons with null
        if name in ("topic", "partition"):
            self._places += (one,)
            return True
        if name == "offset" and not isinstance(one, Not) and isinstance(value, int):
            self._places += (one,)
            return True
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo) and name == "timestamp":
            self._first_ms = _later(self._first_ms, _milliseconds(value))
        if isinstance(one, EqualTo | In) and name == "key":
            keys = tuple(map(bytes, value)) if isinstance(one, In) else (bytes(value),)
            self._keys = keys if self._keys is None else tuple(key for key in self._keys if key in keys)
        return False

    def _column(self, one: Filter) -> str | None:
        """Return the connector's name of the column; None for a column of the value."""
        path: tuple[str, ...] = getattr(one, "attribute", ())
        if len(path) != 1:
            return None
        name = path[0].lower()
        if self._options.value_format == RAW or name == "key":
            return name
        return name[1:] if name[:1] == "_" and name[1:] in _NEVER_NULL else None

    def _ranges(self, ranges: list[OffsetRange], client: ClusterClient) -> list[OffsetRange]:
        kept = [bounded for r in ranges if self._is_wanted(r.tp) and (bounded := self._bounded(r)).size > 0]
        if self._first_ms is None or not kept:
            return kept
        starts = client.list_offsets(dict.fromkeys((r.tp for r in kept), self._first_ms))
        later = [OffsetRange(r.tp, max(r.start, start), r.end) for r in kept if (start := starts[r.tp]) is not None]
        return [r for r in later if r.size > 0]

    def _is_wanted(self, tp: TopicPartition) -> bool:
        return all(
            _holds(one, tp.topic if self._column_of(one) == "topic" else tp.partition)
            for one in self._places
            if self._column_of(one) != "offset"
        )

    def _bounded(self, whole: OffsetRange) -> OffsetRange:
        start, end = whole.start, whole.end
        for one in self._places:
            if self._column_of(one) != "offset":
                continue
            value: int = one.value  # type: ignore[attr-defined]
            match one:
                case EqualTo():
                    start, end = max(start, value), min(end, value + 1)
                case GreaterThan():
                    start = max(start, value + 1)
                case GreaterThanOrEqual():
                    start = max(start, value)
                case LessThan():
                    end = min(end, value)
                case LessThanOrEqual():
                    end = min(end, value + 1)
        return OffsetRange(whole.tp, start, max(start, end))

    def _column_of(self, one: Filter) -> str | None:
        return self._column(one.child if isinstance(one, Not) else one)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches = super().read(partition)
        if self._keys is None or "key" not in [name.lower() for name in self._schema.names]:
            return batches
        return _with_keys(batches, pa.array(self._keys, pa.binary()))


def _with_keys(batches: Iterator[pa.RecordBatch], keys: pa.Array) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        slot = [name.lower() for name in batch.schema.names].index("key")
        kept = batch.filter(pc.is_in(batch.column(slot), value_set=keys))
        if kept.num_rows:
            yield kept


def _holds(one: Filter, actual: Any) -> bool:
    if isinstance(one, Not):
        return not _holds(one.child, actual)
    return _COMPARISONS[type(one)](actual, one.value)  # type: ignore[attr-defined]


def _milliseconds(value: datetime) -> int:
    """Return a time slightly before `value`, since floats are not exact."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return int(value.timestamp() * 1000) - 1


def _later(first_ms: int | None, bound_ms: int) -> int | None:
    """Brokers do not search times before 1970, but records may have them: such a bound is left to Spark."""
    return first_ms if bound_ms <= 0 else max(first_ms or 0, bound_ms)
