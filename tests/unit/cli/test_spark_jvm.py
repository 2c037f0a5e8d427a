"""The JVM of a command, with a process in its place that would run for ever."""

from __future__ import annotations

import logging
import os
import signal
import sys
from subprocess import PIPE, Popen
from typing import Any

import pytest

from klamm.cli.spark_jvm import Jvm, Terminated, sigterm_ends, silence_py4j

FOR_EVER = [sys.executable, "-c", "import time; time.sleep(3600)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)",
]


def launch(command: list[str], started: list[Popen[bytes]], **given: Any) -> None:
    """As PySpark's launch_gateway does."""
    from pyspark import java_gateway

    gateway: Any = java_gateway
    started.append(gateway.Popen(command, stdin=PIPE, **given))


def close(process: Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def test_a_launched_process_ends_with_an_interrupted_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import java_gateway

    monkeypatch.setattr("klamm.cli.spark_jvm.END_S", 60)
    started: list[Popen[bytes]] = []
    with pytest.raises(KeyboardInterrupt), Jvm().launching():
        launch(FOR_EVER, started, preexec_fn=lambda: None)
        raise KeyboardInterrupt
    assert started[0].returncode == -signal.SIGTERM
    assert vars(java_gateway)["Popen"] is Popen, "only within the start"
    close(started[0])


def test_a_launched_process_can_be_ended_later_and_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.cli.spark_jvm.END_S", 0.05)
    started: list[Popen[bytes]] = []
    jvm = Jvm()
    with jvm.launching():
        launch(DEAF, started, stdout=PIPE)
    assert started[0].stdout is not None and started[0].stdout.readline() == b"\n"
    assert started[0].poll() is None
    jvm.end()
    assert started[0].returncode == -signal.SIGKILL
    close(started[0])


def test_a_launched_process_ends_with_a_command_that_is_killed() -> None:
    program = (
        "import os, signal; from klamm.cli.spark_jvm import Jvm; from pyspark import java_gateway; jvm = Jvm()\n"
        f"with jvm.launching(): print(java_gateway.Popen({FOR_EVER!r}).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = Popen([sys.executable, "-c", program], stdout=PIPE)
    assert command.stdout is not None
    out = command.stdout.read()  # ends when both processes have closed the pipe
    assert command.wait() == -signal.SIGKILL and int(out) > 0
    close(command)


def test_sigterm_ends_a_command_so_that_it_can_clean_up() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as caught, sigterm_ends():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_py4j_is_silent() -> None:
    silence_py4j()
    root, record = logging.getLogger(), logging.makeLogRecord({"pathname": "/site-packages/py4j/java_gateway.py"})
    try:
        assert not root.filter(record) and root.filter(logging.makeLogRecord({"pathname": "/klamm/x.py"}))
        assert not logging.getLogger("py4j").propagate
    finally:
        logging.getLogger("py4j").propagate = True
        for item in list(root.filters):
            root.removeFilter(item)
