"""What Spark's progress reports become: figures, a table, JSON lines, metrics, offsets of a group."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.query.group_lag import GroupOffsets
from klamm.spark.query.progress import ProgressListener, parse_progress
from klamm.spark.query.progress_sinks import JsonLines, PrometheusEndpoint, TerminalTable, progress_table, row
from klamm.spark.query.triggers import trigger_arguments

REPORT: dict[str, Any] = {
    "id": "11111111-2222-3333-4444-555555555555",
    "runId": "66666666-2222-3333-4444-555555555555",
    "name": 'orders "by day"',
    "timestamp": "2026-01-02T03:04:05.678Z",
    "batchId": 7,
    "numInputRows": 1200,
    "inputRowsPerSecond": 1000.0,
    "processedRowsPerSecond": 2400.5,
    "durationMs": {"triggerExecution": 500, "addBatch": 400, "walCommit": 10},
    "eventTime": {"watermark": "2026-01-02T03:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 30, "memoryUsedBytes": 4000, "numRowsDroppedByWatermark": 2}],
    "sources": [
        {
            "description": "klamm",
            "startOffset": {"orders": {"0": 100}},
            "endOffset": {"_from": {"orders": {"1": 0}}, "orders": {"0": 110, "1": 5}},
            "latestOffset": {"orders": {"0": 150, "1": 5}},
        },
        {"description": "rate", "endOffset": 5, "latestOffset": 6},
    ],
}
LAG = {TopicPartition("orders", 0): 40, TopicPartition("orders", 1): 0}


def test_figures_of_a_report() -> None:
    progress = parse_progress(json.dumps(REPORT))
    assert progress == parse_progress(REPORT)
    assert progress.lag == LAG and progress.total_lag == 40
    assert progress.ended_at == {TopicPartition("orders", 0): 110, TopicPartition("orders", 1): 5}
    assert (progress.batch_ms, progress.state_rows, progress.rows_dropped_by_watermark) == (500, 30, 2)
    assert progress.watermark_s == 1767322800.0


def test_a_topic_that_is_read_twice_is_done_where_both_are() -> None:
    ends = [{"t": {"0": 7, "1": 3}}, {"t": {"0": 5, "1": 4}}]
    progress = parse_progress(
        {"sources": [{"endOffset": end, "latestOffset": {"t": {"0": 9, "1": 9}}} for end in ends]}
    )
    assert progress.ended_at == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 3}
    assert progress.total_lag == 4 + 6


def test_before_the_first_record_there_is_no_watermark() -> None:
    assert parse_progress({"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}).watermark is None


def test_a_report_with_next_to_nothing_in_it() -> None:
    progress = parse_progress(
        {"id": "abcdefghijk", "inputRowsPerSecond": float("nan"), "sources": [{"endOffset": "x"}]}
    )
    assert (progress.name, progress.input_rows_per_second, progress.lag) == ("abcdefgh", 0.0, {})
    assert row(progress)[5:] == ("-", "-", "-")


def test_the_table_of_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    shown = TerminalTable(console)
    shown.progress(parse_progress(REPORT))
    shown.close()
    console.print(progress_table([parse_progress(REPORT)]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert 'orders "by day"' in text and "2,400" in text and "2026-01-02T03:00:00.000Z" in text


def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    shown = TerminalTable(console)
    shown.progress(parse_progress(REPORT))
    shown.close()
    assert isinstance(console.file, io.StringIO) and console.file.getvalue() == ""


def test_json_lines() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.progress(parse_progress(REPORT))
    lines.ended(REPORT["id"], "it broke")
    first, last = map(json.loads, stream.getvalue().splitlines())
    assert first["lag_by_partition"] == {"orders-0": 40, "orders-1": 0}
    assert last == {"query_id": REPORT["id"], "ended": True, "error": "it broke"}


def test_prometheus_reads_the_endpoint() -> None:
    endpoint = PrometheusEndpoint()
    try:
        for _ in range(2):
            endpoint.progress(parse_progress(REPORT))
        url = f"http://127.0.0.1:{endpoint.port}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = {s.name: s for family in text_string_to_metric_families(text) for s in family.samples}
        assert found["klamm_spark_query_input_rows_total"].value == 2400
        assert found["klamm_spark_query_input_rows_total"].labels["query"] == 'orders "by day"'
        assert found["klamm_spark_query_watermark_timestamp_seconds"].value == 1767322800
        lags = [line for line in text.splitlines() if line.startswith("klamm_spark_query_lag_records{")]
        assert [line.rpartition(" ")[2] for line in lags] == ["40", "0"]
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{url}/else", timeout=30)
        refused.value.close()
        endpoint.ended(REPORT["id"], None)
        assert endpoint.text() == ""
    finally:
        endpoint.close()


def test_metrics_before_the_first_batch_name_the_starting_query() -> None:
    endpoint = PrometheusEndpoint()
    try:
        assert endpoint.text() == "# No query has started yet.\n"
        name = parse_progress(REPORT).name
        endpoint.states({name: {"state": "starting", "restarts": 0}, "shop.out": {"state": "running", "restarts": 3}})
        found = {
            (s.name.removeprefix("klamm_spark_query_"), s.labels["query"]): s
            for family in text_string_to_metric_families(endpoint.text())
            for s in family.samples
        }
        assert found["up", name].value == 0 and found["up", "shop.out"].value == 1
        assert found["state", name].labels["state"] == "starting"
        assert found["restarts_total", "shop.out"].value == 3
        endpoint.progress(parse_progress(REPORT))
        endpoint.ended(REPORT["id"], "it broke")
        assert 'state="failed"} 1' in endpoint.text() and "lag_records" not in endpoint.text()
    finally:
        endpoint.close()


def test_a_listener_reports_a_query_that_has_started() -> None:
    endpoint = PrometheusEndpoint()
    try:
        listener = ProgressListener([endpoint])
        listener.onQueryStarted(SimpleNamespace(id="0123456789", name=None))
        assert 'klamm_spark_query_up{query="01234567"} 1' in endpoint.text()
        listener.onQueryTerminated(SimpleNamespace(id="0123456789", exception="it broke before its first batch"))
        assert 'klamm_spark_query_up{query="01234567"} 0' in endpoint.text()
        assert 'state="failed"} 1' in endpoint.text()
    finally:
        endpoint.close()


def test_offsets_of_a_group_are_committed_once_a_change_and_tried_again() -> None:
    commits: list[Mapping[TopicPartition, int]] = []
    failures = [KlammError("no coordinator")]

    def commit(group: str, offsets: Mapping[TopicPartition, int]) -> None:
        assert group == "g"
        if failures:
            raise failures.pop()
        commits.append(offsets)

    sink = GroupOffsets("g", commit)
    for _ in range(3):
        sink.progress(parse_progress(REPORT))
    assert commits == [{TopicPartition("orders", 0): 110, TopicPartition("orders", 1): 5}]


@pytest.mark.parametrize(
    ("trigger", "arguments"),
    [
        (None, {}),
        ("available_now", {"availableNow": True}),
        ("5s", {"processingTime": "5 seconds"}),
        ("500 ms", {"processingTime": "500 milliseconds"}),
        ("2 minutes", {"processingTime": "2 minutes"}),
        ({"once": True}, {"once": True}),
    ],
)
def test_triggers(trigger: Any, arguments: dict[str, Any]) -> None:
    assert trigger_arguments(trigger) == arguments


def test_an_invalid_trigger_is_refused() -> None:
    with pytest.raises(KlammError, match="'soon' is not a trigger"):
        trigger_arguments("soon")
