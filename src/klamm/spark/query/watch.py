"""Show the progress of one query on the terminal, or as lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from klamm.spark.query.progress import Sink, parse_progress
from klamm.spark.query.progress_sinks import JsonLines, TerminalTable

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_WATCH_S: Final = 1


def watch(
    query: StreamingQuery, sinks: Sequence[Sink] | None = None, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Show the progress of a query until it ends, or until `is_over`; raise the error that ended the query.

    `is_over` is asked between two calls of the JVM, about once per second. Ctrl-C ends the watching only.

    On a terminal it is a table that is redrawn; elsewhere, one line of JSON per batch.
    """
    if sinks is None:
        sinks = [TerminalTable()] if sys.stdout.isatty() else [JsonLines(sys.stdout)]
    shown: tuple[int, str] | None = None
    try:
        while True:
            is_running = not query.awaitTermination(_WATCH_S)
            for report in query.recentProgress:
                # Reports of batches without rows repeat the batch's number.
                this = (int(report["batchId"]), str(report["timestamp"]))
                if shown is None or this > shown:
                    shown = this
                    for sink in sinks:
                        sink.progress(parse_progress(report))
            if not is_running:
                break
            if is_over():
                return
        for sink in sinks:
            sink.ended(str(query.id), None)
    finally:
        for sink in sinks:
            sink.close()
