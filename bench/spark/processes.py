"""The processes under one process, by what they are: Spark's JVM, its Python workers and other Python, brokers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

JVM: Final = "the JVM"
WORKER: Final = "Python workers"
PLANNER: Final = "other Python of Spark"
BROKER: Final = "the broker"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """(process id, what it is). One that ends meanwhile is left out."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                with suppress(OSError):
                    yield child, _kind(Path(f"/proc/{child}/cmdline").read_bytes())
                yield from descendants(child)


def _kind(command: bytes) -> str:
    if b"java" in command.split(b"\0")[0]:
        return JVM
    if b"pyspark" in command:
        return WORKER if b"pyspark.worker" in command else PLANNER
    return BROKER


def cpu_s(pid: int) -> dict[str, float]:
    """The CPU time, the system's included, that all descendants have used so far. Those that have ended are missing."""
    found: dict[str, float] = {}
    for child, kind in descendants(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            found[kind] = found.get(kind, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def kib(path: str, field: str) -> float:
    """A number of a file under /proc, 0 when it does not have it."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(field):
            return float(line.split()[1])
    return 0.0
