"""The bar of `klamm sql`: drawn on a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
from collections import namedtuple
from typing import Any

import pytest

from klamm.cli.sql import _progress

Stage = namedtuple("Stage", "numTasks numCompletedTasks")


class Spark:
    """A session with one stage at work."""

    @property
    def sparkContext(self) -> Any:
        return self

    def statusTracker(self) -> Any:
        return self

    def getActiveStageIds(self) -> list[int]:
        return [7]

    def getStageInfo(self, number: int) -> Stage:
        return Stage(10, 4)


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    person, terminal = pty.openpty()
    seen = b""
    with os.fdopen(terminal, "w", buffering=1) as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        with _progress(Spark()):  # type: ignore[arg-type]
            while b"tasks" not in seen:
                seen += os.read(person, 1000)
        assert b"\r[############..................] 4/10 tasks" in seen
        while not seen.endswith(b"\r\x1b[K"):
            seen += os.read(person, 1000)
    os.close(person)


def test_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", written := io.StringIO())
    with _progress(None):  # type: ignore[arg-type]
        pass
    assert written.getvalue() == ""
