"""Connections over real sockets: limits, idleness, slow readers, memory, start and stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from klamm.network import ConnectionLimits, RequestContext, SocketServerConfig, request_channel
from klamm.network.connection import MAX_IN_FLIGHT, Connection
from klamm.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.unit.network.harness import (
    Answer,
    ManualClock,
    RawClient,
    ScriptedApi,
    Server,
    both_loops,
    echo,
    heartbeat,
    heartbeat_api,
    muted,
    numbers,
    settled,
    until,
)

Run = Callable[[Any], None]
PAYLOAD = bytes(1 << 20)


def limited(**limits: Any) -> SocketServerConfig:
    return SocketServerConfig(connection_limits=ConnectionLimits(**limits))


async def ask(client: RawClient, number: int) -> int:
    client.send(heartbeat(number))
    return (await client.receive_heartbeat())[1]


@both_loops
def test_connections_per_address_are_limited(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), config=limited(max_connections_per_ip=2)) as server:
            first, second = await server.client(), await server.client()
            assert [await ask(first, 1), await ask(second, 2)] == [1, 2]
            third = await server.client()
            assert await third.receive_end() == b""
            await first.close()
            await until(lambda: server.connection_count == 1)
            fourth = await server.client()
            assert await ask(fourth, 4) == 4
            for client in (second, third, fourth):
                await client.close()

    run(scenario())


def test_an_override_for_an_address_comes_first() -> None:
    async def scenario() -> None:
        config = limited(max_connections_per_ip=0, max_connections_per_ip_overrides={"127.0.0.1": 1})
        async with Server(heartbeat_api(), config=config) as server:
            first = await server.client()
            assert await ask(first, 1) == 1
            second = await server.client()
            assert await second.receive_end() == b""
            await first.close()
            await second.close()

    asyncio.run(scenario())


@both_loops
def test_above_max_connections_new_ones_wait_for_a_place(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), config=limited(max_connections=1)) as server:
            first, second = await server.client(), await server.client()
            assert await ask(first, 1) == 1
            second.send(heartbeat(2))
            await settled()
            assert server.connection_count == 1
            await until(lambda: muted(server) == {"not-admitted": 1})
            await first.close()
            assert await second.receive_heartbeat() == (0, 2)
            assert muted(server) == {}
            third = await server.client()
            server.network.update_limits(ConnectionLimits(max_connections=2))
            assert await ask(third, 3) == 3
            blocked = server.registry.find(
                "kafka.network", "Acceptor", "AcceptorBlockedPercent", {"listener": "PLAINTEXT"}
            )
            assert blocked is not None and blocked.count_ns > 0  # type: ignore[union-attr]
            await second.close()
            await third.close()

    run(scenario())


@both_loops
def test_brokers_do_not_wait_behind_clients(run: Run) -> None:
    """Also if as many clients wait as may wait."""

    async def scenario() -> None:
        config = SocketServerConfig(connection_limits=ConnectionLimits(max_connections=1), socket_listen_backlog_size=1)
        async with Server(heartbeat_api(), config=config, broker_addresses=("127.0.0.2",)) as server:
            client, waiting = await server.client(), await server.client()
            assert await ask(client, 1) == 1
            await until(lambda: muted(server) == {"not-admitted": 1})
            broker = await server.client(address="127.0.0.2")
            assert await ask(broker, 2) == 2
            assert muted(server) == {"not-admitted": 1}
            await broker.close()
            await until(lambda: server.connection_count == 1)
            assert muted(server) == {"not-admitted": 1}
            await client.close()
            assert await ask(waiting, 3) == 3
            await waiting.close()

    run(scenario())


def test_brokers_that_connected_before_the_start_do_not_wait_behind_clients() -> None:
    async def scenario() -> None:
        config = limited(max_connections=1)
        async with Server(heartbeat_api(), config=config, started=False, broker_addresses=("127.0.0.2",)) as server:
            clients = [await server.client() for _ in range(2)]
            broker = await server.client(address="127.0.0.2")
            await settled()
            server.network.start_processing()
            assert await ask(broker, 1) == 1
            for each in (*clients, broker):
                await each.close()

    asyncio.run(scenario())


def test_no_more_than_the_backlog_waits() -> None:
    async def scenario() -> None:
        config = SocketServerConfig(connection_limits=ConnectionLimits(max_connections=1), socket_listen_backlog_size=2)
        async with Server(heartbeat_api(), config=config) as server:
            first = await server.client()
            assert await ask(first, 1) == 1
            waiting = [await server.client() for _ in range(2)]
            await settled()
            refused = await server.client()
            assert await refused.receive_end() == b""
            for client in (first, *waiting, refused):
                await client.close()

    asyncio.run(scenario())


@both_loops
def test_clients_that_left_do_not_take_the_places_of_those_that_wait(run: Run) -> None:
    async def scenario() -> None:
        config = SocketServerConfig(connection_limits=ConnectionLimits(max_connections=1), socket_listen_backlog_size=3)
        async with Server(heartbeat_api(), config=config) as server:
            first = await server.client()
            assert await ask(first, 1) == 1
            left = [await server.client() for _ in range(2)]
            stays = await server.client()
            await until(lambda: muted(server) == {"not-admitted": 3})
            left[0].send(heartbeat(2))
            for client in left:
                await client.close()
            late = [await server.client() for _ in range(2)]
            await until(lambda: muted(server) == {"not-admitted": 3})
            await first.close()
            assert await ask(stays, 3) == 3
            await stays.close()
            for number, client in enumerate(late):
                assert await ask(client, number) == number
                await client.close()

    run(scenario())


@both_loops
def test_each_line_is_searched_for_those_that_left(run: Run) -> None:
    async def scenario() -> None:
        config = SocketServerConfig(socket_listen_backlog_size=1)
        async with Server(heartbeat_api(), config=config, started=False, broker_addresses=("127.0.0.2",)) as server:
            addresses = ("127.0.0.1", "127.0.0.2")
            left = [await server.client(address=address) for address in addresses]
            await until(lambda: muted(server) == {"not-admitted": 2})
            for client in left:
                await client.close()
            late = [await server.client(address=address) for address in addresses]
            accepted = server.network.acceptors[0].open
            await until(lambda: max(c.index for c in accepted) == 3 and len(accepted) == 2)
            server.network.start_processing()
            for number, client in enumerate(late):
                assert await ask(client, number) == number
                await client.close()

    run(scenario())


@both_loops
def test_a_listener_limit_and_the_protected_listener(run: Run) -> None:
    async def scenario() -> None:
        config = limited(max_connections=2, listener_max_connections={"REPLICATION": 2})
        listeners = ("CLIENTS", "REPLICATION")
        async with Server(
            heartbeat_api(), config=config, listeners=listeners, inter_broker_listener="REPLICATION"
        ) as server:
            old, busy = await server.client("CLIENTS"), await server.client("CLIENTS")
            assert [await ask(old, 1), await ask(busy, 2)] == [1, 2]
            broker = await server.client("REPLICATION")
            assert await ask(broker, 3) == 3
            assert await old.receive_end() == b""
            assert await ask(busy, 4) == 4
            second = await server.client("REPLICATION")
            assert await ask(second, 5) == 5
            assert await busy.receive_end() == b""
            third = await server.client("REPLICATION")
            third.send(heartbeat(6))
            await settled()
            assert server.connection_count == 2
            await second.close()
            assert await third.receive_heartbeat() == (0, 6)
            for client in (old, busy, broker, third):
                await client.close()

    run(scenario())


@both_loops
def test_an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not(run: Run) -> None:
    async def scenario() -> None:
        delayed: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        api = heartbeat_api(lambda _, r: delayed if r.generation_id == 7 else echo(r))
        clock = ManualClock()
        async with Server(api, config=SocketServerConfig(connections_max_idle_ms=60), clock=clock) as server:
            waiting, idle = await server.client(), await server.client()
            waiting.send(heartbeat(7))
            assert await ask(idle, 1) == 1
            await until(lambda: 7 in numbers(api))
            clock.seconds += 1
            assert await idle.receive_end() == b""
            again = await server.client()
            await until(lambda: server.connection_count == 2)
            clock.seconds += 1
            assert await again.receive_end() == b""
            delayed.set_result(HeartbeatResponse(error_code=7))
            assert await waiting.receive_heartbeat() == (0, 7)
            clock.seconds += 1
            assert await waiting.receive_end() == b""
            assert server.value("SocketServer", "ExpiredConnectionsKilledCount") == 3
            for client in (waiting, idle, again):
                await client.close()

    run(scenario())


def fetch_api() -> ScriptedApi:
    """Answers with one MiB, the same object each time."""

    def script(_: RequestContext, request: FetchRequest) -> Answer:
        partition = PartitionData(partition_index=0, error_code=0, high_watermark=0, records=PAYLOAD)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])

    return ScriptedApi(FetchRequest, FetchResponse, script, metric_name=lambda r: "FetchConsumer")


def fetch() -> FetchRequest:
    return FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=[])


@both_loops
def test_a_client_that_does_not_read_is_not_served_further(run: Run) -> None:
    async def scenario() -> None:
        api = fetch_api()
        beat = heartbeat_api()
        async with Server(api, beat, config=SocketServerConfig(socket_send_buffer_bytes=32768)) as server:
            slow = await slow_client(server)
            reader, writer = slow.reader, slow.writer
            for _ in range(20):
                slow.send(fetch(), 4)
            await until(lambda: api.asked)
            other = await server.client()
            for number in range(50):
                assert await ask(other, number) == number
            assert len(api.asked) <= 2
            await until(lambda: muted(server) == {"unread-responses": 1})
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for number in range(20):
                size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
                assert correlation_id == number and size > len(PAYLOAD)
                await reader.readexactly(size - 4)
            assert len(api.asked) == 20
            assert server.value("RequestMetrics", "TotalTimeMs", request="FetchConsumer") == 20
            await slow.close()
            await other.close()

    run(scenario())


async def slow_client(server: Server) -> RawClient:
    """A client that does not read, with little room in the system's buffers."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return RawClient(reader, writer)


@both_loops
def test_clients_that_do_not_read_hold_a_bounded_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asks for as much as it may have, several times at once; one that reads is served all the same."""
    limit, least, clients = 8 << 20, 100_000, 15
    monkeypatch.setattr(request_channel, "UNSENT_RESPONSE_BYTES", limit)
    monkeypatch.setattr(request_channel, "LEAST_RESPONSE_BYTES", least)
    sizes: list[int] = []

    def script(ctx: RequestContext, request: FetchRequest) -> Answer:
        sizes.append(min(ctx.response_room(), 5 << 20))
        partition = PartitionData(partition_index=0, error_code=0, high_watermark=0, records=bytes(sizes[-1]))
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])

    def is_asked(times: int) -> bool:
        return len(sizes) >= times

    async def scenario() -> None:
        api = ScriptedApi(FetchRequest, FetchResponse, script)
        async with Server(api, config=SocketServerConfig(socket_send_buffer_bytes=16384)) as server:
            channel = server.network.channel
            slow = [await slow_client(server) for _ in range(clients)]
            for number, client in enumerate(slow, 1):
                for _ in range(3):
                    client.send(fetch(), 4)
                await until(partial(is_asked, number))
                assert channel.unsent_bytes <= limit + number * (least + 1000)
            assert sizes[0] == 4 << 20 and sizes[-1] == least
            reading = await server.client()
            for _ in range(3):
                reading.send(fetch(), 4)
                assert len(await reading.receive()) > least
            for client in slow:
                client.writer.transport.abort()
            await until(lambda: channel.unsent_bytes == 0)
            reading.send(fetch(), 4)
            assert len(await reading.receive()) > 4 << 20
            await until(lambda: channel.unsent_bytes == 0)
            await reading.close()

    run(scenario())


@both_loops
def test_bytes_that_were_read_for_a_response_count_until_it_is_sent(run: Run) -> None:
    async def scenario() -> None:
        delayed: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()

        def script(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
            if request.generation_id == 1:
                ctx.reserve_response(5000)
                return delayed
            ctx.reserve_response(7000)
            raise ValueError("a bug")

        async with Server(heartbeat_api(script)) as server:
            client = await server.client()
            client.send(heartbeat(1))
            await until(lambda: server.network.channel.unsent_bytes == 5000)
            delayed.set_result(HeartbeatResponse(error_code=1))
            assert await client.receive_heartbeat() == (0, 1)
            assert server.network.channel.unsent_bytes == 0
            client.send(heartbeat(2))
            assert await client.receive_end() == b""
            assert server.network.channel.unsent_bytes == 0
            await client.close()

    run(scenario())


@both_loops
def test_large_requests_and_responses_pass_whole(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api(lambda _, r: HeartbeatResponse(error_code=len(r.group_id) % 30_000))
        async with Server(api, fetch_api()) as server:
            client = await server.client()
            client.send(HeartbeatRequest(group_id="x" * 32_000, generation_id=1, member_id="y" * 32_000))
            assert await client.receive_heartbeat() == (0, 2_000)
            client.send(fetch(), 4)
            assert PAYLOAD in await client.receive()
            await client.close()

    run(scenario())


@both_loops
def test_queued_request_bytes_are_limited(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        config = SocketServerConfig(queued_max_request_bytes=100)
        async with Server(api, config=config, started=False) as server:
            server.accept_without_handlers()
            clients = [await server.client() for _ in range(5)]
            for number, client in enumerate(clients):
                client.send(heartbeat(number))
                client.send(heartbeat(number))
            pool = server.network.channel.memory_pool
            await until(lambda: len(pool.waiting) == 3)
            assert pool.used_bytes == 4 * 26
            assert muted(server) == {"memory": 3}
            assert server.value("SocketServer", "MemoryPoolUsed") == pool.used_bytes
            assert server.value("SocketServer", "MemoryPoolAvailable") == 0
            server.network.handler_pool.start()
            for number, client in enumerate(clients):
                assert [await client.receive_heartbeat() for _ in range(2)] == [(0, number), (1, number)]
                await client.close()
            assert pool.used_bytes == 0 and muted(server) == {}

    run(scenario())


@both_loops
def test_a_client_that_connects_before_the_start_is_answered_after_it(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api(), started=False) as server:
            assert server.network.endpoints[0].port == server.port > 0
            early = await server.client()
            early.send(heartbeat(1))
            await settled()
            assert server.network.channel.in_flight == 0
            server.network.start_processing()
            assert await early.receive_heartbeat() == (0, 1)
            await early.close()

    run(scenario())


@both_loops
def test_shutdown_answers_requests_in_flight(run: Run) -> None:
    async def scenario() -> None:
        delayed: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        api = heartbeat_api(lambda *_: delayed)
        async with Server(api) as server:
            client = await server.client()
            client.send(heartbeat(1))
            await until(lambda: api.asked)
            stopping = asyncio.ensure_future(server.network.shutdown(timeout_ms=60_000))
            await settled()
            assert muted(server) == {"closing": 1}
            with pytest.raises(ConnectionError):
                await server.client()
            client.send(heartbeat(2))
            delayed.set_result(HeartbeatResponse(error_code=1))
            await stopping
            assert await client.receive_heartbeat() == (0, 1)
            assert await client.receive_end() == b""
            assert numbers(api) == [1]
            await client.close()

    run(scenario())


@both_loops
def test_shutdown_does_not_wait_for_ever(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        never: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        api = heartbeat_api(lambda *_: never)
        async with Server(api) as server:
            client = await server.client()
            client.send(heartbeat(1))
            await until(lambda: api.asked)
            await server.network.shutdown(timeout_ms=20)
            assert await client.receive_end() == b""
            never.set_result(HeartbeatResponse(error_code=0))
            await settled()
            assert server.network.channel.in_flight == 0
            await client.close()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert "1 requests were not answered within 20 ms" in caplog.text


@both_loops
def test_the_pool_is_resized_under_load(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        async with Server(api) as server:
            pool = server.network.handler_pool
            clients = [await server.client() for _ in range(4)]

            async def load(client: RawClient, base: int) -> None:
                for start in range(0, 400, MAX_IN_FLIGHT):
                    for number in range(start, start + MAX_IN_FLIGHT):
                        client.send(heartbeat(base + number))
                    for number in range(start, start + MAX_IN_FLIGHT):
                        assert await client.receive_heartbeat() == (number, base + number)

            async def resize() -> None:
                for size in (1, 16, 3, 64, 1, 8) * 10:
                    pool.resize(size)
                    await asyncio.sleep(0)

            await asyncio.gather(resize(), *(load(c, 1000 * i) for i, c in enumerate(clients)))
            assert sorted(numbers(api)) == sorted(1000 * i + n for i in range(4) for n in range(400))
            assert pool.size == 8
            with pytest.raises(ValueError, match="at least one handler"):
                pool.resize(0)
            for client in clients:
                await client.close()

    run(scenario())


@both_loops
def test_closed_connections_are_forgotten(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            gone: list[weakref.ref[Connection]] = []
            processor = server.network.acceptors[0].processor
            for number in range(200):
                client = await server.client()
                assert await ask(client, number) == number
                gone += [weakref.ref(c) for c in processor.connections]
                await client.close()
                await until(lambda: not processor.connections)
            gc.collect()
            assert len([ref for ref in gone if ref() is not None]) <= 70
            assert server.network.quotas.total == 0

    run(scenario())


@both_loops
def test_connections_are_numbered_in_the_order_of_acceptance_over_all_listeners(run: Run) -> None:
    async def scenario() -> None:
        orders: list[int] = []

        def record(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
            orders.append(ctx.channel.order)
            return echo(request)

        async with Server(heartbeat_api(record), listeners=("PLAINTEXT", "OTHER")) as server:
            first = await server.client()
            await ask(first, 1)
            second = await server.client("OTHER")
            await ask(second, 2)
            third = await server.client()
            await ask(third, 3)
            await ask(first, 4)
            assert orders == [1, 2, 3, 1]
            for client in (first, second, third):
                await client.close()

    run(scenario())


@both_loops
def test_accepted_connections_inherit_the_options_of_their_listener(run: Run) -> None:
    async def scenario() -> None:
        config = SocketServerConfig(socket_send_buffer_bytes=32768, socket_receive_buffer_bytes=65536)
        async with Server(heartbeat_api(), config=config) as server:
            client = await server.client()
            assert await ask(client, 1) == 1
            (connection,) = server.network.acceptors[0].processor.connections
            assert connection.transport is not None
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            sizes = {accepted.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)}
            assert sizes == {2 * 32768, 2 * 65536}, "Linux doubles them"
            await client.close()

    run(scenario())
