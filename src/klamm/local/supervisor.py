"""Supervisor: the ZooKeeper and broker processes of a local cluster, with their ports, files and lives."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from klamm.errors import KlammError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.local.broker_names import brokers_are
from klamm.local.broker_settings import ClusterSettings, property_text
from klamm.local.cluster_security import ClusterSecurity
from klamm.local.drill_disk import write_delay
from klamm.local.drill_relays import DrillRelays
from klamm.local.launch import broker_process, nothing_left_of, zookeeper_process
from klamm.local.lookup import why_unknown
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.local.processes import ChildProcess, open_private
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.new_credential import scram_text
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.user_config import alter_user_settings
from klamm.zk.model.ops import ZkError

_NO_DRILL: Final = "The cluster has no fault drill: create it with drill=True, or with klamm up --drill."
_NOT_STARTED: Final = "The cluster is not started: use start_all() first."


@lazy_dataclass(frozen=True, slots=True)
class Limits:
    """The longest time that starting and stopping may take."""

    start_s: float
    stop_s: float


class Supervisor:
    """Starts, watches and ends the processes of one cluster. Ports are reserved while the cluster exists."""

    def __init__(
        self,
        settings: ClusterSettings,
        security: ClusterSecurity,
        data_dir: Path,
        limits: Limits,
        *,
        is_temporary: bool,
        external_zookeeper: str | None = None,
        is_drill: bool = False,
    ) -> None:
        self.broker_ids: tuple[int, ...] = settings.broker_ids
        self.data_dir = data_dir
        self.limits = limits
        self.security = security
        self._settings = settings
        self._is_temporary = is_temporary
        self._external_zookeeper = external_zookeeper
        self._relays: DrillRelays | None = None
        self._is_drill = is_drill
        self._ports: dict[int, ReservedPort] = {}
        self._control_ports: dict[int, ReservedPort] = {}
        self._zookeeper_port: ReservedPort | None = None
        self._zookeeper: ChildProcess | None = None
        self._brokers: dict[int, ChildProcess] = {}

    # --- all processes ---

    def start_all(self, deadline: float) -> None:
        """Start ZooKeeper and all brokers at the same time; return when every process is ready."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._reserve_ports()
        self.security.prepare()
        self._spawn_zookeeper()
        for broker_id in self.broker_ids:
            self._spawn(broker_id)
        if self.security.choice.has_scram:  # while the brokers start: they need it for their first connections
            self.write_scram_users(self.security.users)
        for broker_id in self.broker_ids:
            self._brokers[broker_id].wait_ready(deadline, self._zookeeper)

    def close(self) -> None:
        """Stop all processes, brokers first, free the ports and remove a temporary data directory."""
        problems: list[str] = []
        if self._relays is not None:
            self._relays.heal_all()
        for process in self._brokers.values():  # all of them first: a broker that stops may need the controller
            if process.is_running and process.is_paused:
                process.resume()
        for process in self._processes():
            try:
                process.stop(self.limits.stop_s)
            except KlammError as error:
                problems.append(str(error))
        self._brokers.clear()
        self._zookeeper = None
        if self._relays is not None:
            self._relays.close()
            self._relays = None
        for port in self._reserved():
            port.close()
        self._ports.clear()
        self._control_ports.clear()
        self._zookeeper_port = None
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        if problems:
            raise KlammError("\n".join(problems))

    # --- ZooKeeper ---

    @property
    def zookeeper_connect(self) -> str:
        if self._external_zookeeper is not None:
            return self._external_zookeeper
        if self._zookeeper_port is None:
            raise KlammError(_NOT_STARTED)
        return f"{LOOPBACK}:{self._zookeeper_port.number}"

    @property
    def zookeeper(self) -> ChildProcess:
        """The embedded server. Raises KlammError if there is none."""
        if self._zookeeper is None:
            why = "is not started" if self._external_zookeeper is None else "uses an external ZooKeeper"
            raise KlammError(f"The cluster {why}.")
        return self._zookeeper

    @property
    def has_lost_zookeeper(self) -> bool:
        """Whether the embedded server has exited on its own."""
        return self._zookeeper is not None and self._zookeeper.has_crashed

    def write_scram_users(self, passwords: Mapping[str, str]) -> None:
        """Write the credentials of users to ZooKeeper, which brokers follow."""
        mechanism = self.security.choice.sasl
        assert mechanism is not None, "the cluster has no SASL"
        try:
            with BlockingSession(self.zookeeper_connect, self.limits.start_s, None, self.security.zookeeper) as session:
                for name, password in passwords.items():
                    alter_user_settings(session, name, {mechanism: scram_text(mechanism, password)})
        except ZkError as error:
            raise KlammError(f"The users cannot be written to ZooKeeper: {error}.") from None

    def start_zookeeper(self) -> None:
        server = self.zookeeper
        server.spawn()
        with nothing_left_of(server):
            server.wait_ready(time.monotonic() + self.limits.start_s)

    # --- brokers ---

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{port.host}:{port.number}" for port in self._ports.values())

    def broker(self, broker_id: int) -> ChildProcess:
        """Return a broker's process. Raises KlammError if it was never started."""
        if broker_id not in self._brokers:
            raise KlammError(
                f"Broker {broker_id} was not started; the brokers are {', '.join(map(str, self.broker_ids))}."
            )
        return self._brokers[broker_id]

    def start_broker(self, broker_id: int, deadline: float) -> ChildProcess:
        """Start a broker on its port; return when it is ready."""
        self.port(broker_id)
        if self._zookeeper is not None and not self._zookeeper.is_running:
            raise KlammError(f"Broker {broker_id} cannot start: ZooKeeper is not running; use start_zookeeper() first.")
        process = self._spawn(broker_id)
        with nothing_left_of(process):
            process.wait_ready(deadline)
        return process

    def port(self, broker_id: int) -> int:
        if broker_id not in self.broker_ids:
            raise KlammError(f"There is no broker {broker_id}: the cluster has {', '.join(map(str, self.broker_ids))}.")
        if broker_id not in self._ports:
            raise KlammError(_NOT_STARTED)
        return self._ports[broker_id].number

    @property
    def relays(self) -> DrillRelays:
        """The connections of a cluster with a fault drill. Raises KlammError if there is none."""
        if self._relays is None:
            raise KlammError(_NO_DRILL)
        return self._relays

    @property
    def has_drill(self) -> bool:
        return self._is_drill

    def is_cut(self, broker_id: int) -> bool:
        return self._relays is not None and self._relays.network.is_cut(broker_id)

    def set_disk_delay(self, broker_id: int, seconds: float) -> None:
        if not self._is_drill:
            raise KlammError(_NO_DRILL)
        write_delay(self.delay_file(broker_id), seconds)

    def delay_file(self, broker_id: int) -> Path:
        """The file by which a fault drill makes the disk of a broker slow."""
        return self.data_dir / f"broker-{broker_id}.delay"

    def log_dirs(self, broker_id: int) -> list[Path]:
        return [Path(path.strip()) for path in str(self._properties(broker_id)["log.dirs"]).split(",")]

    def log_file(self, broker_id: int) -> Path:
        return self.data_dir / f"broker-{broker_id}.log"

    def ready_file(self, broker_id: int) -> Path:
        """The JSON file that a broker writes when it is ready; it has the ports that the broker chose itself."""
        return self.data_dir / f"broker-{broker_id}.ready"

    def metrics_address(self, broker_id: int) -> str | None:
        """Return `host:port` of the broker's `/metrics`, None if it has none. The broker must be ready."""
        port = json.loads(self.ready_file(broker_id).read_text())["metrics_port"]
        return None if port < 0 else f"{self._properties(broker_id).get('klamm.metrics.host', LOOPBACK)}:{port}"

    # --- state, as ClusterAdmin sees it ---

    def running(self) -> list[int]:
        return [broker_id for broker_id, process in self._brokers.items() if process.is_running]

    def ended(self) -> Collection[int]:
        """Brokers that were stopped or killed, or have exited on their own."""
        return [broker_id for broker_id, process in self._brokers.items() if not process.is_running]

    @property
    def client_security(self) -> ClientSecurity:
        return self.security.of_admin

    def answering(self) -> dict[int, tuple[str, int]]:
        """Addresses of the brokers that run and are neither paused nor cut off."""
        return {
            broker_id: (LOOPBACK, self._listening_port(broker_id))
            for broker_id, process in self._brokers.items()
            if process.is_running and not process.is_paused and not self.is_cut(broker_id)
        }

    def why_silent(self) -> str | None:
        """Return why no broker can answer; None if one can, or if a broker has crashed, which `check` reports."""
        if self.answering() or any(process.has_crashed for process in self._brokers.values()):
            return None
        if not self._brokers:
            return "the cluster is not started"
        silent = {"paused": self.running(), "not running": self.ended()}
        return " and ".join(f"{brokers_are(list(ids))} {why}" for why, ids in silent.items() if ids)

    def why_unknown(self, topic: str, partition: int) -> str | None:
        """Return why no broker will ever know the partition; None if it may still appear."""
        if self._zookeeper is not None and not self._zookeeper.is_running:
            return None
        return why_unknown(self.zookeeper_connect, topic, partition, self.security.zookeeper)

    def check(self, problem: str, *, is_late: bool) -> None:
        """Raise KlammError if a process has crashed, or if `is_late`."""
        for process in self._processes():
            if process.has_crashed:
                raise KlammError(f"{problem}: {process.name} has exited on its own.\n{process.log_tail()}")
        if is_late:
            tails = [process.log_tail() for process in self._brokers.values()]
            raise KlammError("\n".join([f"{problem}.", *tails]))

    # --- inside ---

    def _reserve_ports(self) -> None:
        for broker_id in self.broker_ids:
            wanted = self._settings.ports.get(broker_id, 0)
            try:
                self._ports[broker_id] = ReservedPort(wanted)
            except OSError as error:
                raise KlammError(f"Port {wanted} cannot be used: {error.strerror}. Choose another one.") from None
            if self._settings.control_plane_listener(broker_id) is not None:
                self._control_ports[broker_id] = ReservedPort()
        if self._external_zookeeper is None:
            self._zookeeper_port = ReservedPort()
        if self._is_drill and self._zookeeper_port is not None:
            self._relays = DrillRelays(self._zookeeper_port.number)
            for broker_id in self.broker_ids:
                control = self._control_ports.get(broker_id)
                self._relays.add(broker_id, self._ports[broker_id].number, None if control is None else control.number)
                write_delay(self.delay_file(broker_id), 0)

    def _reserved(self) -> list[ReservedPort]:
        own = [] if self._zookeeper_port is None else [self._zookeeper_port]
        return [*self._ports.values(), *self._control_ports.values(), *own]

    def _spawn_zookeeper(self) -> None:
        if self._zookeeper_port is not None:
            port = self._zookeeper_port.number
            self._zookeeper = zookeeper_process(
                self.data_dir, port, is_temporary=self._is_temporary, secret_file=self.security.secret_file()
            )
            self._zookeeper.spawn()

    def _spawn(self, broker_id: int) -> ChildProcess:
        process = self._brokers.get(broker_id)
        if process is None:
            files = self._config_file(broker_id), self.ready_file(broker_id), self.log_file(broker_id)
            delay = None if self._relays is None else self.delay_file(broker_id)
            self._brokers[broker_id] = process = broker_process(broker_id, *files, delay)
        if not process.is_running:
            self.ready_file(broker_id).unlink(missing_ok=True)
            self._write_config(broker_id)
        process.spawn()
        if self._relays is not None:
            self._relays.network.set_process(broker_id, process.pid)
        return process

    def _write_config(self, broker_id: int) -> None:
        text = "".join(f"{key}={property_text(value)}\n" for key, value in self._properties(broker_id).items())
        # Others may be able to read the directory, and settings may be secret.
        with open(self._config_file(broker_id), "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)

    def _properties(self, broker_id: int) -> dict[str, object]:
        return {
            "broker.id": broker_id,
            **self._settings.listeners(broker_id, *self._addresses(broker_id)),
            "log.dirs": self.data_dir / f"broker-{broker_id}",
            "zookeeper.connect": self.zookeeper_connect,
            **self._relayed(broker_id),
            "zookeeper.connection.timeout.ms": int(self.limits.start_s * 1000),
            **self.security.broker_properties(),
            **self._settings.of_broker(broker_id),
        }

    def _addresses(self, broker_id: int) -> tuple[str, str]:
        """Return the addresses for data and for the control plane; they are the same without a control plane."""
        if self._relays is not None:
            return self._relays.listening_addresses(broker_id)
        return self._public_addresses(broker_id)

    def _public_addresses(self, broker_id: int) -> tuple[str, str]:
        data = self.port(broker_id)
        control = self._control_ports.get(broker_id)
        return f"{LOOPBACK}:{data}", f"{LOOPBACK}:{data if control is None else control.number}"

    def _listening_port(self, broker_id: int) -> int:
        """Return the port of the broker itself, which a cut does not affect."""
        return self.port(broker_id) if self._relays is None else self._relays.listening_port(broker_id)

    def _relayed(self, broker_id: int) -> dict[str, object]:
        if self._relays is None:
            return {}
        advertised = self._settings.advertised(broker_id, *self._public_addresses(broker_id))
        return {**advertised, "zookeeper.connect": self._relays.zookeeper_address(broker_id)}

    def _config_file(self, broker_id: int) -> Path:
        return self.data_dir / f"broker-{broker_id}.properties"

    def _processes(self) -> list[ChildProcess]:
        """The brokers, then the embedded ZooKeeper."""
        return [*self._brokers.values(), *([self._zookeeper] if self._zookeeper is not None else [])]
