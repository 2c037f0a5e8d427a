"""Connections that come in numbers do not keep the loop from others, and those that were left cost little."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from klamm.sockets import accept_loop as accept_loop_module
from klamm.sockets.accept_loop import ACCEPTED_AT_ONCE, OPENED_AT_ONCE, AcceptLoop
from tests.unit.network.harness import Server, both_loops, frame, heartbeat, heartbeat_api, settled, until

Run = Callable[[Any], None]

LEFT = 2 * ACCEPTED_AT_ONCE + 10
COMING = 4 * OPENED_AT_ONCE + 5


@both_loops
def test_nothing_is_made_for_a_connection_whose_peer_has_left(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            acceptor = server.network.acceptors[0]
            for _ in range(LEFT):
                socket.create_connection(("127.0.0.1", acceptor.port)).close()  # The loop has not accepted it yet.
            client = await server.client()
            client.send(heartbeat(7))
            assert (await client.receive_heartbeat())[1] == 7
            assert [connection.index for connection in acceptor.open] == [0]

    run(scenario())


@both_loops
def test_a_request_that_was_sent_before_its_peer_left_is_handled(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        async with Server(api) as server:
            with socket.create_connection(("127.0.0.1", server.network.acceptors[0].port)) as client:
                client.sendall(frame(heartbeat(7), 1))
            await until(lambda: len(api.asked) == 1)

    run(scenario())


@both_loops
@pytest.mark.parametrize("turns", range(4))
def test_a_connection_that_is_being_opened_ends_with_its_server(run: Run, turns: int) -> None:
    """Neither its place in the quotas nor its socket is left behind."""

    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            acceptor = server.network.acceptors[0]
            with socket.create_server(("127.0.0.1", 0)) as listening:
                client = socket.create_connection(listening.getsockname())
                acceptor._open(accepted_by(listening))
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.network.shutdown(timeout_ms=0)
            await settled()
            quotas = server.network.quotas
            assert not acceptor.open and quotas.total == quotas.open_connections == 0
            with client:
                client.settimeout(10)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""

    run(scenario())


def test_a_connection_that_cannot_be_opened_keeps_no_place() -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            acceptor, quotas = server.network.acceptors[0], server.network.quotas
            with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
                client.connect(listening.getsockname())
                broken = accepted_by(listening)
                broken.close()
                acceptor._open(broken)
            assert quotas.open_connections == 1
            await until(lambda: not acceptor._opening)
            assert not acceptor.open and quotas.open_connections == 0

    asyncio.run(scenario())


def accepted_by(listening: socket.socket) -> socket.socket:
    accepted, _ = listening.accept()
    accepted.setblocking(False)
    return accepted


@both_loops
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_listener_rests_while_there_are_no_descriptors(
    run: Run, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept_loop_module, "PAUSE_S", 0.05)
    attempts = 0

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            nonlocal attempts
            attempts += 1
            if attempts < 3:
                raise OSError(number, os.strerror(number))
            return super().accept()

    async def scenario() -> None:
        opened: list[socket.socket] = []
        accept_loop = AcceptLoop(asyncio.get_running_loop(), opened.append, listener="OUT")
        listening = Exhausted()
        listening.setblocking(False)
        listening.bind(("127.0.0.1", 0))
        accept_loop.listen(listening, 5)
        with socket.create_connection(listening.getsockname()):
            await until(lambda: len(opened) == 1)
        accept_loop.close()
        opened[0].close()

    run(scenario())
    pauses = [record for record in caplog.records if "listener OUT stops accepting connections" in record.message]
    assert len(pauses) == 2, "one line per pause"


@pytest.mark.parametrize("at_once", [OPENED_AT_ONCE, 4])
@both_loops
def test_a_burst_of_connections_is_opened_over_many_turns(run: Run, at_once: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        turns: Counter[int] = Counter()
        opened: list[socket.socket] = []

        def count_turn() -> None:
            nonlocal turn
            turn += 1
            if len(opened) < COMING:
                loop.call_soon(count_turn)

        def open_socket(sock: socket.socket) -> None:
            opened.append(sock)
            turns[turn] += 1

        accept_loop = AcceptLoop(loop, open_socket, listener="OUT", opened_at_once=at_once)
        listening = socket.socket()
        listening.setblocking(False)
        listening.bind(("127.0.0.1", 0))
        accept_loop.listen(listening, COMING)
        clients = [socket.create_connection(listening.getsockname()) for _ in range(COMING)]
        count_turn()
        await until(lambda: len(opened) == COMING)
        accept_loop.close()
        for sock in [*clients, *opened]:
            sock.close()
        assert max(turns.values()) == at_once

    run(scenario())


@both_loops
def test_connections_are_numbered_in_the_order_in_which_their_clients_connected(run: Run) -> None:
    """The protection of old clients depends on it (decision 0031), also if many connect before the loop accepts one."""

    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            acceptor = server.network.acceptors[0]
            clients = [socket.create_connection(("127.0.0.1", acceptor.port)) for _ in range(COMING)]
            await until(lambda: len(acceptor.open) == COMING)
            orders = {connection.context.client_port: connection.context.order for connection in acceptor.open}
            in_order_of_connecting = [orders[client.getsockname()[1]] for client in clients]
            for client in clients:
                client.close()
            assert in_order_of_connecting == sorted(set(in_order_of_connecting))

    run(scenario())
