"""A broker whose event loop stands still leaves the cluster, and returns with a new epoch when the loop turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from klamm.config import KafkaConfig
from klamm.server.kafka_server import KafkaServer
from klamm.zk.client import loop_pulse
from klamm.zk.model import paths
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.raw_client import TIMEOUT_S, RawClient, eventually


class BrokerThread:
    """A broker on a loop of its own, which the test can block."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.port = 0

    async def _run(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = KafkaServer(self._config)
        try:
            running = await server.start()
            self.port = running.endpoints[0].port
            self._ready.set()
            await self._stopping.wait()
        finally:
            await server.stop()
            self._ready.set()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S) and self.port, "the broker did not start"

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Nothing on the loop runs meanwhile."""
        release = threading.Event()
        self._loop.call_soon_threadsafe(release.wait, TIMEOUT_S)
        try:
            yield
        finally:
            release.set()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(TIMEOUT_S)


def epoch(zookeeper: KazooClient) -> int | None:
    try:
        return int(zookeeper.get(paths.broker_path(1))[1].czxid)
    except NoNodeError:
        return None


def test_it_gives_its_session_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_pulse, "SHORTEST_LIMIT_S", 1.0)
    embedded = EmbeddedZooKeeperThread(tmp_path / "zk")
    embedded.start()
    zookeeper = KazooClient(str(embedded.address))
    zookeeper.start(TIMEOUT_S)
    settings = {
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "logs"),
        "zookeeper.connect": str(embedded.address),
        "zookeeper.session.timeout.ms": "2000",
        "klamm.control.log.enable": "false",
    }
    broker = BrokerThread(KafkaConfig(settings))
    try:
        broker.start()
        first = eventually(lambda: epoch(zookeeper), "the broker is not registered")
        with broker.blocked():
            eventually(lambda: epoch(zookeeper) is None, "the session of a broker that stands still continues")
            assert zookeeper.exists(paths.CONTROLLER) is None
        again = eventually(lambda: epoch(zookeeper), "the broker did not come back")
        assert again > first
        found = eventually(lambda: RawClient(broker.port).metadata().brokers or None, "it does not answer")
        assert found[0].node_id == 1
    finally:
        broker.stop()
        zookeeper.stop()
        zookeeper.close()
        embedded.stop()
