"""State that a Python worker process keeps between tasks."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import ModuleType

import pytest

from klamm.spark.source import worker


def test_the_heap_is_frozen_again_when_modules_were_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba loads much of itself in the first task: frozen before only, every task paid for a walk over it."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(worker, "_frozen_modules", 0)
    worker.prepare()
    worker.prepare()
    assert calls == ["collect", "freeze"]
    monkeypatch.setitem(sys.modules, "loaded_by_the_first_task", ModuleType("loaded_by_the_first_task"))
    worker.prepare()
    worker.prepare()
    assert calls == ["collect", "freeze"] * 2


KEEPS_ONE = """
from types import SimpleNamespace
from klamm.spark.source import worker
worker._kept["somewhere"] = [SimpleNamespace(close=lambda: print("closed"))]
"""


def test_connections_that_were_kept_are_closed_when_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS_ONE], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("closed\n", "")


def test_the_daemon_loads_what_tasks_need_and_starts_no_thread() -> None:
    code = (
        "import os, sys; from klamm.spark.cluster.daemon import PRELOADED, preload; preload(); "
        "print([name for name in (*PRELOADED, 'numba') if name not in sys.modules], len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 1\n"
