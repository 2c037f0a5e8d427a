"""BrokerAddresses: hosts of brokers become addresses, without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from klamm.metadata import MetadataCache, MetadataUpdate
from klamm.model import BrokerEndPoints, EndPoint
from klamm.network import ConnectionLimits, SocketServerConfig
from klamm.server import broker_addresses
from klamm.server.background_tasks import BackgroundTasks
from klamm.server.broker_addresses import BrokerAddresses
from klamm.zk.model.ops import ConnectionLoss, SessionExpired, ZkError
from tests.unit.network.harness import RawClient, Server, heartbeat, heartbeat_api, muted, until


class Names:
    """A name service whose entries a test changes."""

    def __init__(self) -> None:
        self.entries: dict[str, frozenset[str]] = {}
        self.asked: list[str] = []

    async def resolve(self, host: str) -> frozenset[str]:
        self.asked.append(host)
        if host not in self.entries:
            raise OSError("Name or service not known")
        return self.entries[host]


def at(*hosts: str) -> tuple[EndPoint, ...]:
    return tuple(EndPoint("PLAINTEXT", host, 9092) for host in hosts)


def nodes(**hosts: str) -> tuple[BrokerEndPoints, ...]:
    return tuple(BrokerEndPoints(int(name[1:]), at(host)) for name, host in hosts.items())


def brokers(**hosts: str) -> MetadataUpdate:
    return MetadataUpdate(controller_id=1, controller_epoch=1, live_brokers=nodes(**hosts))


class TestNames:
    def setup_method(self) -> None:
        self.names = Names()
        self.metadata = MetadataCache(1)
        self.tasks: list[Coroutine[object, object, None]] = []

    def addresses(self, *own: str) -> BrokerAddresses:
        return BrokerAddresses(at(*own), self.metadata, self.tasks.append, self.names.resolve)

    def run_tasks(self) -> None:
        tasks, self.tasks[:] = list(self.tasks), []
        for task in tasks:
            asyncio.run(task)

    def test_addresses_and_the_local_host_need_no_resolution(self) -> None:
        addresses = self.addresses("localhost", "10.0.0.1", "fd00:0::1")
        assert all(addresses.includes(each) for each in ("127.0.0.1", "::1", "10.0.0.1", "fd00::1"))
        assert not addresses.includes("10.0.0.2")
        addresses.resolve_names()
        assert not self.tasks

    def test_names_are_resolved_when_a_broker_registers(self) -> None:
        self.names.entries = {"a.example": frozenset({"10.0.0.1"}), "b.example": frozenset({"10.0.0.2", "fd00::2"})}
        addresses = self.addresses("a.example")
        self.run_tasks()
        assert addresses.includes("10.0.0.1") and not addresses.includes("10.0.0.2")
        self.metadata.update(brokers(b1="a.example", b2="b.example"))
        self.run_tasks()
        assert all(addresses.includes(each) for each in ("10.0.0.1", "10.0.0.2", "fd00::2"))
        assert self.names.asked == ["a.example", "b.example"]
        self.metadata.update(brokers(b1="a.example"))
        assert not addresses.includes("10.0.0.2")

    def test_a_name_that_is_gone_keeps_its_addresses(self) -> None:
        self.names.entries = {"a.example": frozenset({"10.0.0.1"})}
        addresses = self.addresses("a.example")
        self.run_tasks()
        self.names.entries = {}
        addresses.resolve_names()
        self.run_tasks()
        assert addresses.includes("10.0.0.1")
        self.names.entries = {"a.example": frozenset({"10.0.0.7"})}
        addresses.resolve_names()
        self.run_tasks()
        assert addresses.includes("10.0.0.7") and not addresses.includes("10.0.0.1")

    def test_a_late_answer_for_a_broker_that_has_left_is_dropped(self) -> None:
        self.names.entries = {"b.example": frozenset({"10.0.0.2"})}
        addresses = self.addresses("10.0.0.1")
        self.metadata.update(brokers(b2="b.example"))
        self.metadata.update(brokers(b1="10.0.0.1"))
        self.run_tasks()
        assert not addresses.includes("10.0.0.2")

    def test_a_name_is_not_looked_up_twice_at_once(self) -> None:
        self.names.entries = {"a.example": frozenset({"10.0.0.1"})}
        addresses = self.addresses("a.example")
        addresses.resolve_names()
        addresses.resolve_names()
        assert len(self.tasks) == 1
        self.run_tasks()
        self.names.entries = {}
        addresses.resolve_names()
        self.run_tasks()
        addresses.resolve_names()
        assert len(self.tasks) == 1, "also after a failure"
        self.run_tasks()

    def test_registrations_count_until_the_controller_sends_the_brokers(self) -> None:
        changes: list[bool] = []
        addresses = self.addresses("10.0.0.1")
        addresses.on_change = lambda: changes.append(addresses.includes("10.0.0.2"))

        async def registered() -> tuple[BrokerEndPoints, ...]:
            return nodes(b1="10.0.0.1", b2="10.0.0.2")

        asyncio.run(addresses.read_registrations(registered))
        asyncio.run(addresses.read_registrations(registered))
        assert changes == [True]
        self.metadata.update(brokers(b1="10.0.0.1"))
        asyncio.run(addresses.read_registrations(registered))
        assert changes == [True, False]


class StartingBroker:
    """A listener with one place for clients that is not processing yet, and the addresses of its cluster."""

    def __init__(self) -> None:
        self.registered = nodes(b1="127.0.0.1")
        self.answers: dict[str, asyncio.Future[frozenset[str]]] = {}
        self.tasks = BackgroundTasks()
        self.metadata = MetadataCache(1)
        self.addresses = BrokerAddresses(at("10.0.0.1"), self.metadata, self.tasks.spawn, self._resolve)
        config = SocketServerConfig(connection_limits=ConnectionLimits(max_connections=1))
        self.server = Server(heartbeat_api(), config=config, started=False)
        self.server.network.quotas.is_broker_address = self.addresses.includes
        self.addresses.on_change = self.server.network.on_broker_addresses

    async def _resolve(self, host: str) -> frozenset[str]:
        return await self.answers.setdefault(host, asyncio.get_running_loop().create_future())

    async def read(self) -> tuple[BrokerEndPoints, ...]:
        return self.registered

    async def clients_and_controller(self) -> tuple[list[RawClient], RawClient]:
        """Let one client take the place and another wait for it; then the controller connects."""
        clients = [await self.server.client(address="127.0.0.3") for _ in range(2)]
        await until(lambda: muted(self.server) == {"not-admitted": 2})
        self.server.network.start_processing()
        await until(lambda: muted(self.server) == {"not-admitted": 1})
        return clients, await self.server.client(address="127.0.0.2")


async def answered(client: RawClient) -> None:
    client.send(heartbeat(7))
    assert await client.receive_heartbeat() == (0, 7)


def test_the_controller_reaches_a_starting_broker_that_is_full() -> None:
    async def scenario() -> None:
        broker = StartingBroker()
        async with broker.server:
            broker.registered = nodes(b1="10.0.0.1", b2="127.0.0.2")
            await broker.addresses.read_registrations(broker.read)
            clients, controller = await broker.clients_and_controller()
            await answered(controller)
            assert muted(broker.server) == {"not-admitted": 1}
            for each in (*clients, controller):
                await each.close()

    asyncio.run(scenario())


def test_a_waiting_connection_passes_clients_when_its_name_is_resolved() -> None:
    async def scenario() -> None:
        broker = StartingBroker()
        async with broker.server:
            broker.registered = nodes(b1="10.0.0.1", b2="b.example")
            await broker.addresses.read_registrations(broker.read)
            clients, controller = await broker.clients_and_controller()
            await until(lambda: muted(broker.server) == {"not-admitted": 2} and "b.example" in broker.answers)
            broker.answers["b.example"].set_result(frozenset({"127.0.0.2"}))
            await answered(controller)
            assert muted(broker.server) == {"not-admitted": 1}
            for each in (*clients, controller):
                await each.close()
        await broker.tasks.stop()

    asyncio.run(scenario())


def test_a_waiting_connection_passes_clients_when_its_broker_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_addresses, "REGISTRATIONS_INTERVAL_S", 0.001)

    async def scenario() -> None:
        broker = StartingBroker()
        async with broker.server:
            following = asyncio.ensure_future(broker.addresses.follow_registrations(broker.read))
            clients, controller = await broker.clients_and_controller()
            await until(lambda: muted(broker.server) == {"not-admitted": 2})
            broker.registered = nodes(b1="10.0.0.1", b2="127.0.0.2")
            await answered(controller)
            broker.metadata.update(brokers(b1="10.0.0.1", b2="127.0.0.2"))
            await following
            for each in (*clients, controller):
                await each.close()

    asyncio.run(scenario())


def test_registrations_are_read_again_after_zookeeper_has_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The session of a starting broker can expire before the controller has sent the brokers. This is logged once."""
    monkeypatch.setattr(broker_addresses, "REGISTRATIONS_INTERVAL_S", 0.001)
    registered = nodes(b1="10.0.0.1", b2="127.0.0.2")
    answers: list[tuple[BrokerEndPoints, ...] | ZkError] = [SessionExpired(), SessionExpired(), ConnectionLoss()]
    answers += [registered, SessionExpired(), registered]

    async def read() -> tuple[BrokerEndPoints, ...]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ZkError):
            raise answer
        return answer

    async def scenario() -> None:
        broker = StartingBroker()
        following = asyncio.ensure_future(broker.addresses.follow_registrations(read))
        await until(lambda: len(answers) == 1 or following.done())
        assert not following.done() and broker.addresses.includes("127.0.0.2")
        broker.metadata.update(brokers(b1="10.0.0.1", b2="127.0.0.2"))
        await following

    asyncio.run(scenario())
    assert caplog.text.count("the registered brokers cannot be read") == 2, "once per failure of ZooKeeper"
