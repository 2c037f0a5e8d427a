"""BrokerAddresses: hosts of brokers become addresses, without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from klamm.metadata import MetadataCache, MetadataUpdate
from klamm.model import BrokerEndPoints, EndPoint
from klamm.server.broker_addresses import BrokerAddresses


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


def brokers(**hosts: str) -> MetadataUpdate:
    nodes = tuple(BrokerEndPoints(int(name[1:]), at(host)) for name, host in hosts.items())
    return MetadataUpdate(controller_id=1, controller_epoch=1, live_brokers=nodes)


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
