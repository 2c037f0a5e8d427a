"""Commands that take long show their progress on a terminal, and remove it before they print their result."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import typer

from klamm.cli import log, produce, txn, zk
from klamm.cli.progress_line import ProgressLine
from klamm.cli.simulate import simulate
from klamm.protocol.record_batch import Record, build_batch
from klamm.sim import cluster_runner
from tests.support.scripted_broker import scripted_broker
from tests.unit.cli.test_produce import SilentProducer, target
from tests.unit.cli.test_txn import Script
from tests.unit.zk.test_recovery import three_snapshots

ERASED = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of standard error. The line is drawn at every step."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("klamm.cli.progress_line.INTERVAL_S", 0.0)
    return stream


@pytest.mark.parametrize("level", [1, 2])
def test_the_line_of_seeds_is_gone_before_the_report(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are on one terminal: the report would otherwise begin in the middle of the line."""
    monkeypatch.setattr(cluster_runner, "FAULTS_S", 0.5)
    screen = terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", screen)
    with pytest.raises(typer.Exit):
        simulate(seeds=2, level=level, brokers=1)
    drawn, report = screen.getvalue().rsplit(ERASED, 1)
    assert "1 of 2 seeds" in drawn and report.startswith("2 seeds")


def test_files_of_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    three_snapshots(tmp_path)
    zk.check(tmp_path)
    assert "10 of 11 steps" in screen.getvalue()
    assert screen.getvalue().endswith(ERASED)


def test_partitions_and_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(partitions=(1,))
    with scripted_broker(script) as script.address:
        screen = terminal(monkeypatch)
        txn.find_hanging(bootstrap_server=f"{script.address[0]}:{script.address[1]}")
    assert "0 of 1 partitions" in screen.getvalue() and "0 of 1 transactional ids" in screen.getvalue()
    assert f"{ERASED}To end one," in screen.getvalue()


def test_a_segment_that_is_printed_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(build_batch([Record(0, 1700, b"k", b"v")]))
    with (tmp_path / "lines").open("w") as lines:
        monkeypatch.setattr(sys, "stdout", lines)
        log.dump(path)
    assert "0 of 0 MiB" in screen.getvalue() and screen.getvalue().endswith(ERASED)
    before = screen.getvalue()
    monkeypatch.setattr(sys, "stdout", Terminal())
    log.dump(path)
    assert screen.getvalue() == before


def test_sentences_of_a_producer_replace_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setattr(produce, "_SILENT_S", 0.0)
    with ProgressLine() as line:
        sender = produce._Sender(SilentProducer(), target(), [], 1000, line)
        sender.send(1, None, b"v")
        line.show(0.5, "1 records")
        sender.finish()
    assert f"1 records{ERASED}Waiting for the confirmation of 1 record" in screen.getvalue()
