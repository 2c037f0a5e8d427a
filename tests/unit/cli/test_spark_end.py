"""Spark's JVM ends by itself, and its log of the run before."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.accumulators import _start_update_server

from klamm.cli import spark_session as module
from klamm.cli.output import Failure
from klamm.cli.spark_jvm import Jvm, Terminated, silence_py4j
from klamm.cli.spark_session import is_py4j, keep_previous, spark_session
from klamm.errors import KlammError
from klamm.spark.cluster.jvm_ended import SparkEndedError


class Dead(Jvm):
    """A JVM that has been killed."""

    def __init__(self) -> None:
        super().__init__()
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self._processes.append(process)
        process.kill()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), ""),
        (ConnectionRefusedError(111, "Connection refused"), ""),
        (
            SparkEndedError("The next run continues from the checkpoint."),
            " The next run continues from the checkpoint.",
        ),
    ],
)
def test_the_end_of_the_jvm_is_one_sentence(
    error: Exception, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_SPARK_LOG", str(tmp_path / "spark.log"))
    monkeypatch.setattr(module, "require_spark", lambda: None)
    monkeypatch.setattr(module, "Jvm", Dead)
    monkeypatch.setattr(module, "_started", lambda *args: None)
    with pytest.raises(Failure) as caught, spark_session("local", "test", {}):
        raise error
    reported = str(caught.value)
    assert reported.startswith("Spark's JVM (process ") and reported.endswith(f"Spark's log is {tmp_path}/spark.log.")
    assert f") was ended by SIGKILL, perhaps because memory ran out.{advice} " in reported


def test_the_server_of_accumulators_is_silent_when_the_jvm_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    silence_py4j()
    server = _start_update_server("", True, str(tmp_path / "socket"))
    try:
        with socket.socket(socket.AF_UNIX) as jvm:
            jvm.connect(str(tmp_path / "socket"))
        with socket.socket(socket.AF_UNIX) as other:  # served when the first connection is done with
            other.connect(str(tmp_path / "socket"))
            other.sendall(struct.pack("!i", 0))
            assert other.recv(1) == b"\x01"
    finally:
        server.shutdown()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("interrupt", [Terminated(143), KeyboardInterrupt()])
def test_an_interrupt_that_pyspark_hides(interrupt: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted collect() calls the JVM again, which gets the answer of the first call and fails on it."""
    monkeypatch.setattr(module, "require_spark", lambda: None)
    monkeypatch.setattr(module, "_started", lambda *args: None)
    with pytest.raises(type(interrupt)) as caught, spark_session("local", "test", {}):
        try:
            raise interrupt
        finally:
            raise KeyError("p")
    assert caught.value is interrupt


def test_other_errors_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "require_spark", lambda: None)
    monkeypatch.setattr(module, "_started", lambda *args: None)
    with pytest.raises(KlammError, match="no topic"), spark_session("local", "test", {}):
        raise KlammError("There is no topic orders.")
    assert not is_py4j(KlammError("no")) and not is_py4j(None)
    assert not is_py4j(Py4JJavaError.__new__(Py4JJavaError))
    wrapped = KlammError("view failed")
    wrapped.__cause__ = Py4JNetworkError("gone")
    assert is_py4j(wrapped)


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    keep_previous(log)
    for run in ("first", "second"):
        keep_previous(log)
        log.write_text(run)
    assert (tmp_path / "spark.log.1").read_text() == "first" and log.read_text() == "second"
    log.write_text("")
    keep_previous(log)
    assert (tmp_path / "spark.log.1").read_text() == "first", "an empty log is not a run"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    keep_previous(fifo)
    assert fifo.exists()
