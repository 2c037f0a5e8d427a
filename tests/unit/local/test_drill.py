"""The parts of a fault drill: relays that hold connections, and a disk that can be slow."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.local.drill_disk import SharedDelay, SlowFiles, read_delay, write_delay
from klamm.local.drill_network import DrillNetwork
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.testing import LocalCluster

WAIT_S = 60.0


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it receives."""
    server = socket.create_server((LOOPBACK, 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65_536):
                connection.sendall(data)

    def accept() -> None:
        try:
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
        except OSError:
            return

    thread = threading.Thread(target=accept)
    thread.start()
    yield int(server.getsockname()[1])
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.fixture
def network() -> Iterator[DrillNetwork]:
    made = DrillNetwork()
    yield made
    made.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), WAIT_S)


def received(connection: socket.socket, size: int) -> bytes:
    connection.settimeout(WAIT_S)
    data = b""
    while len(data) < size and (part := connection.recv(65_536)):
        data += part
    return data


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.3)
    try:
        return connection.recv(1) == b"?"
    except TimeoutError:
        return True


def test_a_cut_holds_bytes_and_new_connections_until_it_is_healed(network: DrillNetwork, echo: int) -> None:
    with ReservedPort() as port:
        network.relay_to_broker(1, port.number, echo)
        with connect(port.number) as before:
            before.sendall(b"one")
            assert received(before, 3) == b"one"
            network.cut(1)
            assert network.is_cut(1)
            before.sendall(b"two")
            with connect(port.number) as during:
                during.sendall(b"three")
                assert is_silent(before) and is_silent(during)
                network.heal(1)
                assert received(before, 3) == b"two"
                assert received(during, 5) == b"three"


def test_a_cut_does_not_touch_others_nor_a_broker_by_itself(network: DrillNetwork, echo: int) -> None:
    """The process of the test plays broker 2: its connection to itself continues, those to others do not."""
    network.set_process(2, os.getpid())
    with ReservedPort() as first, ReservedPort() as second, ReservedPort() as zookeeper:
        network.relay_to_broker(1, first.number, echo)
        network.relay_to_broker(2, second.number, echo)
        network.relay_to_zookeeper(1, zookeeper.number, echo)
        network.cut(2)
        with connect(first.number) as to_other, connect(second.number) as to_self, connect(zookeeper.number) as of_one:
            for each in (to_other, to_self, of_one):
                each.sendall(b"x")
            assert received(to_self, 1) == b"x"
            assert received(of_one, 1) == b"x"
            assert is_silent(to_other)
            network.heal(2)
            assert received(to_other, 1) == b"x"


def test_earlier_connections_of_a_process_are_its_brokers_too(network: DrillNetwork, echo: int) -> None:
    with ReservedPort() as first:
        network.relay_to_broker(1, first.number, echo)
        with connect(first.number) as to_other:
            to_other.sendall(b"x")
            assert received(to_other, 1) == b"x"
            network.set_process(2, os.getpid())
            network.cut(2)
            to_other.sendall(b"y")
            assert is_silent(to_other)
            network.heal(2)
            assert received(to_other, 1) == b"y"


def test_large_amounts_pass_and_ends_are_passed_on(network: DrillNetwork, echo: int) -> None:
    data = os.urandom(8 * 1024 * 1024)
    with ReservedPort() as port:
        network.relay_to_broker(1, port.number, echo)
        with connect(port.number) as connection:
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            assert received(connection, len(data)) == data
            sender.join()


def test_a_broker_that_does_not_listen_closes_the_connection(network: DrillNetwork) -> None:
    with ReservedPort() as port, ReservedPort() as nobody:
        network.relay_to_broker(1, port.number, nobody.number)
        with connect(port.number) as connection:
            connection.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_the_delay_of_a_disk_can_change_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "delay"
    write_delay(path, 0)
    files = SlowFiles(SharedDelay(path).wait)
    handle = files.open(str(tmp_path / "log"), create=True)
    handle.pwrite([b"a"], 0)
    write_delay(path, 0.2)
    assert read_delay(path) == 0.2
    for access in (lambda: handle.pwrite([b"b"], 1), lambda: handle.pread(2, 0), handle.fsync):
        began = time.monotonic()
        access()
        assert time.monotonic() - began >= 0.2
    write_delay(path, 0)
    assert handle.pread(2, 0) == b"ab"
    handle.close()


def test_only_a_cluster_with_a_drill_can_be_drilled() -> None:
    with pytest.raises(ValueError, match="drill cannot be True with zookeeper"):
        LocalCluster(zookeeper="127.0.0.1:1", drill=True)
    from klamm.dashboard.fault_drill import FaultDrill

    with pytest.raises(KlammError, match="drill=True"):
        FaultDrill(LocalCluster())
