"""Clients that try to freeze the loop, to starve others or to fill the memory through the network layer.

The server runs on the test's own loop: if a request is answered while another is under way, the loop turns. Bounds of
memory hold over SASL_SSL too, where the transport decrypts and encrypts in between.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from klamm.config import KafkaConfig
from klamm.config.repository import usable, validate_broker_config
from klamm.errors import ConfigError
from klamm.model import EndPoint, SecurityProtocol
from klamm.network import Plane, RequestContext, SocketServerConfig
from klamm.network.connection import MAX_IN_FLIGHT
from klamm.network.hoard import Hoard
from klamm.protocol import runtime
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from klamm.protocol.wire import encode_bytes
from klamm.security.listener_security import ListenerSecurity
from klamm.server.settings import socket_server
from tests.unit.network.harness import (
    Answer,
    ManualClock,
    RawClient,
    ScriptedApi,
    Server,
    echo,
    frame,
    heartbeat,
    heartbeat_api,
    numbers,
    settled,
    until,
)
from tests.unit.network.secured_harness import SecuredServer, plain_and_secured


def metadata_api(script: Callable[[RequestContext, MetadataRequest], Any] | None = None) -> ScriptedApi:
    return ScriptedApi(MetadataRequest, MetadataResponse, script or (lambda _, r: answer()), is_read=True)


def answer(brokers: int = 0) -> MetadataResponse:
    nodes = [MetadataResponseBroker(node_id=n, host="h", port=1, rack=None) for n in range(brokers)]
    return MetadataResponse(brokers=nodes, cluster_id=None, controller_id=0, topics=())


def large_metadata(topics: int) -> bytes:
    """A Metadata v9 frame with this many one-letter topics, built without as many objects."""
    head = struct.pack(">hhih", MetadataRequest.KEY, 9, 0, -1) + b"\0" + runtime.uvarint(topics + 1)
    tail = encode_bytes(MetadataRequest(topics=[]), 9)[1:]
    body = head + b"\x02t\0" * topics + tail
    return struct.pack(">i", len(body)) + body


async def ping(client: RawClient, number: int) -> None:
    client.send(heartbeat(number))
    assert (await client.receive_heartbeat())[1] == number


def test_a_header_with_millions_of_tagged_fields_is_refused_unread() -> None:
    async def scenario() -> None:
        async with Server(metadata_api(), heartbeat_api()) as server:
            client, other = await server.client(), await server.client()
            count = 5_000_000
            header = struct.pack(">hhih", MetadataRequest.KEY, 9, 0, -1) + runtime.uvarint(count)
            client.writer.write(struct.pack(">i", len(header) + 2 * count) + header + b"\x63\0" * count)
            assert await client.receive_end() == b""
            await ping(other, 1)

    uvloop.run(scenario())


def test_small_requests_are_answered_while_a_large_one_is_decoded() -> None:
    async def scenario() -> None:
        api = metadata_api()
        async with Server(api, heartbeat_api()) as server:
            client, other = await server.client(), await server.client()
            client.writer.write(large_metadata(300_000))
            await until(lambda: server.network.channel.in_flight)
            for number in range(5):
                await ping(other, number)
            assert not api.asked
            await client.receive()
            assert len(api.asked[0].topics) == 300_000

    uvloop.run(scenario())


def test_small_requests_are_answered_while_a_handler_and_an_encoder_work_in_slices() -> None:
    async def scenario() -> None:
        pauses = 0

        def script(_: RequestContext, __: MetadataRequest) -> Generator[None, None, MetadataResponse]:
            nonlocal pauses
            for _pause in range(1000):
                pauses += 1
                yield
            return answer(brokers=200_000)

        async with Server(metadata_api(script), heartbeat_api()) as server:
            client, other = await server.client(), await server.client()
            client.send(MetadataRequest(topics=[]), 9)
            await until(lambda: pauses == 1000)
            assert server.network.channel.in_flight == 1
            await ping(other, 1)
            assert server.value("RequestChannel", "ResponseQueueSize") == 0  # The response is not yet encoded.
            assert len(await client.receive()) > 200_000 * 10
            await ping(client, 2)

    uvloop.run(scenario())


def test_later_requests_of_a_connection_wait_for_its_large_one_and_keep_their_order() -> None:
    async def scenario() -> None:
        order: list[object] = []

        def metadata(_: RequestContext, request: MetadataRequest) -> Answer:
            order.append("metadata")
            return answer()

        def beat(_: RequestContext, request: HeartbeatRequest) -> Answer:
            order.append(request.generation_id)
            return echo(request)

        async with Server(metadata_api(metadata), heartbeat_api(beat)) as server:
            client = await server.client()
            client.send(heartbeat(1))
            client.writer.write(large_metadata(100_000))
            client.send(heartbeat(2))
            assert await client.receive_heartbeat() == (0, 1)
            await client.receive()
            assert await client.receive_heartbeat() == (1, 2)
            assert order == [1, "metadata", 2]

    uvloop.run(scenario())


def test_a_malformed_large_request_closes_its_connection_only() -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        async with Server(metadata_api(), api) as server:
            client, other = await server.client(), await server.client()
            whole = large_metadata(50_000)
            damaged = whole[:4] + whole[4:60_000] + b"\xff\xff\xff\xff\x7f" + whole[60_005:]
            client.writer.write(frame(heartbeat(1), 1) + damaged + frame(heartbeat(2), 1))
            assert await client.receive_heartbeat() == (0, 1)
            assert await client.receive_end() == b""
            await ping(other, 3)
            assert numbers(api) == [1, 3]

    uvloop.run(scenario())


def test_a_client_that_pipelines_delays_a_newcomer_by_one_request() -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        async with Server(api, config=SocketServerConfig(queued_max_requests=30), started=False) as server:
            server.accept_without_handlers()
            greedy = [await server.client() for _ in range(5)]
            for index, client in enumerate(greedy):
                for number in range(20):
                    client.send(heartbeat(100 * index + number))
            data = server.network.channel.data
            await until(lambda: data.size == 30 and data.waiting)
            newcomer = await server.client()
            newcomer.send(heartbeat(1000))
            waiting = len(data.waiting)
            await until(lambda: len(data.waiting) > waiting)
            server.network.handler_pool.start()
            assert await newcomer.receive_heartbeat() == (0, 1000)
            assert numbers(api).index(1000) <= len(greedy)
            for index, client in enumerate(greedy):
                assert [(await client.receive_heartbeat())[1] - 100 * index for _ in range(20)] == list(range(20))
            assert server.value("RequestChannel", "RequestQueueSize") == 0

    uvloop.run(scenario())


def test_a_flood_of_large_requests_does_not_delay_a_newcomer() -> None:
    """Forty connections, each with large requests under way: a newcomer is answered before any of them ends."""

    async def scenario() -> None:
        is_released = False

        def script(_: RequestContext, __: MetadataRequest) -> Generator[None, None, MetadataResponse]:
            while not is_released:
                yield
            return answer()

        async with Server(metadata_api(script), heartbeat_api()) as server:
            flood = [await server.client() for _ in range(40)]
            for client in flood:
                client.writer.write(large_metadata(6_000) * 2)
            await until(lambda: server.network.channel.in_flight >= 40)
            newcomer = await server.client()
            await ping(newcomer, 1)
            is_released = True
            for client in flood:
                await client.receive()
                await client.receive()

    uvloop.run(scenario())


def test_large_control_requests_do_not_delay_large_data_requests() -> None:
    """Anybody can send them, and they are refused only after they have been decoded."""

    async def scenario() -> None:
        is_released = False

        def control(_: RequestContext, __: ControlledShutdownRequest) -> Any:
            while not is_released:
                yield
            return ControlledShutdownResponse(error_code=0, remaining_partitions=[])

        def script(_: RequestContext, __: MetadataRequest) -> Generator[None, None, MetadataResponse]:
            for _pause in range(100):
                yield
            return answer()

        forged = ScriptedApi(ControlledShutdownRequest, ControlledShutdownResponse, control, plane=Plane.CONTROL)
        async with Server(metadata_api(script), forged, heartbeat_api()) as server:
            flood = [await server.client() for _ in range(10)]
            for client in flood:
                client.send(ControlledShutdownRequest(broker_id=1, broker_epoch=1), 2)
            await until(lambda: len(forged.asked) == 10)
            other = await server.client()
            other.writer.write(large_metadata(20_000))
            await other.receive()
            await ping(other, 1)
            is_released = True
            for client in flood:
                await client.receive()

    uvloop.run(scenario())


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_reads_of_a_closed_connection_are_dropped_and_changes_are_made(large: bool) -> None:
    async def scenario() -> None:
        reads, changes = metadata_api(), heartbeat_api()
        async with Server(reads, changes, started=False) as server:
            server.accept_without_handlers()
            clients = [await server.client() for _ in range(5)]
            for client in clients:
                for number in range(2 * MAX_IN_FLIGHT):
                    client.writer.write(large_metadata(20_000 if large else 1))
                    client.send(heartbeat(number))
            await until(lambda: server.network.channel.in_flight == 5 * MAX_IN_FLIGHT)
            for client in clients:
                if large:
                    # The server does not read, so a FIN may wait behind bytes that have no room. A reset does not.
                    peer = client.writer.get_extra_info("socket")
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.writer.transport.abort()
            left = list(server.network.acceptors[0].processor.connections)
            await until(lambda: all(c.is_closed or c.has_peer_closed() for c in left))
            server.network.handler_pool.start()
            await until(lambda: server.network.channel.in_flight == 0 and server.connection_count == 0)
            assert not reads.asked
            assert len(changes.asked) >= 5 * MAX_IN_FLIGHT // 2
            assert server.network.channel.unsent_bytes == 0
            assert server.value("RequestChannel", "RequestQueueSize") == 0

    uvloop.run(scenario())


def test_a_large_read_is_given_up_when_its_connection_ends() -> None:
    async def scenario() -> None:
        pauses = 0

        def script(_: RequestContext, __: MetadataRequest) -> Generator[None, None, MetadataResponse]:
            nonlocal pauses
            while True:
                pauses += 1
                yield

        async with Server(metadata_api(script), heartbeat_api()) as server:
            client, other = await server.client(), await server.client()
            client.send(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            await until(lambda: pauses > 10)
            client.writer.transport.abort()
            await until(lambda: server.network.channel.in_flight == 0)
            seen = pauses
            await ping(other, 1)
            await settled()
            assert pauses == seen

    uvloop.run(scenario())


def test_a_bug_in_a_sliced_handler_costs_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        def script(_: RequestContext, __: MetadataRequest) -> Generator[None, None, MetadataResponse]:
            yield
            raise KeyError("a bug")

        async with Server(metadata_api(script), heartbeat_api()) as server:
            client, other = await server.client(), await server.client()
            client.send(MetadataRequest(topics=[]), 9)
            assert await client.receive_end() == b""
            await ping(other, 1)

    uvloop.run(scenario())
    assert "Metadata v9 from 127.0.0.1" in caplog.text


def test_a_sliced_handler_may_return_a_future() -> None:
    async def scenario() -> None:
        future: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()

        def script(_: RequestContext, __: HeartbeatRequest) -> Any:
            def steps() -> Generator[None, None, asyncio.Future[HeartbeatResponse]]:
                yield
                return future

            return steps()

        api = heartbeat_api(script)
        async with Server(api) as server:
            client = await server.client()
            client.send(heartbeat(1))
            await until(lambda: api.asked)
            await settled()
            future.set_result(HeartbeatResponse(error_code=7))
            assert await client.receive_heartbeat() == (0, 7)

    uvloop.run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("settings", "backlog"), [({}, 1024), ({"socket.listen.backlog.size": "77"}, 77)], ids=["default", "configured"]
)
def test_thousands_may_connect_at_once(settings: dict[str, str], backlog: int, run: Any) -> None:
    """TCP_INFO of the listening socket has the length of the queue; a queue that is too short drops the SYN."""

    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    security = {"TLS": ListenerSecurity(SecurityProtocol.SSL)}
    config = socket_server(KafkaConfig({"broker.id": "1", **settings}), security)

    async def scenario() -> None:
        async with Server(heartbeat_api(), config=config, listeners=("PLAINTEXT", "TLS"), started=False) as server:
            lengths = {}
            for acceptor in server.network.acceptors:
                (listening,) = acceptor.sockets
                info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
                lengths[acceptor.endpoint.listener] = struct.unpack_from("=I", info, 28)[0]
            assert lengths == dict.fromkeys(("PLAINTEXT", "TLS"), min(backlog, most))

    run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("host", ["", "localhost"])
def test_port_zero_is_one_port_on_all_addresses(host: str, run: Any) -> None:
    async def scenario() -> None:
        server = Server(heartbeat_api())
        acceptor = server.network.acceptors[0]
        acceptor.endpoint = EndPoint("PLAINTEXT", host, 0)
        async with server:
            assert {sock.getsockname()[1] for sock in acceptor.sockets} == {acceptor.port}
            for sock in acceptor.sockets:
                address = "127.0.0.1" if sock.family == socket.AF_INET else "::1"
                reader, writer = await asyncio.open_connection(address, acceptor.port)
                await ping(RawClient(reader, writer), 1)
                writer.close()

    run(scenario())


LOCKOUTS = {
    "max.connections": "0",
    "max.connections.per.ip": "0",
    "max.connections.per.ip.overrides": "127.0.0.1:0",
}


@pytest.mark.parametrize("name", LOCKOUTS)
def test_settings_that_lock_all_clients_out_are_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    config = KafkaConfig({"broker.id": "1"})
    refused = validate_broker_config(config, {name: LOCKOUTS[name]}, per_broker=False, current={})
    assert refused is not None and name in refused
    assert usable(config, {name: LOCKOUTS[name], "num.io.threads": "9"}) == {"num.io.threads": "9"}
    assert "ignoring a dynamic setting in ZooKeeper" in caplog.text  # It may stand in ZooKeeper from before.


def test_a_broker_that_accepts_no_connections_does_not_start() -> None:
    for name in ("max.connections", "max.connections.per.ip"):
        with pytest.raises(ConfigError, match=name):
            KafkaConfig({"broker.id": "1", name: "0"})
    KafkaConfig({"broker.id": "1", "max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:5"})


@plain_and_secured
def test_half_sent_requests_are_bounded_and_the_stalled_ones_go(protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with SecuredServer(protocol, metadata_api(), clock=clock) as server:
            channel, connections = server.network.channel, server.network.acceptors[0].processor.connections
            channel.unfinished = Hoard("unfinished requests", 2_000_000, clock.monotonic)
            whole = large_metadata(300_000)
            most = len(whole) - 1_000
            stalled = [await server.user() for _ in range(2)]
            for client in stalled:
                client.writer.write(whole[:most])
            # Bytes that arrive after the clock has moved would be activity.
            await until(lambda: [connection._reader.pending_bytes for connection in connections] == [most - 4] * 2)
            assert 1_500_000 < channel.unfinished.total_bytes < 2_000_000
            clock.seconds += 2
            active = [await server.user() for _ in range(3)]
            for client in active:
                client.writer.write(whole[:most])
            await until(lambda: server.connection_count == 3)
            assert [await client.receive_end() for client in stalled] == [b"", b""]
            for client in active:
                client.writer.write(whole[most:])
                await client.receive()
            assert channel.unfinished.total_bytes == 0

    uvloop.run(scenario())


@plain_and_secured
def test_unread_responses_are_bounded_and_the_slow_readers_go(protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        clock = ManualClock()

        def script(_: RequestContext, __: MetadataRequest) -> MetadataResponse:
            nodes = [MetadataResponseBroker(node_id=n, host="h" * 30_000, port=1, rack=None) for n in range(700)]
            return MetadataResponse(brokers=nodes, cluster_id=None, controller_id=0, topics=())

        async with SecuredServer(protocol, metadata_api(script), clock=clock) as server:
            channel, connections = server.network.channel, server.network.acceptors[0].processor.connections
            channel.unread = Hoard("unread responses", 50_000_000, clock.monotonic)
            slow = [await server.user() for _ in range(4)]
            await until(lambda: server.connection_count == len(slow))
            for number, client in enumerate(slow, 1):
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                for _ in range(MAX_IN_FLIGHT):
                    client.send(MetadataRequest(topics=[]), 9)
                # Its response is held, perhaps in the place of another client's that had to go for it.
                await until(lambda: len(channel.unread._held) + 4 - server.connection_count >= number)  # noqa: B023
                await settled()
                clock.seconds += 2
            await until(lambda: server.connection_count <= 2)
            other = await server.user()
            await ping(other, 1)
            assert channel.unread.total_bytes <= 50_000_000
            transports = [connection.transport for connection in connections]
            buffered = sum(transport.get_write_buffer_size() for transport in transports if transport is not None)
            assert 0 < buffered <= channel.unread.total_bytes, "the transports hold nothing that is not counted"

    uvloop.run(scenario())


@plain_and_secured
def test_a_large_request_is_not_received_while_the_queued_ones_fill_the_memory(protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        config = SocketServerConfig(queued_max_request_bytes=100_000)
        async with SecuredServer(protocol, metadata_api(), config=config, started=False) as server:
            server.accept_without_handlers()
            first, second = await server.user(), await server.user()
            first.writer.write(large_metadata(50_000))
            await until(lambda: server.network.channel.memory_pool.is_depleted)
            second.writer.write(large_metadata(500_000))
            await until(lambda: server.network.channel.memory_pool.waiting)
            await settled()
            connections = server.network.acceptors[0].processor.connections
            assert max(connection._reader.pending_bytes for connection in connections) < 600_000
            server.network.handler_pool.start()
            await first.receive()
            await second.receive()
            assert server.network.channel.memory_pool.used_bytes == 0

    uvloop.run(scenario())
