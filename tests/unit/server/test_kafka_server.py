"""A stop ends everything that a start has begun, however far the start came."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.controller.config import ControllerConfig
from klamm.controller.controller_runner import ControllerRunner
from klamm.errors import KlammError
from klamm.log import names
from klamm.model import BrokerEndPoints, EndPoint
from klamm.network.slice_passes import SlicePasses
from klamm.server import assembly, collector, starting
from klamm.server.background_tasks import BackgroundTasks
from klamm.server.coordination import Coordination
from klamm.server.ending import Ending
from klamm.server.environment import Environment
from klamm.server.kafka_server import KafkaServer
from klamm.server.running import Running
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import encode_broker
from klamm.zk.model.znodes import encode_controller
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.raw_client import TIMEOUT_S


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeperThread]:
    embedded = EmbeddedZooKeeperThread(tmp_path / "zk")
    embedded.start()
    try:
        yield embedded
    finally:
        embedded.stop()


def config(tmp_path: Path, zookeeper: EmbeddedZooKeeperThread, port: int = 0) -> KafkaConfig:
    return KafkaConfig(settings(tmp_path, zookeeper, port))


def settings(tmp_path: Path, zookeeper: EmbeddedZooKeeperThread, port: int = 0) -> dict[str, str]:
    return {
        "broker.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(tmp_path / "logs"),
        "zookeeper.connect": str(zookeeper.address),
        "klamm.metrics.port": "0",
        "controlled.shutdown.retry.backoff.ms": "10",
    }


async def start_and_stop(server: KafkaServer) -> Running:
    try:
        return await server.start()
    finally:
        await server.stop()


def test_background_tasks_end_with_the_broker() -> None:
    async def scenario() -> None:
        tasks, ended = BackgroundTasks(), asyncio.Event()

        async def wait_for_ever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        tasks.spawn(wait_for_ever())
        await asyncio.sleep(0)
        await tasks.stop()
        assert ended.is_set() and asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, zookeeper: EmbeddedZooKeeperThread) -> None:
    """The logs, the metrics port and the session are free again: the next start in this process succeeds."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(KlammError, match=f"{port}"):
                await start_and_stop(KafkaServer(config(tmp_path, zookeeper, port)))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        server = KafkaServer(config(tmp_path, zookeeper, port))
        running = await start_and_stop(server)
        assert running.endpoints[0].port == port and running.metrics_port > 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_start_with_access_rules_closes_the_secret_of_the_brokers(
    tmp_path: Path, zookeeper: EmbeddedZooKeeperThread
) -> None:
    """It stayed readable by everybody in a cluster that had run without `zookeeper.set.acl`."""
    asyncio.run(start_and_stop(KafkaServer(config(tmp_path, zookeeper))))
    rules = {"klamm.zookeeper.digest": "klamm:secret", "zookeeper.set.acl": "true"}
    asyncio.run(start_and_stop(KafkaServer(KafkaConfig({**settings(tmp_path, zookeeper), **rules}))))
    stranger = KazooClient(str(zookeeper.address))
    stranger.start(TIMEOUT_S)
    try:
        for path in (paths.PEER_SECRET, "/config/users", "/config/brokers"):
            with pytest.raises(NoAuthError):
                stranger.get(path)
        assert stranger.exists("/config/topics")
    finally:
        stranger.stop()
        stranger.close()


def test_a_start_has_no_passes_of_the_collector_between_slices(
    tmp_path: Path, zookeeper: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector is off until the broker answers: the first pass would visit the objects of all partitions."""
    built: list[Broker] = []
    is_started: list[bool] = []

    def slice_passes() -> SlicePasses:
        is_started.append(built[0].metadata.has_alive_broker(1))
        return SlicePasses()

    monkeypatch.setattr(collector, "slice_passes", slice_passes)
    asyncio.run(start_and_stop(KafkaServer(config(tmp_path, zookeeper), Environment(on_built=built.append))))
    assert is_started == [True]


async def readiness(port: int) -> tuple[bytes, bytes]:
    """Return the first line and the body of `/readyz`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
    head, _, body = (await asyncio.wait_for(reader.read(), TIMEOUT_S)).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head.splitlines()[0], body


def test_a_broker_that_stops_is_not_ready(
    tmp_path: Path, zookeeper: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/readyz` is asked while the parts of the broker are shut down: load balancers send it no further clients."""
    answers: list[tuple[bytes, bytes]] = []
    ports: list[int] = []

    async def ask_and_shut_down(broker: Broker) -> None:
        answers.append(await readiness(ports[0]))
        assembly.shut_down(broker)

    async def scenario() -> None:
        server = KafkaServer(config(tmp_path, zookeeper))
        try:
            running = await server.start()
            ports.append(running.metrics_port)
            answers.append(await readiness(ports[0]))
        finally:
            await server.stop()

    monkeypatch.setattr(starting, "shut_down", ask_and_shut_down)
    asyncio.run(scenario())
    assert answers == [
        (b"HTTP/1.1 200 OK", b"ok\n"),
        (b"HTTP/1.1 503 Service Unavailable", b"The broker is stopping.\n"),
    ]


def test_a_starting_broker_resolves_the_hosts_of_registered_brokers(
    tmp_path: Path, zookeeper: EmbeddedZooKeeperThread
) -> None:
    """The controller, which is another broker, has not sent the brokers yet: they are in ZooKeeper only."""
    client = KazooClient(str(zookeeper.address))
    client.start(TIMEOUT_S)
    registered = BrokerEndPoints(2, (EndPoint("PLAINTEXT", "b.example", 9092),))
    client.create(paths.broker_path(2), encode_broker(registered, 0), ephemeral=True, makepath=True)
    client.create(paths.broker_path(3), b"damaged", ephemeral=True)
    client.create(paths.CONTROLLER, encode_controller(2, 0), ephemeral=True)

    async def scenario() -> None:
        asked = asyncio.Event()

        async def resolve(host: str) -> frozenset[str]:
            assert host == "b.example"
            asked.set()
            return frozenset({"127.0.0.2"})

        limited = {"max.connections": "1", "controlled.shutdown.enable": "false"}
        server = KafkaServer(config(tmp_path, zookeeper).with_static(limited), Environment(resolve=resolve))
        starting_up = asyncio.ensure_future(server.start())
        try:
            await asyncio.wait_for(asked.wait(), TIMEOUT_S)
            assert not starting_up.done()
        finally:
            starting_up.cancel()
            await asyncio.wait({starting_up})
            await server.stop()

    try:
        asyncio.run(scenario())
    finally:
        client.stop()
        client.close()


class Unreachable(Coordination):
    """ZooKeeper stops answering while the session of the last run is ended."""

    async def take_over(self, log_dirs: Sequence[Path]) -> bool:
        raise KlammError("ZooKeeper did not answer")


def test_logs_that_may_lack_records_stay_suspect_after_a_failed_start(
    tmp_path: Path, zookeeper: EmbeddedZooKeeperThread
) -> None:
    """A broker that crashed must report it, also if its first start afterwards came only as far as its logs."""
    mark = tmp_path / "logs" / names.CLEAN_SHUTDOWN

    async def scenario() -> None:
        await start_and_stop(KafkaServer(config(tmp_path, zookeeper)))
        mark.unlink()  # as after a crash
        with pytest.raises(KlammError, match="did not answer"):
            await start_and_stop(KafkaServer(config(tmp_path, zookeeper), Environment(coordination=Unreachable)))
        assert not mark.exists()
        running = await start_and_stop(KafkaServer(config(tmp_path, zookeeper)))
        assert running.broker.logs.may_lack_records

    asyncio.run(scenario())


class FailingControlLoop(ControllerRunner):
    """Fails when the test says so."""

    made: ClassVar[list[FailingControlLoop]] = []

    async def _run(self, config: ControllerConfig, ready: threading.Event) -> None:
        self.made.append(self)
        self._failing = asyncio.Event()
        self._serving = asyncio.ensure_future(super()._run(config, ready))
        await self._failing.wait()
        raise RuntimeError("a bug in the control loop")

    def fail(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._failing.set)


def test_a_broker_whose_control_loop_fails_leaves_the_cluster_and_stops(
    tmp_path: Path, zookeeper: EmbeddedZooKeeperThread
) -> None:
    """Otherwise it would stay the controller, and the cluster would stand still."""
    client = KazooClient(str(zookeeper.address))
    client.start(TIMEOUT_S)

    async def scenario() -> None:
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        environment = Environment(controller_runner=FailingControlLoop)
        server = KafkaServer(config(tmp_path, zookeeper), environment, failed.set_result)
        try:
            await server.start()
            assert client.exists(paths.CONTROLLER) and client.exists(paths.broker_path(1))
            FailingControlLoop.made.pop().fail()
            assert "control loop" in await asyncio.wait_for(failed, TIMEOUT_S)
        finally:
            await asyncio.wait_for(server.stop(), TIMEOUT_S)
        assert not client.exists(paths.CONTROLLER) and not client.exists(paths.broker_path(1))

    try:
        asyncio.run(scenario())
    finally:
        client.stop()
        client.close()


def test_a_step_that_fails_does_not_keep_the_others_from_running() -> None:
    done: list[str] = []

    async def later(name: str) -> None:
        await asyncio.sleep(0)
        done.append(name)

    def fail() -> None:
        raise ValueError("the first failure")

    async def scenario() -> None:
        ending = Ending()
        ending.add(lambda: done.append("logs"))
        ending.add(lambda: later("sockets"))
        ending.add(fail)
        ending.add(lambda: later("scheduler"))
        with pytest.raises(ValueError, match="the first failure"):
            await ending.run()
        await ending.run()

    asyncio.run(scenario())
    assert done == ["scheduler", "sockets", "logs"]
