"""Clients never use up the file descriptors that a broker needs itself, and silent ones do not keep others out."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from klamm.model import SecurityProtocol
from klamm.network import SocketServerConfig
from klamm.network.connection_quotas import REPLACED_AT_ONCE, ConnectionLimits, ConnectionQuotas, DescriptorRoom
from tests.unit.network.harness import Server, both_loops, frame, heartbeat, heartbeat_api, settled, until
from tests.unit.network.secured_harness import SecuredServer

Run = Callable[[Any], None]


def with_room(max_open: int, for_brokers: int = 0) -> SocketServerConfig:
    return SocketServerConfig(descriptor_room=DescriptorRoom(max_open, for_brokers))


def test_brokers_have_places_that_clients_cannot_take() -> None:
    quotas = ConnectionQuotas(
        ConnectionLimits(),
        protected_listeners=("REPLICATION",),
        is_broker_address="10.0.0.1".__eq__,
        room=DescriptorRoom(2, 1),
    )
    found = []
    for _ in range(4):
        found.append(
            [quotas.may_open(*peer) for peer in (("C", "9.9.9.9"), ("C", "10.0.0.1"), ("REPLICATION", "9.9.9.9"))]
        )
        quotas.opened()
    assert found == [[True] * 3, [True] * 3, [False, True, True], [False] * 3]


@both_loops
def test_the_oldest_silent_connection_closes_in_favour_of_a_new_one(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with Server(heartbeat_api(), config=with_room(3)) as server:
            open_connections = server.network.acceptors[0].open
            busy = await server.client()
            busy.send(heartbeat(1))
            await busy.receive_heartbeat()
            silent = [await server.client() for _ in range(2)]
            await until(lambda: len(open_connections) == 3)
            for number in range(2, 6):
                client = await server.client()
                client.send(heartbeat(number))
                if number <= 3:
                    assert (await client.receive_heartbeat())[1] == number
                    assert await silent[number - 2].receive_end() == b""
                else:  # Everybody has sent a request.
                    assert await client.receive_end() == b""
            busy.send(heartbeat(9))
            assert (await busy.receive_heartbeat())[1] == 9
            await until(lambda: len(open_connections) == server.network.quotas.open_connections == 3)

    run(scenario())
    full = [r.getMessage() for r in caplog.records if "is full" in r.getMessage()]
    assert len(full) == 1 and "3 connections are open" in full[0]


@both_loops
def test_a_client_after_a_burst_of_silent_connections_is_answered(run: Run) -> None:
    """Those that were being opened, and those that were closing for them, used up the room: the client was refused."""

    async def scenario() -> None:
        async with Server(heartbeat_api(), config=with_room(16)) as server:
            with contextlib.ExitStack() as held:
                for silent in (17, 20, 31, 40, 100):  # The loop does not accept meanwhile.
                    for _ in range(silent):
                        held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                    client = await server.client()
                    client.send(heartbeat(silent))
                    assert (await client.receive_heartbeat())[1] == silent
                    await client.close()

    run(scenario())


@both_loops
def test_connections_that_are_being_opened_count(run: Run) -> None:
    """Opening takes some turns of the loop, and each turn accepts more of those that have come at once."""

    async def scenario() -> None:
        async with Server(heartbeat_api(), config=with_room(8)) as server:
            with contextlib.ExitStack() as held:
                loop = asyncio.get_running_loop()
                first_bytes: list[bytes] = []
                for number in range(100):  # The loop does not accept meanwhile.
                    client = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                    client.sendall(frame(heartbeat(number), 1, number))
                    client.setblocking(False)
                    loop.add_reader(client, note_first, client, first_bytes)
                await until(lambda: len(first_bytes) == 100)
                assert sum(map(bool, first_bytes)) == 8, "each of the others was closed without an answer"
                quotas, accepted = server.network.quotas, server.network.acceptors[0].open
                await until(lambda: len(accepted) == quotas.open_connections == 8)

    def note_first(client: socket.socket, first_bytes: list[bytes]) -> None:
        asyncio.get_running_loop().remove_reader(client)
        try:
            first_bytes.append(client.recv(100))
        except ConnectionResetError:
            first_bytes.append(b"")

    run(scenario())


@both_loops
@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_a_client_behind_many_silent_ones_is_served(run: Run, has_tls: bool) -> None:
    """All come at once: none of those before it can be replaced yet when its turn comes."""

    async def scenario() -> None:
        config = with_room(8)
        plain, secured = Server(heartbeat_api(), config=config), SecuredServer(SecurityProtocol.SSL, config=config)
        async with secured if has_tls else plain as server:
            most = 0
            with contextlib.ExitStack() as held:
                for _ in range(60):  # The loop does not accept meanwhile.
                    held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                client = await (secured.tls_client() if has_tls else server.client())
                client.send(heartbeat(1))
                answer = asyncio.ensure_future(client.receive_heartbeat())
                while not answer.done():
                    most = max(most, server.network.quotas.open_connections)
                    await asyncio.sleep(0)
                assert (await answer)[1] == 1
                assert most <= 8 + REPLACED_AT_ONCE
                await until(lambda: server.network.quotas.open_connections == 8)
                assert not server.network.quotas.is_replacing

    run(scenario())


@both_loops
def test_connections_that_wait_for_admission_count(run: Run) -> None:
    async def scenario() -> None:
        config = SocketServerConfig(
            descriptor_room=DescriptorRoom(2, 0), connection_limits=ConnectionLimits(max_connections=1)
        )
        async with Server(heartbeat_api(), config=config) as server:
            admitted = await server.client()
            admitted.send(heartbeat(1))
            await admitted.receive_heartbeat()
            waiting = await server.client()
            await until(lambda: server.network.quotas.open_connections == 2)
            newer = await server.client()
            assert await waiting.receive_end() == b""
            await admitted.close()
            newer.send(heartbeat(2))
            assert (await newer.receive_heartbeat())[1] == 2

    run(scenario())


@both_loops
def test_a_broker_connects_although_clients_hold_every_place(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), config=with_room(1, 1), broker_addresses=("127.0.0.2",)) as server:
            client = await server.client()
            client.send(heartbeat(1))
            await client.receive_heartbeat()
            refused = await server.client()
            assert await refused.receive_end() == b""
            broker = await server.client(address="127.0.0.2")
            broker.send(heartbeat(2))
            assert (await broker.receive_heartbeat())[1] == 2

    run(scenario())


@both_loops
def test_a_client_does_not_replace_a_broker_that_has_just_connected(run: Run) -> None:
    """Many clients at once would do so before its first request arrives, again and again."""

    async def scenario() -> None:
        async with Server(heartbeat_api(), config=with_room(1, 1), broker_addresses=("127.0.0.2",)) as server:
            broker = await server.client(address="127.0.0.2")
            await until(lambda: server.network.quotas.open_connections == 1)
            refused = await server.client()
            assert await refused.receive_end() == b""
            second = await server.client(address="127.0.0.2")
            await until(lambda: server.network.quotas.open_connections == 2)
            third = await server.client(address="127.0.0.2")
            assert await broker.receive_end() == b"", "brokers replace each other"
            for number, connection in enumerate((second, third)):
                connection.send(heartbeat(number))
                assert (await connection.receive_heartbeat())[1] == number

    run(scenario())


@both_loops
def test_a_broker_replaces_a_silent_client_before_another_broker(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), config=with_room(2, 0), broker_addresses=("127.0.0.2",)) as server:
            first = await server.client(address="127.0.0.2")
            await until(lambda: server.network.quotas.open_connections == 1)
            client = await server.client()
            await until(lambda: server.network.quotas.open_connections == 2)
            second = await server.client(address="127.0.0.2")
            assert await client.receive_end() == b""
            for number, connection in enumerate((first, second)):
                connection.send(heartbeat(number))
                assert (await connection.receive_heartbeat())[1] == number

    run(scenario())


@both_loops
def test_peers_that_never_begin_the_tls_handshake_make_room(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL, config=with_room(2)) as server:
            silent = [await server.client() for _ in range(2)]
            await until(lambda: server.network.quotas.open_connections == 2)
            client = await server.tls_client()
            assert await silent[0].receive_end() == b""
            client.send(heartbeat(1))
            assert (await client.receive_heartbeat())[1] == 1

    run(scenario())


@both_loops
def test_the_sockets_of_peers_that_are_replaced_at_once_are_closed(run: Run) -> None:
    """Several are accepted in one turn: most are replaced before their handshake begins."""

    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL, config=with_room(1)) as server:
            with contextlib.ExitStack() as held:
                address = ("127.0.0.1", server.port)
                peers = [held.enter_context(socket.create_connection(address)) for _ in range(12)]
                ended: set[int] = set()
                for peer in peers:
                    peer.setblocking(False)
                    asyncio.get_running_loop().add_reader(peer, note_end, peer, ended)
                await until(lambda: len(ended) == 11)
                await until(lambda: server.network.quotas.open_connections == 1)

    def note_end(peer: socket.socket, ended: set[int]) -> None:
        asyncio.get_running_loop().remove_reader(peer)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
        ended.add(peer.fileno())

    gc.disable()  # It would close them, too, much later.
    try:
        run(scenario())
    finally:
        gc.enable()


@both_loops
def test_a_connection_that_was_replaced_is_not_admitted_before_its_end(run: Run) -> None:
    """Its TLS handshake would fail, and count as a failed authentication."""

    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL, limits=ConnectionLimits(max_connections=1)) as server:
            admitted = await server.tls_client()
            admitted.send(heartbeat(1))
            await admitted.receive_heartbeat()
            acceptor = server.network.acceptors[0]
            (first,) = acceptor.open
            waiting = await server.client()
            await until(lambda: len(acceptor.open) == 2)
            asyncio.get_running_loop().call_soon(first.connection_lost, None)
            assert acceptor._evictions.of_silent(False)
            assert await waiting.receive_end() == b""
            await until(lambda: not acceptor.open)
            await settled()
            assert server.security.counts.failed == 0

    run(scenario())
