"""Java programs that read and write in transactions while they and the brokers are killed; used by several folders.

In the secured form, brokers use SASL_SSL with SCRAM and access control, and a program connects as a user with the few
rights that it needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bench.clusters import BenchCluster, KlammCluster
from klamm.errors import KlammError

JVM: Final = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
WAIT_S: Final = 180.0
CACHE: Final = Path(__file__).resolve().parent.parent / ".cache"
SETTINGS: Final[Mapping[str, object]] = {
    "zookeeper.session.timeout.ms": 6000,
    "replica.lag.time.max.ms": 6000,
    "transaction.state.log.num.partitions": 6,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "offsets.topic.num.partitions": 6,
}
"""Short timeouts, so that a kill costs seconds."""


def is_secured() -> bool:
    """Whether compat/run.py asks for the secured form."""
    return bool(os.environ.get("KLAMM_CLIENT_PROPERTIES"))


class Right(NamedTuple):
    """An operation that a program needs; `name` ends with `*` for all resources whose names begin with it."""

    kind: ResourceType
    name: str
    operation: AclOperation


def connect_as(cluster: KlammCluster, user: str, rights: Sequence[Right]) -> list[str]:
    """Give a user rights; return the arguments of a program that connects as this user: none if nothing is secured."""
    path = cluster.client_properties(user)
    if path is None:
        return []
    bindings = [
        AclBinding(
            right.kind,
            right.name.removesuffix("*"),
            ResourcePatternType.PREFIXED if right.name.endswith("*") else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            right.operation,
            AclPermissionType.ALLOW,
        )
        for right in rights
    ]
    admin = AdminClient(cluster.client_config())
    for created in admin.create_acls(bindings).values():
        created.result(WAIT_S)
    return [str(path)]


def compiled(source: Path, libraries: Path, classes: Path) -> str:
    """Compile a program; return its class path."""
    if shutil.which("javac") is None:
        raise KlammError("javac is not on the PATH: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)")
    command = ["javac", "-nowarn", "-cp", f"{libraries}/*", "-d", str(classes), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise KlammError(f"javac: {done.stderr[-2000:]}")
    return f"{libraries}/*:{classes}"


class JavaProgram:
    """A process that ends when its input does. `check` raises if it has ended by itself."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [*JVM, *self._arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        """End it as a user does, and expect success."""
        assert self._process is not None
        self._process.communicate(timeout=WAIT_S)
        if self._process.returncode != 0:
            raise KlammError(f"a program ended with {self._process.returncode}: {self.tail()}")

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise KlammError(f"a program ended with {self._process.returncode}: {self.tail()}")

    def tail(self) -> str:
        return " / ".join(self._log.read_text(errors="replace").splitlines()[-12:])


class Feeder:
    """Writes numbered records to a topic, in the background; `value` gives the record of a number."""

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        count: int,
        partitions: int,
        value: Callable[[int], bytes],
    ) -> None:
        self._producer = Producer({**client, "enable.idempotence": True, "log_level": 0})
        self._topic = topic
        self._count = count
        self._partitions = partitions
        self._value = value
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failed: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until all records are acknowledged."""
        self._thread.join()
        left = self._producer.flush(WAIT_S)
        if left or self.failed:
            raise KlammError(f"{left} records of the input were not acknowledged; errors: {self.failed[:3]}")

    def _run(self) -> None:
        """In small bursts: the kills must meet a program at work."""
        for number in range(self._count):
            while True:
                try:
                    partition = number % self._partitions
                    self._producer.produce(
                        self._topic, self._value(number), partition=partition, on_delivery=self._on_delivery
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            if number % 50 == 49:
                self._producer.poll(0)
                time.sleep(0.05)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failed.append(str(error))


class CommittedReader:
    """Reads the committed records of a topic from its start, and remembers how far it came."""

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        partitions: int,
        take: Callable[[int, bytes | None, bytes], None],
    ) -> None:
        settings = {**client, "group.id": f"reader-of-{topic}", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._take = take
        self.count = 0

    def read_until(self, count: int, check: Callable[[], None]) -> None:
        """Read until there are `count` records; `check` is called meanwhile and may raise.

        Fails if no record comes for a long time. How long all of them take depends on the machine.
        """
        deadline = time.monotonic() + WAIT_S
        while self.count < count:
            if self._poll(1.0):
                deadline = time.monotonic() + WAIT_S
            else:
                check()
            if time.monotonic() > deadline:
                raise KlammError(f"{self.count} of {count} records were committed, and none in the last {WAIT_S:g} s")

    def read_rest(self) -> None:
        """Read what is still coming, until nothing came for a moment."""
        while self._poll(2.0):
            pass

    def close(self) -> None:
        self._consumer.close()

    def _poll(self, timeout_s: float) -> bool:
        messages = self._consumer.consume(500, timeout_s)
        for message in messages:
            if message.error() is None:
                self._take(message.partition() or 0, message.key(), message.value() or b"")
                self.count += 1
        return bool(messages)


def walk(cluster: BenchCluster, programs: Sequence[JavaProgram], wait: Callable[[float], None], quick: bool) -> None:
    """Kill programs and brokers; `wait` returns when a share of the work is done."""
    first, second = programs
    steps: list[Callable[[], None]] = [
        lambda: _restarted(first),
        lambda: _killed(cluster, cluster.leader("__transaction_state", 0)),
        lambda: _restarted(second),
    ]
    if not quick:
        steps += [
            lambda: _stopped(cluster, cluster.leader("__consumer_offsets", 0)),
            lambda: _restarted(first, second),
            lambda: _killed(cluster, cluster.leader("__transaction_state", 1)),
        ]
    for number, step in enumerate(steps):
        wait((number + 1) / (len(steps) + 2))
        step()


def _restarted(*programs: JavaProgram) -> None:
    for program in programs:
        program.check()
        program.kill()
    for program in programs:
        program.start()


def _killed(cluster: BenchCluster, broker_id: int) -> None:
    cluster.kill(broker_id)
    cluster.start(broker_id)


def _stopped(cluster: BenchCluster, broker_id: int) -> None:
    cluster.shut_down(broker_id)
    cluster.start(broker_id)
