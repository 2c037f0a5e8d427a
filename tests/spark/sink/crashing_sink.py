"""A topic into another one, exactly once and with accidents: a program that dies where the environment says.

KLAMM_TEST_CRASHES is JSON, a list of [where, batch, what, mark]: at the point `where` of that batch `what` happens,
once, and the file `mark` records it. Points: before_rows, after_rows (of a task, on the executor),
before_decision, after_decision, between_ends, after_commit (on the driver). What: driver, worker (the Python process),
executor (its JVM), fail (the task raises), wait (until the file `mark`.go exists). KLAMM_TEST_SECURITY names a file
with the client's settings of security, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import klamm.spark as ks
from klamm.client.transaction_client import Ended, Transaction, TransactionClient
from klamm.spark.data_source import KlammDataSource
from klamm.spark.sink.state_topic import Rule, StateTopic
from klamm.spark.sink.transactional_writer import ExactlyOnceStreamWriter, Prepared, streaming_task

NAME = "crashing_klamm"
"""Spark finds the sink `klamm` by itself and lets nobody replace it."""
WAIT_S = 300.0


class CrashingSource(KlammDataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: Any, overwrite: bool) -> CrashingWriter:
        made = super().streamWriter(schema, overwrite)
        assert isinstance(made, ExactlyOnceStreamWriter)
        return CrashingWriter(made.options, made.claim)


class CrashingWriter(ExactlyOnceStreamWriter):
    def write(self, iterator: Iterator[Any]) -> Prepared:
        batch = streaming_task().batch
        crash("before_rows", batch)
        written = super().write(iterator)
        crash("after_rows", batch)
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:
        crash("before_decision", batchId)
        change, end_all = StateTopic.change, TransactionClient.end_all

        def changing(topic: StateTopic, sink: str, rule: Rule) -> Any:
            state = change(topic, sink, rule)
            crash("after_decision", batchId)
            return state

        def ending(client: TransactionClient, transactions: Sequence[Transaction], *, commit: bool) -> Any:
            ended: dict[Transaction, Ended] = {}
            for transaction in transactions:
                ended |= end_all(client, [transaction], commit=commit)
                crash("between_ends", batchId)
            return ended

        with patch.object(StateTopic, "change", changing), patch.object(TransactionClient, "end_all", ending):
            super().commit(messages, batchId)
        crash("after_commit", batchId)


def crash(where: str, batch: int) -> None:
    for planned, at, what, mark in json.loads(os.environ["KLAMM_TEST_CRASHES"]):
        if planned == where and at == batch and _is_first(mark):
            _happen(what, mark)


def _is_first(mark: str) -> bool:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _happen(what: str, mark: str) -> None:
    if what == "wait":
        deadline = time.monotonic() + WAIT_S
        while not Path(f"{mark}.go").exists():
            assert time.monotonic() < deadline, "nobody said go"
            time.sleep(0.05)
        return
    if what == "fail":
        raise RuntimeError("an accident")
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


def main(master: str, servers: str, source: str, target: str, checkpoint: str, per_batch: str) -> None:
    os.environ["KLAMM_TEST_DRIVER"] = str(os.getpgid(0))
    settings = {"spark.ui.enabled": False, "spark.log.level": "ERROR", "spark.executor.memory": "512m"}
    spark = ks.session(master, "klamm-sink-matrix", settings)
    print("application", spark.sparkContext.applicationId, flush=True)
    spark.dataSource.register(CrashingSource)
    given = json.loads(Path(os.environ["KLAMM_TEST_SECURITY"]).read_text())
    security = {f"kafka.{name}": value for name, value in given.items()}
    frame = ks.topic(
        spark,
        source,
        bootstrap_servers=servers,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=int(per_batch),
        minPartitions=2,  # few records would share a task
        **security,
    )
    writer = frame.selectExpr("value as key", "value").writeStream.format(NAME)
    options = {"kafka.bootstrap.servers": servers, "topic": target, "guarantee": "exactly_once", **security}
    query = writer.options(**options).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    # Spark pickles the class by the name of its module, which must be one that workers can import.
    import_module("crashing_sink").main(*sys.argv[1:])
