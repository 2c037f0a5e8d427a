"""klamm and Apache Kafka behind one interface, so that a row is written once and measured on both.

    with KlammCluster(brokers=3) as klamm, KafkaCluster(brokers=3) as kafka: ...

Both sides get the same keys (`PRODUCTION`: Kafka's defaults unless it says otherwise), a ZooKeeper of their own that
is **klamm's embedded server for both** (without fsync, data in a temporary directory), and one data directory a broker
on the same file system. A row that needs other settings passes `configs`, which must then go to both.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from bench.kafka_distribution import libraries
from klamm.errors import KlammError
from klamm.local.admin import ClusterAdmin
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.local.processes import ChildProcess
from klamm.security.client_security import PLAINTEXT, ClientSecurity
from klamm.security.sasl.mechanisms import SCRAM_SHA_512
from klamm.testing import LocalCluster

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0

HEAP: Final = "-Xmx512m"
JVM_OPTIONS: Final = (
    "-server",
    HEAP,
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
"""What Kafka's own start script gives a broker, with the heap of the comparison."""

LOG4J: Final = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def production(brokers: int) -> dict[str, object]:
    """The settings of both sides: Kafka's defaults, but no wait of three seconds before a group's first rebalance."""
    return {
        "zookeeper.session.timeout.ms": 18_000,
        "replica.lag.time.max.ms": 30_000,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": False,
        "offsets.topic.replication.factor": min(3, brokers),
        "offsets.topic.num.partitions": 50,
    }


class BenchCluster(Protocol):
    """A running cluster. Broker ids count from 1; a broker keeps its port and its data over `kill` and `start`."""

    @property
    def name(self) -> str: ...
    @property
    def brokers(self) -> tuple[int, ...]: ...
    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def zookeeper(self) -> str:
        """`host:port` for a ZooKeeper client."""

    def port(self, broker_id: int) -> int: ...
    def pid(self, broker_id: int) -> int: ...
    def start(self, broker_id: int) -> None:
        """Starts a killed or stopped broker; returns when all running brokers know it."""

    def kill(self, broker_id: int) -> None:
        """SIGKILL."""

    def shut_down(self, broker_id: int) -> None:
        """SIGTERM, and its controlled shutdown to the end."""

    def pause(self, broker_id: int) -> None:
        """SIGSTOP."""

    def resume(self, broker_id: int) -> None: ...
    def stop(self) -> None:
        """Ends all processes and removes the data."""

    def rss_bytes(self, broker_id: int) -> int:
        """The resident memory of the broker's process."""

    def controller_id(self) -> int:
        """The controller now; waits for an election to end."""

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, object] | None = None
    ) -> None:
        """Returns when every running broker knows the topic and the leader of each partition."""

    def delete_topic(self, name: str) -> None: ...
    def leader(self, topic: str, partition: int) -> int: ...
    def isr(self, topic: str, partition: int) -> list[int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise KlammError(f"Process {pid} has no resident memory.")


class KlammCluster:
    """klamm's brokers, `LocalCluster` with production settings instead of those for tests."""

    name: Final = "klamm"

    def __init__(
        self, brokers: int = 3, configs: Mapping[str, object] | None = None, *, is_secured: bool = False
    ) -> None:
        """`is_secured`: SASL_SSL with SCRAM-SHA-512 on all listeners, and access control."""
        self._cluster = LocalCluster(
            brokers,
            tls=is_secured,
            sasl=SCRAM_SHA_512 if is_secured else None,
            acls=is_secured,
            defaults=production(brokers),
            broker_configs=dict(configs or {}),
            start_timeout_s=START_TIMEOUT_S,
            stop_timeout_s=STOP_TIMEOUT_S,
        )
        self.brokers = self._cluster.broker_ids
        self._started: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        self._cluster.start_all()
        self._started = self.brokers
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    @property
    def zookeeper(self) -> str:
        return self._cluster.zookeeper_connect

    def client_config(self, user: str | None = None) -> dict[str, Any]:
        """Return the settings with which librdkafka connects as this user; without one, as a super user."""
        return self._cluster.client_config(user)

    def client_properties(self, user: str) -> Path | None:
        """Write the settings of a Java client to a file; None if nothing is secured."""
        return self._cluster.write_client_properties(user, self._cluster.data_dir / f"{user}.properties")

    def port(self, broker_id: int) -> int:
        return self._cluster.port(broker_id)

    def pid(self, broker_id: int) -> int:
        return self._cluster.pid(broker_id)

    def start(self, broker_id: int) -> None:
        self._cluster.start(broker_id)

    def kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)

    def shut_down(self, broker_id: int) -> None:
        self._cluster.stop(broker_id)

    def pause(self, broker_id: int) -> None:
        self._cluster.pause(broker_id)

    def resume(self, broker_id: int) -> None:
        self._cluster.resume(broker_id)

    def stop(self) -> None:
        """As Kafka's brokers are stopped here: the data goes, so that no controlled shutdown is needed."""
        for broker_id in self._started:
            if self._cluster.is_running(broker_id):
                self._cluster.kill(broker_id)
        self._started = ()
        self._cluster.close()

    def rss_bytes(self, broker_id: int) -> int:
        return resident_bytes(self.pid(broker_id))

    def controller_id(self) -> int:
        return self._cluster.controller_id

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, object] | None = None
    ) -> None:
        self._cluster.create_topic(name, partitions, replication_factor, config)

    def delete_topic(self, name: str) -> None:
        self._cluster.delete_topic(name)

    def leader(self, topic: str, partition: int) -> int:
        return self._cluster.leader(topic, partition)

    def isr(self, topic: str, partition: int) -> list[int]:
        return self._cluster.isr(topic, partition)


class KafkaCluster:
    """Apache Kafka's brokers in ZooKeeper mode, a JVM each, on klamm's embedded ZooKeeper."""

    name: Final = "kafka"

    def __init__(self, brokers: int = 3, configs: Mapping[str, object] | None = None) -> None:
        self.brokers = tuple(range(1, brokers + 1))
        self._configs = {**production(brokers), **(configs or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="klamm-kafka-"))
        self._ports = {broker_id: ReservedPort() for broker_id in self.brokers}
        self._zookeeper_port = ReservedPort()
        self._classpath = f"{libraries()}/*"
        self._zookeeper = self._zookeeper_process()
        self._brokers = {broker_id: self._broker_process(broker_id) for broker_id in self.brokers}
        self._admin = ClusterAdmin(self, timeout_s=START_TIMEOUT_S)

    @property
    def client_security(self) -> ClientSecurity:
        return PLAINTEXT

    def __enter__(self) -> Self:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            (self._folder / "log4j.properties").write_text(LOG4J)
            self._zookeeper.spawn()
            for broker_id, process in self._brokers.items():
                self._write_properties(broker_id)
                process.spawn()
            self._zookeeper.wait_ready(deadline)
            self._admin.wait_until_acquainted(self._running(), deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{port.number}" for port in self._ports.values())

    @property
    def zookeeper(self) -> str:
        return f"{LOOPBACK}:{self._zookeeper_port.number}"

    def port(self, broker_id: int) -> int:
        return self._ports[broker_id].number

    def pid(self, broker_id: int) -> int:
        return self._brokers[broker_id].pid

    def start(self, broker_id: int) -> None:
        """Kafka does not start while ZooKeeper still has the session that it had before, so this waits for its end."""
        self._wait_until_gone(broker_id)
        self._brokers[broker_id].spawn()
        self._admin.wait_until_acquainted(self._running(), time.monotonic() + START_TIMEOUT_S)

    def kill(self, broker_id: int) -> None:
        self._brokers[broker_id].kill()

    def shut_down(self, broker_id: int) -> None:
        self._brokers[broker_id].stop(STOP_TIMEOUT_S)

    def pause(self, broker_id: int) -> None:
        self._brokers[broker_id].pause()

    def resume(self, broker_id: int) -> None:
        self._brokers[broker_id].resume()

    def stop(self) -> None:
        """The data goes with the cluster, so that no controlled shutdown is needed."""
        for process in [*self._brokers.values(), self._zookeeper]:
            if process.is_running:
                process.kill()
        for port in [*self._ports.values(), self._zookeeper_port]:
            port.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def rss_bytes(self, broker_id: int) -> int:
        return resident_bytes(self.pid(broker_id))

    def controller_id(self) -> int:
        return self._admin.controller_id()

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, object] | None = None
    ) -> None:
        self._admin.create_topic(name, partitions, replication_factor, config or {})

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topic(name)

    def leader(self, topic: str, partition: int) -> int:
        return self._admin.leader(topic, partition)

    def isr(self, topic: str, partition: int) -> list[int]:
        return self._admin.isr(topic, partition)

    # --- how it is done ---

    def _zookeeper_process(self) -> ChildProcess:
        arguments = ["--data-dir", str(self._folder / "zookeeper"), "--host", LOOPBACK]
        arguments += ["--port", str(self._zookeeper_port.number), "--min-session-timeout-ms", "200", "--no-fsync"]
        log = self._folder / "zookeeper.log"
        return ChildProcess("ZooKeeper", "klamm.zk.server.main", arguments, log, lambda: True)

    def _broker_process(self, broker_id: int) -> ChildProcess:
        java = ["java", *JVM_OPTIONS, f"-Dlog4j.configuration=file:{self._folder}/log4j.properties"]
        arguments = [*java, "-cp", self._classpath, "kafka.Kafka", str(self._properties_file(broker_id))]
        log = self._folder / f"broker-{broker_id}.log"
        return ChildProcess(f"Kafka broker {broker_id}", "bench.run_program", arguments, log, lambda: True)

    def add_listeners(self, ports: Mapping[str, int]) -> None:
        """Give a cluster of one broker further listeners on localhost, before it starts."""
        (broker_id,) = self.brokers
        names = [f"PLAINTEXT://{LOOPBACK}:{self.port(broker_id)}"]
        self._configs["listeners"] = ",".join([*names, *(f"{name}://localhost:{port}" for name, port in ports.items())])

    def _properties_file(self, broker_id: int) -> Path:
        return self._folder / f"broker-{broker_id}.properties"

    def _write_properties(self, broker_id: int) -> None:
        properties = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port(broker_id)}",
            "log.dirs": self._folder / f"broker-{broker_id}",
            "zookeeper.connect": self.zookeeper,
            "zookeeper.connection.timeout.ms": int(START_TIMEOUT_S * 1000),
            **self._configs,
        }
        text = "".join(
            f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in properties.items()
        )
        self._properties_file(broker_id).write_text(text)

    def _wait_until_gone(self, broker_id: int) -> None:
        from kazoo.client import KazooClient

        client = KazooClient(self.zookeeper)
        client.start(timeout=START_TIMEOUT_S)
        try:
            self._admin.wait(
                lambda: client.exists(f"/brokers/ids/{broker_id}") is None,
                f"The session of broker {broker_id} did not end",
            )
        finally:
            client.stop()
            client.close()

    def _running(self) -> list[int]:
        return [broker_id for broker_id, process in self._brokers.items() if process.is_running]

    def ended(self) -> list[int]:
        return []

    def why_silent(self) -> str | None:
        return None

    def why_unknown(self, topic: str, partition: int) -> str | None:
        return None

    def answering(self) -> dict[int, tuple[str, int]]:
        return {
            broker_id: (LOOPBACK, self.port(broker_id))
            for broker_id in self._running()
            if not self._brokers[broker_id].is_paused
        }

    def check(self, problem: str, *, is_late: bool) -> None:
        for process in [*self._brokers.values(), self._zookeeper]:
            if process.has_crashed:
                raise KlammError(f"{problem}: {process.name} has ended by itself.\n{process.log_tail()}")
        if is_late:
            tails = [process.log_tail() for process in self._brokers.values()]
            raise KlammError("\n".join([f"{problem}.", *tails]))
