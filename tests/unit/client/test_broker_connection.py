"""BrokerConnection against the real server and against peers that misbehave."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from klamm.client import asyncio_connection
from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import outgoing_totals
from klamm.clock import SystemClock
from klamm.metrics import MetricsRegistry
from klamm.network import RequestContext
from klamm.protocol import runtime
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.wire import encode
from tests.unit.network.harness import (
    Answer,
    ScriptedApi,
    Server,
    api_versions_api,
    both_loops,
    echo,
    heartbeat,
    heartbeat_api,
    until,
)

Run = Callable[[Any], None]


@pytest.fixture(autouse=True, params=["whole", "in slices"])
def _decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in slices":
        monkeypatch.setattr(asyncio_connection, "WHOLE_BYTES", 0)
        monkeypatch.setattr(runtime, "SLICE_ELEMENTS", 1)
        monkeypatch.setattr(runtime, "SLICE_BYTES", 8)


@both_loops
def test_requests_are_pipelined_and_matched(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            connection = await BrokerConnection.connect("127.0.0.1", server.port)
            futures = [connection.send(heartbeat(n), version=n % 5) for n in range(40)]
            assert connection.in_flight == 40
            assert [f.error_code for f in await asyncio.gather(*futures)] == list(range(40))
            body = encode(heartbeat(3), 2)
            assert (await connection.send_encoded(12, 2, body)).error_code == 3
            connection.close()
            await connection.closed
            assert connection.is_closed

    run(scenario())


@both_loops
def test_large_messages(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api(lambda _, r: HeartbeatResponse(error_code=len(r.member_id) // 1000))
        async with Server(api) as server:
            connection = await BrokerConnection.connect("127.0.0.1", server.port)
            request = HeartbeatRequest(group_id="g" * 32_000, generation_id=1, member_id="m" * 32_000)
            request.group_instance_id = "i" * 32_000
            assert (await connection.send(request, 3)).error_code == 32
            connection.close()
            await connection.closed

    run(scenario())


@both_loops
def test_a_lost_connection_fails_everything_that_waits(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        api = heartbeat_api(lambda *_: loop.create_future())
        async with Server(api) as server:
            connection = await BrokerConnection.connect("127.0.0.1", server.port)
            futures = [connection.send(heartbeat(n), 1) for n in range(3)]
            await until(lambda: len(api.asked) == 3)
            await server.network.shutdown(timeout_ms=0)
            for result in await asyncio.gather(*futures, return_exceptions=True):
                assert isinstance(result, ConnectionError)
            with pytest.raises(ConnectionError, match="broker closed"):
                await connection.send(heartbeat(4), 1)
            await connection.closed

    run(scenario())


@both_loops
def test_a_request_that_is_not_answered_ends_the_connection(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with Server(heartbeat_api(lambda *_: loop.create_future())) as server:
            connection = await BrokerConnection.connect("127.0.0.1", server.port, request_timeout_ms=60_000)
            patient = connection.send(heartbeat(1), 1)
            with pytest.raises(TimeoutError):
                await connection.send(heartbeat(2), 1, timeout_ms=20)
            with pytest.raises(ConnectionError, match="not answered in time"):
                await patient
            await connection.closed
            await server.network.shutdown(timeout_ms=0)

    run(scenario())


@both_loops
def test_a_cancelled_request_does_not_disturb_the_next(run: Run) -> None:
    async def scenario() -> None:
        delayed: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        api = heartbeat_api(lambda _, r: delayed if r.generation_id == 1 else echo(r))
        async with Server(api) as server:
            connection = await BrokerConnection.connect("127.0.0.1", server.port)
            first, second = connection.send(heartbeat(1), 1), connection.send(heartbeat(2), 1)
            first.cancel()
            await until(lambda: len(api.asked) == 2)
            delayed.set_result(HeartbeatResponse(error_code=1))
            assert (await second).error_code == 2
            connection.close()
            await connection.closed

    run(scenario())


@both_loops
def test_totals_span_the_connections_to_a_broker(run: Run) -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        totals = outgoing_totals(registry, "replica-fetcher", 3)
        delayed: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        api = heartbeat_api(lambda _, r: delayed if r.generation_id == 9 else echo(r))
        async with Server(api) as server:
            for _ in range(2):
                connection = await BrokerConnection.connect("127.0.0.1", server.port, totals=totals)
                await asyncio.gather(*(connection.send(heartbeat(n), 1) for n in range(3)))
                waiting = connection.send(heartbeat(9), 1)
                assert totals.in_flight == 1
                connection.close()
                await connection.closed
                with pytest.raises(ConnectionError):
                    await waiting
            await server.network.shutdown(timeout_ms=0)
        assert (totals.created, totals.closed, totals.failed_connections) == (2, 2, 0)
        assert (totals.requests, totals.responses, totals.failed_requests, totals.in_flight) == (8, 6, 2, 0)
        assert totals.outgoing_bytes > totals.incoming_bytes > 6 * 8
        assert 0 < totals.average_latency_ms <= totals.highest_latency_ms < 60_000
        with pytest.raises(ConnectionError):
            await BrokerConnection.connect("127.0.0.1", server.port, timeout_ms=5_000, totals=totals)
        assert (totals.created, totals.failed_connections) == (2, 1)
        assert outgoing_totals(registry, "replica-fetcher", 3) is totals
        outgoing_totals(registry, "txn-marker", 3)
        lines = registry.exposition().splitlines()
        name = "klamm_server_outgoing_connection_metrics_request_total"
        assert f'{name}{{channel="replica-fetcher",broker_id="3"}} 8' in lines
        assert f'{name}{{channel="txn-marker",broker_id="3"}} 0' in lines

    run(scenario())


def test_no_listener_at_the_address() -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            port = server.port
        with pytest.raises(ConnectionError):
            await BrokerConnection.connect("127.0.0.1", port, timeout_ms=5_000)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">iih", 6, 99, 0),
        struct.pack(">i", -7),
        struct.pack(">i", 2) + b"ab",
        struct.pack(">iiihi", 14, 0, 0, 0, 0)[:14] + bytes(4) + struct.pack(">iiih", 10, 5, 0, 0),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["wrong correlation id", "negative size", "too short", "one too many", "another protocol"],
)
def test_a_peer_that_does_not_speak_the_protocol(answer: bytes) -> None:
    async def scenario() -> None:
        async def misbehave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(answer)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(misbehave, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await BrokerConnection.connect("127.0.0.1", port, max_response_bytes=1000)
        first, second = connection.send(heartbeat(1), 1), connection.send(heartbeat(2), 1)
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(results[1], ConnectionError)
        await connection.closed
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())


def test_versions_are_negotiated_when_asked() -> None:
    async def scenario() -> None:
        keys = [
            ApiVersion(api_key=12, min_version=0, max_version=2),
            ApiVersion(api_key=0, min_version=90, max_version=91),
        ]
        api = api_versions_api()
        api.script = lambda *_: ApiVersionsResponse(error_code=0, api_keys=keys)
        async with Server(api) as server:
            connection = await BrokerConnection.connect("127.0.0.1", server.port)
            assert (await connection.api_versions()).ranges == {12: (0, 2), 0: (90, 91)}
            assert await connection.highest_version(HeartbeatRequest) == 2
            with pytest.raises(ConnectionError, match="ProduceRequest in versions 90 to 91 only"):
                await connection.highest_version(ProduceRequest)
            assert len(api.asked) == 1
            connection.close()
            await connection.closed

    asyncio.run(scenario())


def test_an_old_broker_refuses_a_new_api_versions_in_v0() -> None:
    async def scenario() -> None:
        def script(_: RequestContext, request: ApiVersionsRequest) -> Answer:
            return ApiVersionsResponse(error_code=0, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)])

        api = ScriptedApi(ApiVersionsRequest, ApiVersionsResponse, script, versions=(0, 2))
        async with Server(api) as server:
            connection = await BrokerConnection.connect("127.0.0.1", server.port)
            response = await connection.send(ApiVersionsRequest(), 4)
            assert (response.error_code, response.api_keys[0].max_version) == (35, 2)
            assert (await connection.api_versions()).ranges == {18: (0, 2)}
            assert len(api.asked) == 1
            connection.close()
            await connection.closed

    asyncio.run(scenario())
