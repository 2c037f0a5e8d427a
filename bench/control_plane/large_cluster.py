"""klamm brokers, and very many partitions that somebody wrote straight into their ZooKeeper; their metrics."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.clusters import resident_bytes
from klamm.errors import KlammError
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.local.processes import ChildProcess
from klamm.testing import LocalCluster

START_TIMEOUT_S: Final = 240.0
SESSION_TIMEOUT_MS: Final = 6_000


class LargeCluster:
    """Starts empty; what `bench.control_plane.seeding` writes to its ZooKeeper it learns as topics that a tool made."""

    def __init__(self, brokers: int = 3, configs: Mapping[str, object] | None = None) -> None:
        self.brokers = tuple(range(1, brokers + 1))
        self._folder = Path(tempfile.mkdtemp(prefix="klamm-bench-"))
        self._zookeeper_port = ReservedPort()
        self._metrics_ports = {broker_id: ReservedPort() for broker_id in self.brokers}
        self._zookeeper = self._zookeeper_process()
        self._configs = {
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "replica.lag.time.max.ms": 30_000,
            "auto.leader.rebalance.enable": False,
            **(configs or {}),
        }
        self.local = LocalCluster(
            brokers,
            zookeeper=self.zookeeper,
            data_dir=self._folder / "brokers",
            broker_configs=self._broker_configs(),
            start_timeout_s=START_TIMEOUT_S,
        )

    def _broker_configs(self) -> Any:
        own = {b: {"klamm.metrics.port": port.number} for b, port in self._metrics_ports.items()}
        return {**self._configs, **own}

    @property
    def zookeeper(self) -> str:
        return f"{LOOPBACK}:{self._zookeeper_port.number}"

    def _zookeeper_process(self) -> ChildProcess:
        port = self._zookeeper_port.number
        arguments = ["--data-dir", str(self._folder / "zookeeper"), "--host", LOOPBACK, "--port", str(port)]
        arguments += ["--min-session-timeout-ms", "200", "--no-fsync"]
        log = self._folder / "zookeeper.log"
        return ChildProcess("ZooKeeper", "klamm.zk.server.main", arguments, log, lambda: _accepts(port))

    def __enter__(self) -> Self:
        try:
            self._zookeeper.spawn()
            self._zookeeper.wait_ready(time.monotonic() + START_TIMEOUT_S)
            self.local.start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_notified(self, partitions: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until the controller knows so many partitions and no broker has a request of it left to answer."""
        deadline = time.monotonic() + timeout_s
        while not self.is_notified(partitions):
            if time.monotonic() > deadline:
                raise KlammError(f"The brokers did not receive {partitions} partitions within {timeout_s:g} s.")
            time.sleep(0.1)

    def is_notified(self, partitions: int) -> bool:
        try:
            metrics = self.metrics(self.local.controller_id)
        except OSError:
            return False
        known = metrics.get("kafka_controller_kafkacontroller_globalpartitioncount", 0)
        waiting = "kafka_controller_controllerchannelmanager_oldestitemagems"
        return known >= partitions and not any(v for name, v in metrics.items() if name.startswith(waiting))

    def stop(self) -> None:
        """The data goes with the cluster: nobody waits for controlled shutdowns."""
        for broker_id in self.brokers:
            with contextlib.suppress(KlammError):  # a broker that was never started, or has ended
                self.local.kill(broker_id)
        self.local.close()
        if self._zookeeper.is_running:
            self._zookeeper.kill()
        for port in (self._zookeeper_port, *self._metrics_ports.values()):
            port.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def metrics(self, broker_id: int) -> dict[str, float]:
        """Every sample of the broker's endpoint, by its name with labels."""
        url = f"http://{LOOPBACK}:{self._metrics_ports[broker_id].number}/metrics"
        with urllib.request.urlopen(url, timeout=60) as response:
            text = response.read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def rss_bytes(self, broker_id: int) -> int:
        return resident_bytes(self.local.pid(broker_id))

    @property
    def zookeeper_pid(self) -> int:
        return self._zookeeper.pid

    def zookeeper_rss_bytes(self) -> int:
        return resident_bytes(self._zookeeper.pid)


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), 1.0):
            return True
    except OSError:
        return False
