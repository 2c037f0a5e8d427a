"""Brokers of klamm and of Apache Kafka in one cluster, on klamm's embedded ZooKeeper or on a real one.

A broker keeps its id, its port and its log directory, whichever program runs it: `start(2, "kafka")` starts Apache
Kafka on what klamm has left there.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from compat.mixed_cluster.zookeepers import EmbeddedZooKeeper, ZooKeeper

from bench.clusters import JVM_OPTIONS, LOG4J
from bench.kafka_distribution import libraries
from klamm.errors import KlammError
from klamm.local.admin import ClusterAdmin
from klamm.local.broker_settings import property_text
from klamm.local.cluster_security import ClusterSecurity
from klamm.local.launch import broker_process
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.local.processes import ChildProcess
from klamm.local.security_choice import ADMIN, UNSECURED, SecurityChoice
from klamm.security.certificates.private_files import write_private
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.new_credential import scram_text
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.user_config import alter_user_settings
from klamm.zk.model.ops import Delete, MultiFailed, NoNode

T = TypeVar("T")
Kind = Literal["klamm", "kafka"]

TIMEOUT_S: Final = 120.0
SETTINGS: Final[Mapping[str, object]] = {
    "zookeeper.session.timeout.ms": 10_000,  # a JVM that starts on a busy machine may pause for seconds
    "replica.lag.time.max.ms": 4000,
    "controlled.shutdown.retry.backoff.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": False,
    "auto.leader.rebalance.enable": False,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "klamm.admit.unproven.peers": "true",  # brokers of Kafka cannot prove their id to klamm; they ignore the key
}


class MixedCluster:
    """`kinds` says who runs which broker at first; `protocol` is the inter.broker.protocol.version of all.

    With `security`, all brokers have the same certificate, and the users are in ZooKeeper before the brokers start.
    """

    def __init__(
        self,
        kinds: Mapping[int, Kind],
        protocol: str = "3.9",
        configs: Mapping[str, object] | None = None,
        security: SecurityChoice = UNSECURED,
        zookeeper: Callable[[Path], ZooKeeper] = EmbeddedZooKeeper,
    ) -> None:
        self.kinds: dict[int, Kind] = dict(kinds)
        self.folder = Path(tempfile.mkdtemp(prefix="klamm-mixed-"))
        self.security = ClusterSecurity(security, self.folder, has_own_zookeeper=False)
        self._configs = {
            **SETTINGS,
            "inter.broker.protocol.version": protocol,
            **security.broker_keys(),
            **(configs or {}),
        }
        self._ports = {broker_id: ReservedPort() for broker_id in self.kinds}
        self.zookeeper = zookeeper(self.folder)
        self._brokers: dict[int, ChildProcess] = {}
        self.admin = ClusterAdmin(self, timeout_s=TIMEOUT_S)

    @property
    def client_security(self) -> ClientSecurity:
        return self.security.of_admin

    def client_settings(self, user: str = ADMIN) -> dict[str, Any]:
        """Return the settings with which librdkafka connects as this user."""
        return self.security.client_config(user, self.bootstrap_servers, "confluent-kafka")

    def __enter__(self) -> Self:
        try:
            (self.folder / "log4j.properties").write_text(LOG4J)
            self.zookeeper.start()
            self.security.prepare()
            self._write_users()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The data goes with the cluster, so that no controlled shutdown is needed."""
        for process in self._brokers.values():
            process.discard()
        self.zookeeper.close()
        for port in self._ports.values():
            port.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_users(self) -> None:
        """Brokers with SCRAM between them can log in only if their user exists before they start."""
        choice = self.security.choice
        if choice.sasl is None or not choice.has_scram:
            return
        with self.zk_session() as session:
            for name, password in self.security.users.items():
                alter_user_settings(session, name, {choice.sasl: scram_text(choice.sasl, password)})

    def zk_session(self) -> BlockingSession:
        return BlockingSession(self.zookeeper.connect, TIMEOUT_S, security=self.zookeeper.security)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{port.number}" for port in self._ports.values())

    def start(self, *broker_ids: int, kind: Kind | None = None) -> None:
        """Returns when all running brokers know them. `kind` is kept for later starts."""
        for broker_id in broker_ids:
            self.kinds[broker_id] = kind or self.kinds[broker_id]
            path = f"/brokers/ids/{broker_id}"
            self.wait(partial(self._is_gone, path), f"The session of broker {broker_id} did not end")
            self._spawn(broker_id)
        self.admin.wait_until_acquainted(self.running(), time.monotonic() + TIMEOUT_S)

    def kill(self, broker_id: int) -> None:
        self._brokers[broker_id].kill()

    def stop(self, broker_id: int) -> None:
        """SIGTERM, and the controlled shutdown to its end."""
        self._brokers[broker_id].stop(TIMEOUT_S)

    def pause(self, broker_id: int) -> None:
        self._brokers[broker_id].pause()

    def resume(self, broker_id: int) -> None:
        self._brokers[broker_id].resume()

    def log_dir(self, broker_id: int) -> Path:
        return self.folder / f"broker-{broker_id}"

    def log_file(self, broker_id: int, kind: Kind) -> Path:
        return self.folder / f"broker-{broker_id}-{kind}.log"

    def running(self) -> list[int]:
        return [broker_id for broker_id, process in self._brokers.items() if process.is_running]

    def ended(self) -> list[int]:
        return [broker_id for broker_id in self.kinds if broker_id not in self.running()]

    def of(self, kind: Kind) -> list[int]:
        """The brokers of this kind that run."""
        return [broker_id for broker_id in self.running() if self.kinds[broker_id] == kind]

    def answering(self) -> dict[int, tuple[str, int]]:
        return {
            broker_id: (LOOPBACK, self._ports[broker_id].number)
            for broker_id, process in self._brokers.items()
            if process.is_running and not process.is_paused
        }

    def controller(self) -> int:
        return self.admin.controller_id()

    def make_controller(self, kind: Kind) -> int:
        """Deletes /controller until a broker of this kind has it."""

        def elected() -> int | None:
            if self.kinds[broker_id := self.controller()] == kind:
                return broker_id
            with suppress(NoNode), self.zk_session() as session:
                try:
                    session.write([Delete("/controller")])
                except MultiFailed as failed:
                    raise failed.error from None
            time.sleep(0.5)
            return None

        return self.wait(elected, f"No {kind} broker became the controller")

    def wait(self, condition: Callable[[], T | None], problem: str) -> T:
        return self.admin.wait(condition, problem)

    def _is_gone(self, path: str) -> bool:
        with self.zk_session() as session:
            return not session.exists(path)

    def _spawn(self, broker_id: int) -> None:
        kind = self.kinds[broker_id]
        properties = self.folder / f"broker-{broker_id}.properties"
        lines = (f"{key}={property_text(value)}\n" for key, value in self._properties(broker_id).items())
        write_private(properties, "".join(lines).encode())
        log_file = self.log_file(broker_id, kind)
        if kind == "klamm":
            process = broker_process(broker_id, properties, self.folder / f"broker-{broker_id}.ready", log_file)
        else:
            java = ["java", *JVM_OPTIONS, f"-Dlog4j.configuration=file:{self.folder}/log4j.properties"]
            java += self.zookeeper.jvm_options
            arguments = [*java, "-cp", f"{libraries()}/*", "kafka.Kafka", str(properties)]
            process = ChildProcess(f"Kafka broker {broker_id}", "bench.run_program", arguments, log_file, lambda: True)
        self._brokers[broker_id] = process
        process.spawn()

    def _properties(self, broker_id: int) -> dict[str, object]:
        own = {"klamm.control.log.enable": "false"} if self.kinds[broker_id] == "klamm" else {}
        return {
            "broker.id": broker_id,
            "listeners": f"{self.security.choice.listener}://{LOOPBACK}:{self._ports[broker_id].number}",
            "log.dirs": self.log_dir(broker_id),
            "zookeeper.connect": self.zookeeper.connect,
            "zookeeper.connection.timeout.ms": int(TIMEOUT_S * 1000),
            **self._configs,
            **self.security.broker_properties(),
            **self.zookeeper.keys(self.kinds[broker_id]),
            **own,
        }

    def why_silent(self) -> str | None:
        return None

    def why_unknown(self, topic: str, partition: int) -> str | None:
        return None

    def check(self, problem: str, *, is_late: bool) -> None:
        if (reason := self.zookeeper.problem()) is not None:
            raise KlammError(f"{problem}: {reason}")
        for process in self._brokers.values():
            if process.has_crashed:
                raise KlammError(f"{problem}: {process.name} has ended by itself.\n{process.log_tail()}")
        if is_late:
            tails = [process.log_tail() for process in self._brokers.values()]
            raise KlammError("\n".join([f"{problem}.", *tails]))
