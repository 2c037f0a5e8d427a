"""Progress of a streaming query: rates, batch duration, lag, state, watermark; and the sinks that receive it.

A `Sink` receives every batch: the terminal's table, JSON lines and the Prometheus endpoint are in `progress_sinks`.
`watch.py` shows one query until it ends; `ProgressListener` reports all queries of a session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol, runtime_checkable

from pyspark.sql.streaming.listener import StreamingQueryListener

from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.source.source_offsets import parse_source_offset

_NO_WATERMARK: Final = "1970-01-01T00:00:00"


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch of one query. `watermark` and `timestamp` are as Spark writes them, ISO 8601 in UTC."""

    query_id: str
    run_id: str
    name: str
    batch_id: int
    timestamp: str
    input_rows: int = 0
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    batch_ms: int = 0
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    ended_at: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The next offset of each partition: everything before it is done."""
    state_rows: int = 0
    state_bytes: int = 0
    rows_dropped_by_watermark: int = 0
    watermark: str | None = None

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())

    @property
    def watermark_s(self) -> float | None:
        """Seconds since 1970."""
        return None if self.watermark is None else datetime.fromisoformat(self.watermark).timestamp()


def parse_progress(progress: Mapping[str, Any] | str) -> Progress:
    """Parse Spark's progress report, as JSON text or as returned by `lastProgress`."""
    given: Mapping[str, Any] = json.loads(progress) if isinstance(progress, str) else progress
    sources: Sequence[Mapping[str, Any]] = given.get("sources") or ()
    states: Sequence[Mapping[str, Any]] = given.get("stateOperators") or ()
    durations = {name: int(value) for name, value in (given.get("durationMs") or {}).items()}
    # A query may read a topic twice: an offset is done when both have read it.
    ended_at = _merged([_offsets(source.get("endOffset")) for source in sources], min)
    latest = _merged([_offsets(source.get("latestOffset")) for source in sources], max)
    return Progress(
        query_id=str(given.get("id")),
        run_id=str(given.get("runId")),
        name=str(given.get("name") or "") or str(given.get("id"))[:8],
        batch_id=int(given.get("batchId") or 0),
        timestamp=str(given.get("timestamp") or ""),
        input_rows=int(given.get("numInputRows") or 0),
        input_rows_per_second=_rate(given.get("inputRowsPerSecond")),
        processed_rows_per_second=_rate(given.get("processedRowsPerSecond")),
        batch_ms=durations.get("triggerExecution", 0),
        durations_ms=durations,
        lag={tp: max(0, latest[tp] - offset) for tp, offset in ended_at.items() if tp in latest},
        ended_at=ended_at,
        state_rows=sum(int(state.get("numRowsTotal") or 0) for state in states),
        state_bytes=sum(int(state.get("memoryUsedBytes") or 0) for state in states),
        rows_dropped_by_watermark=sum(int(state.get("numRowsDroppedByWatermark") or 0) for state in states),
        watermark=_watermark((given.get("eventTime") or {}).get("watermark")),
    )


def _watermark(text: str | None) -> str | None:
    """Spark reports the beginning of 1970 until the first records have set a watermark."""
    return None if text is None or text.startswith(_NO_WATERMARK) else text


def _rate(value: Any) -> float:
    """Spark writes NaN and infinity for a batch that took no time."""
    rate = float(value or 0.0)
    return rate if 0.0 <= rate < float("inf") else 0.0


def _offsets(value: Any) -> Mapping[TopicPartition, int]:
    """Return the offsets of a source of topics; nothing for other sources."""
    try:
        return parse_source_offset(value).offsets if value is not None else {}
    except (KlammError, ValueError, TypeError, AttributeError):
        return {}


def _merged(
    offsets: Sequence[Mapping[TopicPartition, int]], choose: Callable[[int, int], int]
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for one in offsets:
        found |= {tp: choose(offset, found.get(tp, offset)) for tp, offset in one.items()}
    return found


class Sink(Protocol):
    def progress(self, progress: Progress) -> None: ...

    def ended(self, query_id: str, reason: str | None) -> None:
        """The query has ended, with an error if there is a reason."""

    def close(self) -> None: ...


@runtime_checkable
class StateSink(Protocol):
    """A sink that also receives queries that have not finished a batch yet."""

    def states(self, queries: Mapping[str, Mapping[str, Any]]) -> None:
        """The queries by name, each with its `state` and the number of its `restarts`."""


class ProgressListener(StreamingQueryListener):
    """Reports the queries of a session, or one query, to sinks:
    `spark.streams.addListener(ProgressListener([sink]))`."""

    def __init__(self, sinks: Sequence[Sink], query_id: str | None = None) -> None:
        self._sinks = sinks
        self._query_id = query_id
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:
        if self._query_id in (None, str(event.id)):
            self._names[str(event.id)] = str(event.name or "") or str(event.id)[:8]
            self._report_state(event, "running")

    def _report_state(self, event: Any, state: str) -> None:
        name = self._names[str(event.id)]
        for sink in self._sinks:
            if isinstance(sink, StateSink):
                sink.states({name: {"state": state, "restarts": 0}})

    def onQueryProgress(self, event: Any) -> None:
        progress = parse_progress(event.progress.json)
        if self._query_id in (None, progress.query_id):
            for sink in self._sinks:
                sink.progress(progress)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        if self._query_id in (None, str(event.id)):
            if str(event.id) in self._names:
                self._report_state(event, "failed" if event.exception else "stopped")
                del self._names[str(event.id)]
            for sink in self._sinks:
                sink.ended(str(event.id), event.exception)
