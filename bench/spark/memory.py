"""Memory of driver, JVM and Python workers: `python -m bench.spark.memory FORMAT MODE SERVERS TOPIC` reads a topic.

Each side in a process of its own, because a JVM does not give back what it once took. Peaks are the kernel's own
(VmHWM); what all Python processes of Spark take together is their proportional share (PSS), sampled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Final

from bench.spark import sparks, topics
from bench.spark.figures import CONNECTOR, KLAMM, Figure
from bench.spark.processes import JVM, PLANNER, WORKER, descendants, kib

ROWS: Final = 3_000_000
SIDES: Final = ((KLAMM, "fetch"), (KLAMM, "direct"), (CONNECTOR, ""))
WHAT: Final = {
    "jvm": "JVM, peak",
    "driver": "the driver's Python, peak",
    "worker": "the largest Python worker, peak",
    "python": "all Python processes of Spark together, peak",
}
_LIMIT_S: Final = 180.0
_SAMPLE_S: Final = 0.1
_ROUNDS: Final = 3
_LARGEST: Final = {JVM: "jvm", WORKER: "worker"}


class Watch:
    """Looks at all descendants of a process until it must stop; `peaks_mib` by the names of `WHAT`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.peaks_mib = dict.fromkeys(WHAT, 0.0)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self.look()

    def look(self) -> None:
        together = 0.0
        self._keep("driver", kib(f"/proc/{self._pid}/status", "VmHWM:"))
        for pid, kind in descendants(self._pid):
            with suppress(OSError):
                peak = kib(f"/proc/{pid}/status", "VmHWM:")
                if kind in (WORKER, PLANNER):
                    together += kib(f"/proc/{pid}/smaps_rollup", "Pss:")
                if kind in _LARGEST:
                    self._keep(_LARGEST[kind], peak)
        self._keep("python", together)

    def _keep(self, what: str, amount_kib: float) -> None:
        self.peaks_mib[what] = max(self.peaks_mib[what], amount_kib / 1024)


def measure(format_: str, mode: str, servers: str, topic: str) -> dict[str, float]:
    """Reads the topic a few times in a new session; this is the whole life of a process."""
    with Watch(os.getpid()) as watch:
        spark = sparks.session(sparks.connector_jars() if format_ == CONNECTOR else ())
        for _ in range(_ROUNDS):
            frame = sparks.batch(spark, format_, servers, topic, **({"readMode": mode} if mode else {}))
            frame.selectExpr("count(*)", "sum(length(value))").collect()
        watch.look()
        spark.stop()
    return watch.peaks_mib


def figures(bench: sparks.Bench) -> Iterator[Figure]:
    topics.fill(bench.cluster, "memory", 100, ROWS // bench.scale)
    found = {}
    for format_, mode in SIDES if bench.has_connector else SIDES[:-1]:
        command = [sys.executable, "-m", "bench.spark.memory", format_, mode, bench.servers, "memory"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        found[format_, mode] = json.loads(done.stdout.splitlines()[-1])
    beside = found.get((CONNECTOR, ""), {})
    for mode in ("fetch", "direct"):
        for name, text in WHAT.items():
            connector = [beside[name]] if name in beside and name in ("jvm", "driver") else []
            yield Figure(f"Memory, {mode}: {text}", "MiB", [found[KLAMM, mode][name]], connector)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
