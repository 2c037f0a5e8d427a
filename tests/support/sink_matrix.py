"""Runs of the program that copies a topic exactly once, killed where the test says, and what readers see afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pyspark
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from klamm.client.transaction_client import TransactionClient
from klamm.security.certificates.private_files import write_private
from klamm.spark.source.client_options import driver_client

PROGRAMS = Path(__file__).parents[1] / "spark" / "sink"
DEADLINE_S = 600
PER_BATCH = 400
KILLED = -9
Crash = tuple[str, int, str]


class Cluster(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...
    def leader(self, topic: str, partition: int) -> int: ...
    def kill(self, broker_id: int) -> None: ...
    def start(self, broker_id: int) -> None: ...


class SinkMatrix:
    """A topic, its copy, and runs of the program in between. Both topics have two partitions.

    `security` are settings of librdkafka; the program reads them from a file.
    """

    def __init__(
        self, cluster: Cluster, source: str, target: str, root: Path, security: Mapping[str, str] | None = None
    ) -> None:
        self.cluster, self.source, self.target, self.root = cluster, source, target, root
        self._security = dict(security or {})
        write_private(root / "security.json", json.dumps(self._security).encode())
        self.checkpoint = root / "checkpoint"
        self.produced = 0
        self._processes: list[subprocess.Popen[str]] = []

    def produce(self, batches: int) -> None:
        producer = Producer({**self._security, "bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all"})
        for number in range(self.produced, self.produced + batches * PER_BATCH):
            producer.produce(self.source, b"%d" % number, partition=number % 2)
        assert producer.flush(60) == 0
        self.produced += batches * PER_BATCH

    def start(self, *crashes: Crash, master: str = "local[2,3]") -> subprocess.Popen[str]:
        planned = [[where, batch, what, str(self.mark((where, batch, what)))] for where, batch, what in crashes]
        servers = self.cluster.bootstrap_servers
        arguments = [master, servers, self.source, self.target, str(self.checkpoint), str(PER_BATCH)]
        paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (self.root / "stderr").open("a") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "crashing_sink.py"), *arguments],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(paths),
                    "KLAMM_TEST_CRASHES": json.dumps(planned),
                    "KLAMM_TEST_SECURITY": str(self.root / "security.json"),
                },
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def run(self, *crashes: Crash, master: str = "local[2,3]") -> int:
        """Return the exit code; all accidents have happened."""
        code = self.finish(self.start(*crashes, master=master))
        missing = [crash for crash in crashes if not self.mark(crash).exists()]
        assert not missing, f"{missing} did not happen: {self.said()}"
        return code

    def finish(self, process: subprocess.Popen[str]) -> int:
        """The directories that Spark keeps for the run's executors go."""
        out, _ = process.communicate(timeout=DEADLINE_S)
        for line in out.splitlines():
            if line.startswith("application app-"):
                shutil.rmtree(Path(str(pyspark.__path__[0]), "work", line.split()[1]), ignore_errors=True)
        return process.returncode

    def mark(self, crash: Crash) -> Path:
        return self.root / "-".join(map(str, crash))

    def await_mark(self, process: subprocess.Popen[str], crash: Crash) -> None:
        """Wait until the accident happens."""
        wait_for(lambda: self.mark(crash).exists() or process.poll() is not None, f"{crash}")
        assert process.poll() is None, self.said()

    def await_commit(self, process: subprocess.Popen[str], batch: int) -> None:
        """Wait until Spark has committed a batch."""
        wait_for(
            lambda: self.is_committed_in_spark(batch) or process.poll() is not None, f"the commit of batch {batch}"
        )
        assert self.is_committed_in_spark(batch), self.said()

    def go(self, crash: Crash) -> None:
        self.mark(crash).with_name(f"{self.mark(crash).name}.go").touch()

    def said(self) -> str:
        return (self.root / "stderr").read_text()[-6000:]

    def is_committed_in_spark(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def read(self, isolation: str = "read_committed") -> list[int]:
        """Return the records of the copy up to the end that a reader sees now."""
        settings = {**self._security, "bootstrap.servers": self.cluster.bootstrap_servers, "group.id": "matrix"}
        consumer = Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
        consumer.assign([TopicPartition(self.target, number, 0) for number in range(2)])
        found: list[int] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < 2:
            assert time.monotonic() < deadline, "the copy has no end"
            for message in consumer.consume(1000, timeout=1.0):
                error = message.error()
                if error is None:
                    value = message.value()
                    assert value is not None and value == message.key()
                    found.append(int(value))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()
        return found

    def open_transactions(self) -> list[str]:
        with driver_client(self.cluster.bootstrap_servers, self._security) as client:
            return TransactionClient(client).open_ids("")

    def check(self) -> None:
        """Every record once, and no transaction is open: 0 lost, 0 duplicated."""
        wait_for(lambda: not self.open_transactions(), "the end of all transactions")
        counted = Counter(self.read())
        double = [number for number, times in counted.items() if times > 1]
        lost = [number for number in range(self.produced) if number not in counted]
        assert not double and not lost and len(counted) == self.produced, f"lost {lost[:9]}, double {double[:9]}"

    def coordinator(self) -> int:
        """Return the broker that coordinates the sink's state."""
        return self._coordinator_of(f"{self._query()}.driver")

    def task_coordinator(self) -> int:
        """Return the broker that coordinates a transaction of a task that is open now."""
        open_ids = [each for each in self.open_transactions() if each != f"{self._query()}.driver"]
        assert open_ids, "no task has an open transaction"
        return self._coordinator_of(open_ids[0])

    def _query(self) -> str:
        """Return the name of the sink."""
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def _coordinator_of(self, transactional_id: str) -> int:
        with driver_client(self.cluster.bootstrap_servers, self._security) as client:
            client.metadata(())
            host_port = client.retry("the coordinator", lambda: client.coordinators([transactional_id], 1))
            [address] = host_port.values()
            return next(broker for broker, at in client.addresses().items() if at == address)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


def crashes_of_drivers(matrix: SinkMatrix) -> None:
    """The driver dies at each point of a commit; then a task fails and a Python worker dies."""
    matrix.produce(9)
    assert matrix.run(("before_decision", 1, "driver")) == KILLED
    assert matrix.open_transactions(), "the tasks have left them"
    assert matrix.run(("after_decision", 2, "driver")) == KILLED
    assert not matrix.is_committed_in_spark(2)
    assert matrix.run(("between_ends", 3, "driver")) == KILLED
    assert matrix.run(("after_commit", 4, "driver")) == KILLED
    assert not matrix.is_committed_in_spark(4)
    accidents = (("after_rows", 5, "fail"), ("before_rows", 6, "worker"), ("after_rows", 7, "worker"))
    assert matrix.run(*accidents) == 0, matrix.said()
    matrix.check()
    assert len(matrix.read("read_uncommitted")) > matrix.produced, "readers of uncommitted records see the aborted ones"


def crashes_of_executors(matrix: SinkMatrix) -> None:
    """Executors die before and after their tasks are prepared, on a cluster of two."""
    first = len(list((matrix.checkpoint / "commits").glob("[0-9]*")))
    matrix.produce(4)
    accidents = (("before_rows", first + 1, "executor"), ("after_rows", first + 2, "executor"))
    assert matrix.run(*accidents, master="local-cluster[2,1,1024]") == 0, matrix.said()
    matrix.check()


def crashes_of_brokers(matrix: SinkMatrix, kill: Callable[[int], None]) -> None:
    """The leader of a partition and transaction coordinators die while transactions are open, or half ended."""
    first = len(list((matrix.checkpoint / "commits").glob("[0-9]*")))
    matrix.produce(5)
    prepared, half, ending = (
        ("before_decision", first + 1, "wait"),
        ("between_ends", first + 2, "wait"),
        ("between_ends", first + 3, "wait"),
    )
    process = matrix.start(prepared, half, ending)
    victims: tuple[tuple[Crash, Callable[[], int]], ...] = (
        (prepared, lambda: matrix.cluster.leader(matrix.target, 0)),
        (half, matrix.coordinator),
        (ending, matrix.task_coordinator),
    )
    for crash, victim_of in victims:
        matrix.await_mark(process, crash)
        victim = victim_of()
        kill(victim)
        matrix.go(crash)
        matrix.await_commit(process, crash[1])
        matrix.cluster.start(victim)
    assert matrix.finish(process) == 0, matrix.said()
    matrix.check()


def zombie_driver(matrix: SinkMatrix) -> None:
    """A driver that stood still while another run took over fails with a sentence, and disturbs nothing."""
    first = len(list((matrix.checkpoint / "commits").glob("[0-9]*")))
    matrix.produce(3)
    asleep = ("before_decision", first + 1, "wait")
    zombie = matrix.start(asleep)
    matrix.await_mark(zombie, asleep)
    assert matrix.run() == 0, matrix.said()
    matrix.check()
    matrix.go(asleep)
    assert matrix.finish(zombie) == 1
    assert "TakenOverError: Another run of the query has taken over the sink" in matrix.said()
    matrix.check()
