"""The sink of tables, with accidents: a program that fills a table and dies where the environment says.

KLAMM_TEST_CRASHES is JSON, a list of [where, batch, what, mark]: at the point `where` of that batch, `what` is killed,
once, and the file `mark` records it. Points: before_files, after_files (a task's, on the executor),
before_commit, after_commit (on the driver). What: driver, worker (the Python process), executor (its JVM).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark import TaskContext

import klamm.spark as ks
from klamm.spark.tables import delta

NAME = "crashing_delta"
"""Spark finds the sink `klamm_delta` by itself and lets nobody replace it."""


class CrashingSource(delta.DeltaTableSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: Any, overwrite: bool) -> CrashingWriter:
        return CrashingWriter(delta.TableLayout(delta.parse_options(self.options), schema, overwrite))


class CrashingWriter(delta.DeltaStreamWriter):
    def write(self, iterator: Iterator[Any]) -> delta.Written:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        crash("before_files", batch)
        written = super().write(iterator)
        crash("after_files", batch)
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:
        crash("before_commit", batchId)
        super().commit(messages, batchId)
        crash("after_commit", batchId)


def crash(where: str, batch: int) -> None:
    for planned, at, what, mark in json.loads(os.environ["KLAMM_TEST_CRASHES"]):
        if planned == where and at == batch and _is_first(mark):
            _kill(what)


def _is_first(mark: str) -> bool:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _kill(what: str) -> None:
    if what == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "executor":
        os.kill(_executor(), signal.SIGKILL)
    else:
        # The driver's Python and its JVM, at once.
        os.killpg(int(os.environ["KLAMM_TEST_DRIVER"]), signal.SIGKILL)
    signal.pause()


def _executor() -> int:
    """The JVM above the daemon that started this worker."""
    daemon = os.getppid()
    jvm = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{jvm}/cmdline").read_bytes(), "not an executor"
    return jvm


def main(master: str, servers: str, topic: str, path: str, checkpoint: str) -> None:
    os.environ["KLAMM_TEST_DRIVER"] = str(os.getpgid(0))
    delta.DeltaTableSource = CrashingSource  # type: ignore[misc]
    delta.NAME = NAME  # type: ignore[misc]
    settings = {"spark.ui.enabled": False, "spark.log.level": "ERROR", "spark.executor.memory": "512m"}
    spark = ks.session(master, "klamm-crash-matrix", settings)
    print("application", spark.sparkContext.applicationId, flush=True)
    frame = ks.topic(
        spark,
        topic,
        bootstrap_servers=servers,
        format="json",
        schema="id long",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=500,
        minPartitions=2,  # few records would share a task
    )
    query = ks.to_table(frame, path, checkpoint=checkpoint, trigger="available_now", compact_every=4)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    # Spark pickles the class by the name of its module, which must be one that workers can import.
    import_module("crashing").main(*sys.argv[1:])
