"""Sinks of progress: a table on the terminal, JSON lines, and an endpoint for Prometheus."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, TextIO

from klamm.spark.query.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COLUMNS: Final = ("Query", "Batch", "Rows/s in", "Rows/s", "Batch ms", "Lag", "State rows", "Watermark")


class TerminalTable:
    """One line per query, redrawn in place. Writes to terminals only."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console()
        self._queries: dict[str, Progress] = {}
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        if self._live is not None:
            self._live.start()

    def progress(self, progress: Progress) -> None:
        self._queries[progress.query_id] = progress
        if self._live is not None:
            self._live.update(progress_table(self._queries.values()), refresh=True)

    def ended(self, query_id: str, reason: str | None) -> None:
        pass

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def progress_table(queries: Iterable[Progress]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("Query", "Watermark") else "right", no_wrap=True)
    for progress in queries:
        table.add_row(*row(progress))
    return table


def row(progress: Progress) -> tuple[str, ...]:
    """The cells of one query."""
    return (
        progress.name,
        str(progress.batch_id),
        f"{progress.input_rows_per_second:,.0f}",
        f"{progress.processed_rows_per_second:,.0f}",
        f"{progress.batch_ms:,}",
        f"{progress.total_lag:,}" if progress.lag else "-",
        f"{progress.state_rows:,}" if progress.state_rows else "-",
        progress.watermark or "-",
    )


class JsonLines:
    """One JSON object per batch."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def progress(self, progress: Progress) -> None:
        self._write(as_json(progress))

    def ended(self, query_id: str, reason: str | None) -> None:
        self._write({"query_id": query_id, "ended": True, "error": reason})

    def close(self) -> None:
        self._stream.flush()

    def _write(self, value: Mapping[str, Any]) -> None:
        print(json.dumps(value), file=self._stream, flush=True)


def as_json(progress: Progress) -> dict[str, Any]:
    return {
        "query_id": progress.query_id,
        "name": progress.name,
        "batch_id": progress.batch_id,
        "timestamp": progress.timestamp,
        "input_rows": progress.input_rows,
        "input_rows_per_second": round(progress.input_rows_per_second, 1),
        "processed_rows_per_second": round(progress.processed_rows_per_second, 1),
        "batch_ms": progress.batch_ms,
        "durations_ms": dict(progress.durations_ms),
        "lag": progress.total_lag,
        "lag_by_partition": {str(tp): lag for tp, lag in sorted(progress.lag.items())},
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
        "rows_dropped_by_watermark": progress.rows_dropped_by_watermark,
        "watermark": progress.watermark,
    }


class PrometheusEndpoint:
    """`/metrics` over HTTP. Port 0 picks a free port; `port` is the chosen one."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self._queries: dict[str, Progress] = {}
        self._totals: dict[str, int] = {}
        self._states: dict[str, Mapping[str, Any]] = {}
        self._server = ThreadingHTTPServer((host, port), _handler(self.text))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="klamm-spark-metrics", daemon=True)
        self._thread.start()

    def progress(self, progress: Progress) -> None:
        self._totals = {**self._totals, progress.query_id: self._totals.get(progress.query_id, 0) + progress.input_rows}
        self._queries = {**self._queries, progress.query_id: progress}

    def states(self, queries: Mapping[str, Mapping[str, Any]]) -> None:
        self._states = {**self._states, **queries}

    def ended(self, query_id: str, reason: str | None) -> None:
        """An ended query is removed: otherwise its last lag would be reported forever."""
        if (last := self._queries.get(query_id)) is not None and last.name in self._states:
            state = "failed" if reason else "stopped"
            self._states = {**self._states, last.name: {**self._states[last.name], "state": state}}
        self._queries = {known: progress for known, progress in self._queries.items() if known != query_id}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def text(self) -> str:
        if not self._totals and not self._states:
            return "# No query has started yet.\n"
        return exposition(self._queries, self._totals, self._states)


def exposition(
    queries: Mapping[str, Progress], totals: Mapping[str, int], states: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """Return the text format of Prometheus. `states` holds queries without a batch yet, by name."""
    lines: list[str] = []

    def family(name: str, kind: str, values: Iterable[tuple[str, float]]) -> None:
        samples = [f"klamm_spark_query_{name}{{{labels}}} {value:.15g}" for labels, value in values]
        if samples:
            lines.extend([f"# TYPE klamm_spark_query_{name} {kind}", *samples])

    labelled = {_labels(query=name): state for name, state in (states or {}).items()}
    family("up", "gauge", ((label, state["state"] == "running") for label, state in labelled.items()))
    family(
        "state", "gauge", ((f"{label},{_labels(state=str(state['state']))}", 1) for label, state in labelled.items())
    )
    family("restarts_total", "counter", ((label, state["restarts"]) for label, state in labelled.items()))
    known = [(_labels(query=progress.name, id=progress.query_id), progress) for progress in queries.values()]
    family("input_rows_total", "counter", ((label, totals[p.query_id]) for label, p in known))
    family("input_rows_per_second", "gauge", ((label, p.input_rows_per_second) for label, p in known))
    family("processed_rows_per_second", "gauge", ((label, p.processed_rows_per_second) for label, p in known))
    family("batch_id", "gauge", ((label, p.batch_id) for label, p in known))
    family("batch_duration_seconds", "gauge", ((label, p.batch_ms / 1000) for label, p in known))
    family("state_rows", "gauge", ((label, p.state_rows) for label, p in known))
    family("state_bytes", "gauge", ((label, p.state_bytes) for label, p in known))
    family("watermark_timestamp_seconds", "gauge", ((la, s) for la, p in known if (s := p.watermark_s) is not None))
    family(
        "lag_records",
        "gauge",
        (
            (f"{label},{_labels(topic=tp.topic, partition=str(tp.partition))}", lag)
            for label, p in known
            for tp, lag in sorted(p.lag.items())
        ),
    )
    return "\n".join(lines) + "\n" if lines else ""


def _labels(**labels: str) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _handler(text: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_metrics = self.path.partition("?")[0] in ("/metrics", "/")
            body = text().encode() if is_metrics else b"There is only /metrics.\n"
            self.send_response(200 if is_metrics else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing for scrapes."""

    return Handler
