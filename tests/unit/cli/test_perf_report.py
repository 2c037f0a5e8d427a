"""Latencies in buckets against exact ones, reports, and the progress line, which only a terminal sees."""

from __future__ import annotations

import io
import json
import random

import pytest

from klamm.cli.perf_report import PERCENTILES, Latencies, Report
from klamm.cli.progress_line import BAR_WIDTH, ProgressLine, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 1000.0])
def test_percentiles_are_never_too_low_and_at_most_1_6_percent_too_high(scale: float) -> None:
    chance, latencies = random.Random(7), Latencies()
    samples = [scale * chance.expovariate(1.0) for _ in range(5_000)]
    for sample in samples:
        latencies.add(sample)
    exact = sorted(round(sample * 1e6) for sample in samples)
    for share in PERCENTILES.values():
        wanted = next(value for rank, value in enumerate(exact, 1) if rank >= share * len(exact)) / 1000
        found = latencies.percentile_ms(share)
        assert found is not None and wanted <= found <= wanted * 1.016 + 0.001
    assert latencies.summary()["max"] == exact[-1] / 1000
    assert len(latencies._counts) < 2_000, "memory does not grow with the number of records"


def test_without_records_there_is_no_latency() -> None:
    assert set(Latencies().summary().values()) == {None}
    latencies = Latencies()
    latencies.add(-1.0)  # the clock of the due time may be ahead
    assert latencies.summary()["max"] == 0.0


def test_a_report_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    latencies = Latencies()
    latencies.add(0.002)
    report = Report("produce", "t", 1, 1 << 20, 2, 0.5, latencies={"latency": latencies}, problem="it is full")
    report.show(as_json=False)
    text = capsys.readouterr().out
    assert text.splitlines()[:2] == ["1 records acknowledged in 0.50 s, 2 failed", "2.0 records/s, 2.00 MiB/s"]
    assert "p99.9 2.00 ms" in text and "problem: it is full" in text
    report.show(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["latency_ms"]["p99_9"] == 2.0 and found["failed"] == 2 and found["mib_per_second"] == 2.0
    Report("consume", "t").show(as_json=False)
    assert "0 records received in 0.00 s" in capsys.readouterr().out


def test_progress_is_shown_on_a_terminal_only_and_erased_at_the_end() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        with ProgressLine(stream=stream) as line:
            line.show(0.5, "500 records")
            line.show(0.6, "too early to be drawn again")
    assert pipe.getvalue() == ""
    assert terminal.getvalue().count("500 records") == 1 and "too early" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    silent = Terminal()
    with ProgressLine(enabled=False, stream=silent) as line:
        line.show(0.5, "500 records")
    assert silent.getvalue() == ""


def test_a_bar() -> None:
    assert bar(None) == ""
    assert bar(0.5) == f"[{'#' * (BAR_WIDTH // 2)}{'.' * (BAR_WIDTH // 2)}]  50%  "
    assert "100%" in bar(7.0) and "  0%" in bar(-1.0)
