"""LocalCluster: a cluster of real processes on this machine, one embedded ZooKeeper server and some brokers.

    with LocalCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        cluster.kill(cluster.leader("orders", 0))

Broker ids start at 1. Ports are free ones, and a broker keeps its port across restarts. All processes end with the
`with` block, and with the process that created the cluster, however that ends.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack

from klamm.errors import KlammError
from klamm.local.admin import ClusterAdmin
from klamm.local.broker_sessions import expire_session
from klamm.local.broker_settings import TEST_DEFAULTS, BrokerConfigs, ClusterSettings, property_text
from klamm.local.cluster_security import ClusterSecurity, serves_certificate
from klamm.local.drill_disk import read_delay
from klamm.local.internal_topics import InternalTopics
from klamm.local.launch import nothing_left_of
from klamm.local.security_choice import ADMIN, SecurityChoice, Tls
from klamm.local.supervisor import Limits, Supervisor
from klamm.security.certificates.private_files import write_private
from klamm.security.sasl.mechanisms import PLAIN

T = TypeVar("T")

__all__ = ["TEST_DEFAULTS", "LocalCluster"]


class Tuning(TypedDict, total=False):
    """Arguments of a LocalCluster that few callers need."""

    ports: Iterable[int]
    defaults: Mapping[str, object]
    start_timeout_s: float
    stop_timeout_s: float
    drill: bool


class LocalCluster:
    """A cluster for tests and for `klamm up`.

    With `tls`, `sasl` and `acls` it is secured, with certificates and users that it makes: `client_config("alice")` is
    what a client needs. `tls="mutual"` requires certificates of clients. `sasl` is a mechanism such as SCRAM-SHA-512.

    `broker_configs` are Kafka's keys for all brokers, or by broker id; both forms can be mixed. Without `data_dir` the
    data lives in a temporary directory that is removed with the cluster. `zookeeper` names a real ensemble
    (`host:port/chroot`) to use instead of the embedded server. With `control.plane.listener.name` in `broker_configs`,
    each broker gets a second listener of that name for the requests of the controller. With `drill=True`, connections
    go through relays of this process, so that `cut` and `slow_disk` work. Invalid arguments raise ValueError and name
    the argument.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        tls: Tls = False,
        sasl: str | None = None,
        acls: bool = False,
        data_dir: Path | str | None = None,
        broker_configs: BrokerConfigs | None = None,
        zookeeper: str | None = None,
        **tuning: Unpack[Tuning],
    ) -> None:
        if unknown := tuning.keys() - Tuning.__annotations__.keys():
            raise TypeError(f"LocalCluster has no argument {min(unknown)!r}.")
        choice = SecurityChoice.of(tls, sasl, acls)
        ports, defaults = tuning.get("ports", ()), tuning.get("defaults", TEST_DEFAULTS)
        start_timeout_s, stop_timeout_s = tuning.get("start_timeout_s", 60.0), tuning.get("stop_timeout_s", 60.0)
        if (is_drill := tuning.get("drill", False)) and zookeeper is not None:
            raise ValueError("drill cannot be True with zookeeper: a fault drill needs the embedded server.")
        settings = ClusterSettings(brokers, broker_configs or {}, ports, defaults, choice)
        self.broker_ids: tuple[int, ...] = settings.broker_ids
        self.data_dir = Path(tempfile.mkdtemp(prefix="klamm-") if data_dir is None else data_dir).resolve()
        self._supervisor = Supervisor(
            settings,
            ClusterSecurity(choice, self.data_dir, has_own_zookeeper=zookeeper is None),
            self.data_dir,
            Limits(start_timeout_s, stop_timeout_s),
            is_temporary=data_dir is None,
            external_zookeeper=zookeeper,
            is_drill=is_drill,
        )
        self._admin = ClusterAdmin(self._supervisor, timeout_s=start_timeout_s)
        self._internal_topics = InternalTopics(
            self._supervisor, with_transactions=settings.is_set("transaction.state.log.replication.factor")
        )

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
        """Start ZooKeeper and all brokers at the same time; return when every broker knows all the others.

        With several brokers, the creation of `__consumer_offsets` has begun then, so that groups keep working when a
        broker is lost; also that of `__transaction_state`, if transaction.state.log.replication.factor is set.
        """
        try:
            deadline = self._start_deadline()
            self._supervisor.start_all(deadline)
            self._admin.wait_until_acquainted(self._supervisor.running(), deadline)
            self._internal_topics.request()
        except BaseException as error:
            try:
                self.close()
            except KlammError as problem:
                error.add_note(str(problem))
            raise

    def close(self) -> None:
        """Stop all processes, brokers first and with a controlled shutdown, and remove a temporary data directory."""
        self._supervisor.close()

    @property
    def bootstrap_servers(self) -> str:
        return self._supervisor.bootstrap_servers

    @property
    def zookeeper_connect(self) -> str:
        return self._supervisor.zookeeper_connect

    # --- users ---

    def client_config(self, user: str | None = None, library: str = "confluent-kafka") -> dict[str, Any]:
        """Return what a client needs to connect as `user`, who is added if necessary; without one, as a super user.

        `library` is confluent-kafka, aiokafka, kafka-python or java (the properties of Kafka's own clients).
        """
        if user == "":
            raise ValueError("user cannot be '': expected a name, or None for a super user.")
        security, user = self._supervisor.security, ADMIN if user is None else user
        if security.is_on and not security.has_user(user):
            self.add_user(user)
        return security.client_config(user, self.bootstrap_servers, library)

    def write_client_properties(self, user: str | None = None, path: Path | str | None = None) -> Path | None:
        """Write what Kafka's tools and `klamm --command-config` need; return the file, None if nothing is secured.

        Only its owner may read the file, `client.properties` in the data directory by default.
        """
        if not self._supervisor.security.is_on:
            return None
        path = Path(path or self.data_dir / "client.properties")
        lines = (f"{name}={property_text(value)}\n" for name, value in self.client_config(user, "java").items())
        write_private(path, "".join(lines).encode())
        return path

    def renew_certificate(self) -> None:
        """Issue a new certificate for the brokers; return when all running brokers use it for new connections."""
        if not self._supervisor.security.choice.tls:
            raise KlammError("The cluster has no certificates: create it with tls.")
        path = self._supervisor.security.renew_broker_certificate()
        for broker_id in self._supervisor.answering():
            self._admin.alter_broker_config(broker_id, {"ssl.keystore.location": str(path)})
        self.wait_for(
            lambda: all(serves_certificate(address, path) for address in self._supervisor.answering().values()),
            what="The brokers use the new certificate",
        )

    def add_user(self, name: str, password: str | None = None) -> None:
        """Add a user, or change the password of one. Without a password, a random one is made.

        A running cluster with SASL PLAIN cannot add users: its brokers read them when they start.
        """
        security = self._supervisor.security
        if not security.is_on:
            raise KlammError("The cluster has no users: create it with tls or sasl.")
        is_running = bool(self._supervisor.running())
        if security.choice.sasl == PLAIN and is_running and (password is not None or not security.has_user(name)):
            raise KlammError(f"User {name} cannot be added: SASL PLAIN has the users of its start. Use SCRAM-SHA-512.")
        security.add_user(name, password)
        if security.choice.has_scram and is_running:
            self._supervisor.write_scram_users({name: security.users[name]})
            self._admin.wait_until_accepted(security.client_security(name), f"User {name} cannot log in")

    def wait_for(
        self, condition: Callable[[], T | None], timeout_s: float | None = None, *, what: str = "The awaited condition"
    ) -> T:
        """Repeat until the result is neither None nor False, and return it.

        `what` names the condition in errors: "all replicas in sync". Raises KlammError with the ends of the brokers'
        logs after `timeout_s` (by default the cluster's `start_timeout_s`), and at once if a process has exited on its
        own.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return self._admin.wait(condition, f"{what}: did not happen", deadline)

    # --- ZooKeeper ---

    @property
    def has_lost_zookeeper(self) -> bool:
        """Whether the embedded server has exited on its own."""
        return self._supervisor.has_lost_zookeeper

    @property
    def is_zookeeper_running(self) -> bool:
        """Whether the embedded server runs."""
        return self._supervisor.zookeeper.is_running

    def stop_zookeeper(self, *, kill: bool = False) -> None:
        """End the embedded server with SIGTERM, or with SIGKILL; the brokers keep running without it."""
        server = self._supervisor.zookeeper
        server.must_run()
        if kill:
            server.kill()
        else:
            server.stop(self._supervisor.limits.stop_s)

    def start_zookeeper(self) -> None:
        """Start the stopped embedded server on its port and data; return when it accepts connections."""
        self._supervisor.start_zookeeper()

    def restart_zookeeper(self, *, kill: bool = False) -> None:
        """End the embedded server and start it again; sessions that reconnect in time continue."""
        self.stop_zookeeper(kill=kill)
        self.start_zookeeper()

    def expire_session(self, broker_id: int) -> None:
        """End the broker's ZooKeeper session from outside: its registration is removed and it has to register again.

        Works with the embedded server and with a real ensemble, also while the broker is paused.
        """
        self._supervisor.broker(broker_id).must_run()
        log_dirs, timeout_s = self._supervisor.log_dirs(broker_id), self._supervisor.limits.start_s
        self.wait_for(
            lambda: expire_session(self.zookeeper_connect, log_dirs, timeout_s, self._supervisor.security.zookeeper),
            what=f"A session of broker {broker_id}",
        )

    # --- one broker ---

    def kill(self, broker_id: int) -> None:
        """Send SIGKILL, as if the machine had lost power."""
        process = self._supervisor.broker(broker_id)
        self._internal_topics.settle()
        process.kill()

    def stop(self, broker_id: int) -> None:
        """Send SIGTERM: the broker hands over leaderships and flushes its logs. A paused broker is resumed first."""
        process = self._supervisor.broker(broker_id)
        process.must_run()
        self._internal_topics.settle()
        process.stop(self._supervisor.limits.stop_s)

    def start(self, broker_id: int) -> None:
        """Start a stopped or killed broker on the port it had; return when all that are not paused know it.

        A start that fails leaves no process.
        """
        deadline = self._start_deadline()
        process = self._supervisor.start_broker(broker_id, deadline)
        with nothing_left_of(process):
            self._admin.wait_until_acquainted(self._supervisor.answering(), deadline)

    def pause(self, broker_id: int) -> None:
        """Send SIGSTOP: the process exists but does nothing. Pausing a paused broker has no effect."""
        process = self._supervisor.broker(broker_id)
        self._internal_topics.settle()
        process.pause()

    def resume(self, broker_id: int) -> None:
        """Send SIGCONT: a paused broker continues."""
        self._supervisor.broker(broker_id).resume()

    def is_paused(self, broker_id: int) -> bool:
        return self._supervisor.broker(broker_id).is_paused

    def cut(self, broker_id: int) -> None:
        """Hold all connections of a broker: with clients, other brokers and ZooKeeper. Requires `drill=True`."""
        self._supervisor.broker(broker_id)
        self._supervisor.relays.network.cut(broker_id)

    def heal(self, broker_id: int) -> None:
        """End a cut: bytes that were held arrive now."""
        self._supervisor.broker(broker_id)
        self._supervisor.relays.network.heal(broker_id)

    @property
    def has_drill(self) -> bool:
        return self._supervisor.has_drill

    def is_cut(self, broker_id: int) -> bool:
        return self._supervisor.is_cut(broker_id)

    def slow_disk(self, broker_id: int, delay_s: float) -> None:
        """Delay every access of the broker to its log files by this much; 0 ends the delay. Requires `drill=True`."""
        self._supervisor.broker(broker_id)
        self._supervisor.set_disk_delay(broker_id, delay_s)

    def disk_delay_s(self, broker_id: int) -> float:
        return read_delay(self._supervisor.delay_file(broker_id))

    def is_running(self, broker_id: int) -> bool:
        return self._supervisor.broker(broker_id).is_running

    def pid(self, broker_id: int) -> int:
        return self._supervisor.broker(broker_id).pid

    @property
    def zookeeper_pid(self) -> int:
        """The process id of the embedded ZooKeeper."""
        return self._supervisor.zookeeper.pid

    def port(self, broker_id: int) -> int:
        return self._supervisor.port(broker_id)

    def logs(self, broker_id: int) -> Path:
        """Return the broker's log file."""
        return self._supervisor.log_file(broker_id)

    def metrics_address(self, broker_id: int) -> str | None:
        """Return `host:port` of the broker's `/metrics`, None if `klamm.metrics.port` is -1."""
        return self._supervisor.metrics_address(broker_id)

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
        """Create a topic; return when every running broker knows it and the leader of each partition."""
        self._admin.create_topic(name, partitions, replication_factor, config or {})

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topic(name)

    @property
    def controller_id(self) -> int:
        """The broker that is the controller now. Waits for an election to end."""
        return self._admin.controller_id()

    @property
    def live_brokers(self) -> set[int]:
        """The brokers that at least one answering broker reports as alive: a paused one until its session ends."""
        return self._admin.live_brokers()

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader of a partition. Waits for an election to end, and never returns a broker that was ended.

        Raises KlammError at once if the topic or partition does not exist, and if no broker can answer.
        """
        return self._admin.leader(topic, partition)

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        """Return the in-sync replicas of a partition, as the running brokers know them now."""
        return self._admin.isr(topic, partition)

    def _start_deadline(self) -> float:
        return time.monotonic() + self._supervisor.limits.start_s
