"""A cluster of real processes on this machine: one embedded ZooKeeper server and as many brokers as asked for.

    with LocalCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        cluster.kill(cluster.leader("orders", 0))

Broker ids count from 1. Ports are free ones, and a broker keeps its port over restarts. Everything ends with the
`with` block, and with the process that made the cluster, however that ends.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from klamm.errors import KlammError
from klamm.local.admin import ClusterAdmin, brokers_are
from klamm.local.broker_sessions import expire_session
from klamm.local.broker_settings import TEST_DEFAULTS, BrokerConfigs, ClusterSettings, property_text
from klamm.local.internal_topics import InternalTopics
from klamm.local.launch import broker_process, nothing_left_of, zookeeper_process
from klamm.local.lookup import why_unknown
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.local.processes import ChildProcess, open_private

T = TypeVar("T")

__all__ = ["TEST_DEFAULTS", "LocalCluster"]

_NOT_STARTED: Final = "The cluster is not started: use start_all() first."


class LocalCluster:
    """`broker_configs` are Kafka's keys for all brokers, or by broker id; keys of all and of one can be mixed.

    Without `data_dir` the data lives in a temporary directory and goes with the cluster. `zookeeper` names a real
    ensemble (`host:port/chroot`) to use in place of the embedded server. An argument that cannot be what it is raises
    ValueError with its name.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        data_dir: Path | str | None = None,
        broker_configs: BrokerConfigs | None = None,
        zookeeper: str | None = None,
        ports: Iterable[int] = (),
        defaults: Mapping[str, object] = TEST_DEFAULTS,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 60.0,
    ) -> None:
        self._settings = ClusterSettings(brokers, broker_configs or {}, ports, defaults)
        self.broker_ids: tuple[int, ...] = self._settings.broker_ids
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="klamm-") if data_dir is None else data_dir).resolve()
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._external_zookeeper = zookeeper
        self._ports: dict[int, ReservedPort] = {}
        self._zookeeper_port: ReservedPort | None = None
        self._zookeeper: ChildProcess | None = None
        self._brokers: dict[int, ChildProcess] = {}
        self._admin = ClusterAdmin(
            self._answering,
            timeout_s=start_timeout_s,
            on_wait=self._on_wait,
            why_silent=self._why_silent,
            ended=self._ended,
            why_unknown=self._why_unknown,
        )
        self._internal_topics = InternalTopics(self._answering)

    def __enter__(self) -> LocalCluster:
        self.start_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> LocalCluster:
        import asyncio

        await asyncio.to_thread(self.start_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    # --- the whole cluster ---

    def start_all(self) -> None:
        """Starts ZooKeeper and all brokers at the same time; returns when every broker knows all the others.

        With several brokers `__consumer_offsets` is being created then, so that groups work when a broker is missing.
        """
        try:
            deadline = time.monotonic() + self._start_timeout_s
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._reserve_ports()
            self._start_zookeeper()
            for broker_id in self.broker_ids:
                self._spawn(broker_id)
            for broker_id in self.broker_ids:
                self._brokers[broker_id].wait_ready(deadline, self._zookeeper)
            self._admin.wait_until_acquainted(self._running(), deadline)
            self._internal_topics.request()
        except BaseException as error:
            try:
                self.close()
            except KlammError as problem:
                error.add_note(str(problem))
            raise

    def close(self) -> None:
        """Stops everything, the brokers first and in a controlled way, and removes a temporary data directory."""
        problems: list[str] = []
        for process in self._brokers.values():  # all at first: who is stopped may need the controller
            if process.is_running and process.is_paused:
                process.resume()
        for process in self._processes():
            try:
                process.stop(self._stop_timeout_s)
            except KlammError as error:
                problems.append(str(error))
        self._brokers.clear()
        self._zookeeper = None
        for port in [*self._ports.values(), *([self._zookeeper_port] if self._zookeeper_port is not None else [])]:
            port.close()
        self._ports.clear()
        self._zookeeper_port = None
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        if problems:
            raise KlammError("\n".join(problems))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{port.host}:{port.number}" for port in self._ports.values())

    @property
    def zookeeper_connect(self) -> str:
        if self._external_zookeeper is not None:
            return self._external_zookeeper
        if self._zookeeper_port is None:
            raise KlammError(_NOT_STARTED)
        return f"{LOOPBACK}:{self._zookeeper_port.number}"

    def wait_for(
        self, condition: Callable[[], T | None], timeout_s: float | None = None, *, what: str = "What was waited for"
    ) -> T:
        """Asks until the result is neither None nor False, and returns it.

        `what` says what is waited for: "all replicas in sync". Raises KlammError with the brokers' last words when it
        does not come within `timeout_s` (the cluster's `start_timeout_s` if not given), and at once when a process has
        ended by itself.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return self._admin.wait(condition, f"{what}: did not come", deadline)

    # --- ZooKeeper ---

    @property
    def has_lost_zookeeper(self) -> bool:
        """Whether the embedded server has ended by itself."""
        return self._zookeeper is not None and self._zookeeper.has_crashed

    def stop_zookeeper(self, *, kill: bool = False) -> None:
        """Ends the embedded server, with SIGTERM or with SIGKILL; the brokers go on without it."""
        server = self._embedded_zookeeper()
        server.must_run()
        if kill:
            server.kill()
        else:
            server.stop(self._stop_timeout_s)

    def start_zookeeper(self) -> None:
        """Starts the stopped embedded server on its port and its data; returns when it accepts connections."""
        server = self._embedded_zookeeper()
        server.spawn()
        with nothing_left_of(server):
            server.wait_ready(time.monotonic() + self._start_timeout_s)

    def restart_zookeeper(self, *, kill: bool = False) -> None:
        """Ends the embedded server and starts it again; sessions that come back in time go on."""
        self.stop_zookeeper(kill=kill)
        self.start_zookeeper()

    def expire_session(self, broker_id: int) -> None:
        """Ends the broker's ZooKeeper session from outside; its registration goes, and it has to find its way back.

        Works with the embedded server and with a real ensemble, also while the broker is paused.
        """
        self._broker(broker_id).must_run()

        def expire() -> bool:
            return expire_session(self.zookeeper_connect, self._log_dirs(broker_id), self._start_timeout_s)

        self.wait_for(expire, what=f"A session of broker {broker_id}")

    # --- one broker ---

    def kill(self, broker_id: int) -> None:
        """SIGKILL, as if the machine had lost its power."""
        process = self._broker(broker_id)
        self._internal_topics.settle()
        process.kill()

    def stop(self, broker_id: int) -> None:
        """SIGTERM: leaderships are handed over, logs are flushed. A paused broker goes on to do so."""
        process = self._broker(broker_id)
        process.must_run()
        self._internal_topics.settle()
        process.stop(self._stop_timeout_s)

    def start(self, broker_id: int) -> None:
        """Starts a stopped or killed broker on the port it had; returns when all that are not paused know it.

        A start that fails leaves no process.
        """
        self._port(broker_id)
        if self._zookeeper is not None and not self._zookeeper.is_running:
            raise KlammError(f"Broker {broker_id} cannot start: ZooKeeper is not running; use start_zookeeper() first.")
        deadline = time.monotonic() + self._start_timeout_s
        process = self._spawn(broker_id)
        with nothing_left_of(process):
            process.wait_ready(deadline)
            self._admin.wait_until_acquainted(self._answering(), deadline)

    def pause(self, broker_id: int) -> None:
        """SIGSTOP: the process is there but does nothing, as in a long stop of the machine; again is no error."""
        process = self._broker(broker_id)
        self._internal_topics.settle()
        process.pause()

    def resume(self, broker_id: int) -> None:
        """SIGCONT: a paused broker goes on where it was."""
        self._broker(broker_id).resume()

    def is_running(self, broker_id: int) -> bool:
        return self._broker(broker_id).is_running

    def pid(self, broker_id: int) -> int:
        return self._broker(broker_id).pid

    def port(self, broker_id: int) -> int:
        return self._port(broker_id).number

    def logs(self, broker_id: int) -> Path:
        """The file with what the broker writes about itself."""
        return self.data_dir / f"broker-{broker_id}.log"

    # --- topics and leaders ---

    def unique_topic_name(self, stem: str = "topic") -> str:
        return f"{stem}-{uuid.uuid4().hex[:12]}"

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Returns when every running broker knows the topic and the leader of each partition."""
        self._admin.create_topic(name, partitions, replication_factor, config or {})

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topic(name)

    @property
    def controller_id(self) -> int:
        """The broker that is the controller now; waits for an election to end."""
        return self._admin.controller_id()

    @property
    def live_brokers(self) -> set[int]:
        """The brokers that any of those who can be asked believes to be alive: a paused one until its session ends."""
        return self._admin.live_brokers()

    def leader(self, topic: str, partition: int = 0) -> int:
        """The leader of a partition now; waits for an election to end, and never names a broker that was ended.

        Raises KlammError at once for a topic or partition that does not exist, and when no broker can be asked.
        """
        return self._admin.leader(topic, partition)

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        """The in-sync replicas of a partition, as the running brokers know them now."""
        return self._admin.isr(topic, partition)

    # --- how it is done ---

    def _reserve_ports(self) -> None:
        for broker_id in self.broker_ids:
            wanted = self._settings.ports.get(broker_id, 0)
            try:
                self._ports[broker_id] = ReservedPort(wanted)
            except OSError as error:
                raise KlammError(f"Port {wanted} cannot be used: {error.strerror}. Choose another one.") from None
        if self._external_zookeeper is None:
            self._zookeeper_port = ReservedPort()

    def _port(self, broker_id: int) -> ReservedPort:
        if broker_id not in self.broker_ids:
            raise KlammError(f"There is no broker {broker_id}: the cluster has {', '.join(map(str, self.broker_ids))}.")
        if broker_id not in self._ports:
            raise KlammError(_NOT_STARTED)
        return self._ports[broker_id]

    def _start_zookeeper(self) -> None:
        if self._zookeeper_port is None:
            return
        port = self._zookeeper_port.number
        self._zookeeper = zookeeper_process(self.data_dir, port, is_temporary=self._temporary)
        self._zookeeper.spawn()

    def _spawn(self, broker_id: int) -> ChildProcess:
        process = self._brokers.get(broker_id)
        if process is None:
            self._brokers[broker_id] = process = self._new_broker(broker_id)
        if not process.is_running:
            self._ready_file(broker_id).unlink(missing_ok=True)
            self._write_config(broker_id)
        process.spawn()
        return process

    def _new_broker(self, broker_id: int) -> ChildProcess:
        files = self._config_file(broker_id), self._ready_file(broker_id), self.logs(broker_id)
        return broker_process(broker_id, *files)

    def _write_config(self, broker_id: int) -> None:
        text = "".join(f"{key}={property_text(value)}\n" for key, value in self._properties(broker_id).items())
        # The directory may be one that others can read, and settings may be secret.
        with open(self._config_file(broker_id), "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)

    def _properties(self, broker_id: int) -> dict[str, object]:
        return {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port(broker_id)}",
            "log.dirs": self.data_dir / f"broker-{broker_id}",
            "zookeeper.connect": self.zookeeper_connect,
            "zookeeper.connection.timeout.ms": int(self._start_timeout_s * 1000),
            **self._settings.of_broker(broker_id),
        }

    def _log_dirs(self, broker_id: int) -> list[Path]:
        return [Path(path.strip()) for path in str(self._properties(broker_id)["log.dirs"]).split(",")]

    def _config_file(self, broker_id: int) -> Path:
        return self.data_dir / f"broker-{broker_id}.properties"

    def _ready_file(self, broker_id: int) -> Path:
        return self.data_dir / f"broker-{broker_id}.ready"

    def _embedded_zookeeper(self) -> ChildProcess:
        if self._zookeeper is None:
            why = "is not started" if self._external_zookeeper is None else "uses a ZooKeeper that is not its own"
            raise KlammError(f"The cluster {why}.")
        return self._zookeeper

    def _broker(self, broker_id: int) -> ChildProcess:
        if broker_id not in self._brokers:
            raise KlammError(f"Broker {broker_id} was not started; brokers are {', '.join(map(str, self.broker_ids))}.")
        return self._brokers[broker_id]

    def _processes(self) -> list[ChildProcess]:
        """The brokers, and then ZooKeeper if it is ours."""
        return [*self._brokers.values(), *([self._zookeeper] if self._zookeeper is not None else [])]

    def _running(self) -> list[int]:
        return [broker_id for broker_id, process in self._brokers.items() if process.is_running]

    def _ended(self) -> list[int]:
        """Brokers of ours that were stopped or killed, or have ended by themselves."""
        return [broker_id for broker_id, process in self._brokers.items() if not process.is_running]

    def _answering(self) -> dict[int, tuple[str, int]]:
        """Where the brokers are that run and are not paused."""
        running = self._brokers.items()
        return {
            broker_id: (LOOPBACK, self.port(broker_id))
            for broker_id, process in running
            if process.is_running and not process.is_paused
        }

    def _why_silent(self) -> str | None:
        """None while somebody answers, and when a broker has ended by itself: `_on_wait` has more to say of that."""
        if self._answering() or any(process.has_crashed for process in self._brokers.values()):
            return None
        if not self._brokers:
            return "the cluster is not started"
        silent = {"paused": self._running(), "not running": self._ended()}
        return " and ".join(f"{brokers_are(ids)} {why}" for why, ids in silent.items() if ids)

    def _why_unknown(self, topic: str, partition: int) -> str | None:
        if self._zookeeper is not None and not self._zookeeper.is_running:
            return None
        return why_unknown(self.zookeeper_connect, topic, partition)

    def _on_wait(self, problem: str, is_late: bool) -> None:
        for process in self._processes():
            if process.has_crashed:
                raise KlammError(f"{problem}: {process.name} has ended by itself.\n{process.log_tail()}")
        if is_late:
            tails = [process.log_tail() for process in self._brokers.values()]
            raise KlammError("\n".join([f"{problem}.", *tails]))
