"""Requests and responses over real sockets: order, planes, refusals, acks=0, throttling, bugs."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from klamm.errors import ConfigError
from klamm.model import EndPoint
from klamm.network import RequestContext, SocketServerConfig, request_decoder
from klamm.network.connection import MAX_IN_FLIGHT, Connection
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.wire import Message, decode, decode_in_slices
from klamm.waiting import PromptFuture, Steps, begin, result_of
from tests.unit.network.harness import (
    Answer,
    Server,
    api_versions_api,
    both_loops,
    control_api,
    echo,
    frame,
    heartbeat,
    heartbeat_api,
    muted,
    numbers,
    settled,
    until,
)

Run = Callable[[Any], None]


@both_loops
def test_a_delayed_response_holds_back_later_ones_but_not_their_handling(run: Run) -> None:
    async def scenario() -> None:
        delayed: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            return delayed if request.generation_id == 0 else echo(request)

        api = heartbeat_api(script)
        async with Server(api) as server:
            client = await server.client()
            for number in range(4):
                client.send(heartbeat(number))
            await until(lambda: len(api.asked) == 4)
            await settled()
            assert server.value("RequestChannel", "ResponseQueueSize") == 3
            other = await server.client()
            other.send(heartbeat(9))
            assert await other.receive_heartbeat() == (0, 9)
            delayed.set_result(HeartbeatResponse(error_code=77))
            assert [await client.receive_heartbeat() for _ in range(4)] == [(0, 77), (1, 1), (2, 2), (3, 3)]
            assert numbers(api) == [0, 1, 2, 3, 9]
            assert server.value("RequestChannel", "ResponseQueueSize") == 0
            await client.close()
            await other.close()

    run(scenario())


@both_loops
@pytest.mark.parametrize("sends_at_once", [True, False])
def test_an_urgent_response_leaves_while_the_turn_continues(run: Run, sends_at_once: bool) -> None:
    """A follower appends what one produce has written while the leader still handles the produce."""

    async def scenario() -> None:
        delayed: PromptFuture[HeartbeatResponse] = PromptFuture(asyncio.get_running_loop())
        unsent: list[int] = []

        def script(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
            if request.generation_id == 0:
                ctx.sends_at_once = sends_at_once
                return delayed
            delayed.set_result(HeartbeatResponse(error_code=77))
            unsent.append(server.network.channel.in_flight)
            return echo(request)

        async with Server(heartbeat_api(script)) as server:
            one, other = await server.client(), await server.client()
            one.send(heartbeat(0))
            await settled()
            other.send(heartbeat(1))
            assert await other.receive_heartbeat() == (0, 1)
            assert await one.receive_heartbeat() == (0, 77)
            assert unsent == [1 if sends_at_once else 2]
            await one.close()
            await other.close()

    run(scenario())


@both_loops
def test_futures_may_finish_in_any_order(run: Run) -> None:
    async def scenario() -> None:
        futures: dict[int, asyncio.Future[HeartbeatResponse]] = {}

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            return futures.setdefault(request.generation_id, asyncio.get_running_loop().create_future())

        async with Server(heartbeat_api(script)) as server:
            client = await server.client()
            for number in range(5):
                client.send(heartbeat(number))
            await until(lambda: len(futures) == 5)
            for number in (3, 1, 4, 0, 2):
                futures[number].set_result(HeartbeatResponse(error_code=number))
                await settled()
            assert [(await client.receive_heartbeat())[1] for _ in range(5)] == [0, 1, 2, 3, 4]
            await client.close()

    run(scenario())


@both_loops
def test_requests_in_flight_on_one_connection_are_bounded(run: Run) -> None:
    async def scenario() -> None:
        futures: list[asyncio.Future[HeartbeatResponse]] = []

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            future: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
            futures.append(future)
            return future

        api = heartbeat_api(script)
        async with Server(api) as server:
            client = await server.client()
            for number in range(5 * MAX_IN_FLIGHT):
                client.send(heartbeat(number))
            await until(lambda: len(futures) >= MAX_IN_FLIGHT)
            await settled()
            assert len(futures) == MAX_IN_FLIGHT
            assert muted(server) == {"in-flight": 1}
            received: list[int] = []
            for number in range(5 * MAX_IN_FLIGHT):
                await until(lambda: len(futures) > len(received))
                futures[number].set_result(echo(heartbeat(number)))
                received.append((await client.receive_heartbeat())[1])
            assert received == list(range(5 * MAX_IN_FLIGHT))
            assert numbers(api) == received
            await client.close()

    run(scenario())


@both_loops
def test_control_requests_overtake_data_even_when_the_data_queue_is_full(run: Run) -> None:
    async def scenario() -> None:
        order: list[str] = []

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            order.append(f"data {request.generation_id}")
            return echo(request)

        data, control = heartbeat_api(script), control_api()
        answer = control.script

        def control_script(ctx: RequestContext, request: ControlledShutdownRequest) -> Answer:
            order.append("control")
            return answer(ctx, request)

        control.script = control_script
        config = SocketServerConfig(queued_max_requests=3)
        async with Server(data, control, config=config, started=False) as server:
            server.accept_without_handlers()
            clients = [await server.client() for _ in range(5)]
            for number, client in enumerate(clients):
                client.send(heartbeat(number))
            await until(lambda: len(server.network.channel.data.waiting) == 2)
            assert server.value("RequestChannel", "RequestQueueSize") == 3
            controller = await server.client()
            controller.send(ControlledShutdownRequest(broker_id=1))
            await until(lambda: server.value("RequestChannel", "ControlPlaneRequestQueueSize") == 1)
            server.network.handler_pool.start()
            for number, client in enumerate(clients):
                assert await client.receive_heartbeat() == (0, number)
            await controller.receive()
            assert order == ["control", *(f"data {n}" for n in range(5))]
            for client in (*clients, controller):
                await client.close()

    run(scenario())


@both_loops
def test_a_full_queue_pauses_its_socket_and_nothing_is_lost(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        config = SocketServerConfig(queued_max_requests=2)
        async with Server(api, control_api(), config=config, started=False) as server:
            server.accept_without_handlers()
            greedy, modest = await server.client(), await server.client()
            for number in range(300):
                greedy.send(heartbeat(number))
            await until(lambda: server.network.channel.data.waiting)
            modest.send(heartbeat(1000))
            await until(lambda: len(server.network.channel.data.waiting) == 2)
            await settled()
            assert server.value("RequestChannel", "RequestQueueSize") == 2
            assert muted(server) == {"queue-full": 2}
            assert server.network.channel.in_flight == 4
            server.network.handler_pool.start()
            assert await modest.receive_heartbeat() == (0, 1000)
            assert [await greedy.receive_heartbeat() for _ in range(300)] == [(n, n) for n in range(300)]
            assert [n for n in numbers(api) if n < 1000] == list(range(300))
            assert muted(server) == {} and server.value("RequestChannel", "RequestQueueSize") == 0
            peak = server.value("RequestChannel", "RequestQueueSizeMax", "klamm.network")
            assert peak == 2, "a peak is seen after it is over"
            await greedy.close()
            await modest.close()

    run(scenario())


@both_loops
def test_the_control_plane_listener_refuses_data(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        apis = heartbeat_api(), control_api(), api_versions_api()
        async with Server(*apis, listeners=("DATA", "CONTROLLER"), control_plane_listener="CONTROLLER") as server:
            control = await server.client("CONTROLLER")
            control.send(ApiVersionsRequest(), 0)
            control.send(ControlledShutdownRequest(broker_id=1))
            assert struct.unpack_from(">i", await control.receive()) == (0,)
            assert struct.unpack_from(">i", await control.receive()) == (1,)
            control.send(heartbeat(1))
            assert await control.receive_end() == b""
            assert "Heartbeat is not served on the control plane" in caplog.text
            data = await server.client("DATA")
            data.send(heartbeat(1))
            assert await data.receive_heartbeat() == (0, 1)
            await data.close()
            await control.close()

    with caplog.at_level(logging.WARNING):
        run(scenario())


HOSTILE = {
    "oversized": struct.pack(">i", 2_000_000),
    "negative": struct.pack(">i", -5),
    "garbage": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "no header": struct.pack(">i", 3) + b"abc",
    "unknown key": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unsupported version": struct.pack(">ihhih", 10, HeartbeatRequest.KEY, 99, 1, -1),
    "negative version": struct.pack(">ihhih", 10, HeartbeatRequest.KEY, -1, 1, -1),
    "truncated body": struct.pack(">ihhih", 10, HeartbeatRequest.KEY, 1, 1, -1),
    "client id beyond the frame": struct.pack(">ihhih", 10, HeartbeatRequest.KEY, 1, 1, 500),
}


@both_loops
@pytest.mark.parametrize("what", HOSTILE)
def test_bad_bytes_close_that_connection_only_and_after_its_earlier_answers(
    run: Run, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        delayed: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        api = heartbeat_api(lambda _, r: delayed if r.generation_id == 5 else echo(r))
        config = SocketServerConfig(socket_request_max_bytes=1_000_000)
        async with Server(api, config=config) as server:
            good, bad = await server.client(), await server.client()
            bad.send(heartbeat(5))
            await until(lambda: api.asked)
            bad.writer.write(HOSTILE[what])
            await until(lambda: "Closing connection" in caplog.text)
            delayed.set_result(HeartbeatResponse(error_code=5))
            assert await bad.receive_heartbeat() == (0, 5)
            assert await bad.receive_end() == b""
            good.send(heartbeat(1))
            assert await good.receive_heartbeat() == (0, 1)
            await good.close()
            await bad.close()
            await until(lambda: server.connection_count == 0)

    with caplog.at_level(logging.WARNING):
        run(scenario())


@both_loops
def test_an_api_versions_from_the_future_is_answered_in_v0(run: Run) -> None:
    async def scenario() -> None:
        async with Server(api_versions_api()) as server:
            client = await server.client()
            body = struct.pack(">hhih", 18, 9, 42, 2) + b"me" + b"\0" + b"whatever v9 may look like"
            client.writer.write(struct.pack(">i", len(body)) + body)
            answer = await client.receive()
            assert answer == struct.pack(">ihihhh", 42, 35, 1, 18, 0, 4)
            client.send(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
            assert struct.unpack_from(">ih", await client.receive()) == (0, 0)
            errors = server.value("RequestMetrics", "ErrorsPerSec", request="ApiVersions", error="UNSUPPORTED_VERSION")
            assert errors == 1
            await client.close()

    run(scenario())


@both_loops
def test_no_response_and_close_connection(run: Run) -> None:
    async def scenario() -> None:
        def script(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
            if request.generation_id == 3:
                ctx.close_connection()
            return echo(request) if request.generation_id == 2 else None

        api = heartbeat_api(script)
        async with Server(api) as server:
            client = await server.client()
            for number in range(5):
                client.send(heartbeat(number))
            assert await client.receive_heartbeat() == (2, 2)
            assert await client.receive_end() == b""
            await client.close()
            assert server.value("RequestMetrics", "TotalTimeMs", request="Heartbeat") >= 4

    run(scenario())


@both_loops
def test_a_throttled_connection_is_answered_at_once_and_muted_for_the_time(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        handled_at: list[float] = []
        throttle_ms = {0: 120, 3: 600_000}

        def script(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
            handled_at.append(loop.time())
            if request.generation_id in throttle_ms:
                ctx.throttle(throttle_ms[request.generation_id])
            return echo(request)

        async with Server(heartbeat_api(script)) as server:
            client, other = await server.client(), await server.client()
            client.send(heartbeat(0))
            assert await client.receive_heartbeat() == (0, 0)
            client.send(heartbeat(1))
            other.send(heartbeat(2))
            assert await other.receive_heartbeat() == (0, 2)
            assert await client.receive_heartbeat() == (1, 1)
            assert handled_at[-1] - handled_at[0] >= 0.115
            histogram = server.registry.find(
                "kafka.network", "RequestMetrics", "ThrottleTimeMs", {"request": "Heartbeat"}
            )
            assert histogram is not None and histogram.percentiles()[-1] == 120  # type: ignore[union-attr]
            await until(lambda: muted(server) == {})
            other.send(heartbeat(3))
            assert await other.receive_heartbeat() == (1, 3)
            await until(lambda: muted(server) == {"throttled": 1})
            await client.close()
            await other.close()

    run(scenario())


@both_loops
@pytest.mark.parametrize(
    "how",
    [
        "raises",
        "future raises",
        "future cancelled",
        "first step cancelled",
        "second slice cancelled",
        "unfit response",
    ],
)
def test_a_bug_in_a_handler_costs_its_connection_only(run: Run, how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            if request.generation_id != 1:
                return echo(request)
            if how == "raises":
                raise KeyError("a bug")
            if how == "unfit response":
                return HeartbeatResponse(error_code=1 << 20)
            future: asyncio.Future[HeartbeatResponse] = loop.create_future()
            if "step" in how or "slice" in how:
                future.cancel()
                return begin(wait_for(future))
            loop.call_soon(future.cancel) if how.endswith("cancelled") else loop.call_soon(
                future.set_exception, KeyError("a bug")
            )
            return future

        def wait_for(future: asyncio.Future[HeartbeatResponse]) -> Steps[HeartbeatResponse]:
            if "slice" in how:
                yield
                yield
            return (yield from result_of(future))

        async with Server(heartbeat_api(script)) as server:
            failed: list[tuple[str, int, str]] = []
            server.network.handler_pool.on_failed = lambda request, error: failed.append(
                (request.api.name, request.correlation_id, error)
            )
            client = await server.client()
            for number in range(3):
                client.send(heartbeat(number))
            assert await client.receive_heartbeat() == (0, 0)
            assert await client.receive_end() == b""
            ((name, correlation_id, error),) = failed
            assert (name, correlation_id) == ("Heartbeat", 1)
            kinds = {"cancelled": "CancelledError", "response": "ValueError", "raises": "KeyError"}
            assert error.startswith(kinds[how.split()[-1]])
            other = await server.client()
            other.send(heartbeat(0))
            assert await other.receive_heartbeat() == (0, 0)
            tags = {"request": "Heartbeat", "error": "UNKNOWN_SERVER_ERROR"}
            assert server.value("RequestMetrics", "ErrorsPerSec", **tags) == 1
            await client.close()
            await other.close()

    run(scenario())
    assert "Heartbeat v1 from 127.0.0.1" in caplog.text
    assert "Traceback" in caplog.text


BROKEN = 77


def decode_with_a_bug(real: Callable[..., Any], cls: type[Message], version: int, frame: bytes, *rest: Any) -> Any:
    if BROKEN.to_bytes(4, "big") in bytes(frame):
        raise KeyError("a bug")
    return real(cls, version, frame, *rest)


@both_loops
@pytest.mark.parametrize("size", [1, 20_000])
def test_a_bug_in_a_decoder_costs_its_connection_only(run: Run, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for real in (decode, decode_in_slices):
        monkeypatch.setattr(request_decoder, real.__name__, partial(decode_with_a_bug, real))

    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            failed: list[str] = []
            server.network.handler_pool.on_failed = lambda request, error: failed.append(error)
            broken, other = await server.client(), await server.client()
            broken.send(HeartbeatRequest(group_id="g", generation_id=BROKEN, member_id="m" * size))
            other.send(heartbeat(1))
            assert await other.receive_heartbeat() == (0, 1)
            assert await broken.receive_end() == b""
            assert failed == ["KeyError('a bug')"]
            assert server.network.channel.in_flight == 0
            assert server.network.channel.memory_pool.used_bytes == 0
            await broken.close()
            await other.close()

    run(scenario())


@both_loops
@pytest.mark.parametrize("what", ["report", "refusal"])
def test_a_bug_outside_of_handlers_does_not_keep_other_requests_waiting(
    run: Run, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that ends with an error is followed by the next one."""

    def fail(*_: object) -> None:
        raise ValueError("another bug")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            if request.generation_id == BROKEN:
                raise KeyError("a bug")
            return echo(request)

        async with Server(heartbeat_api(script)) as server:
            pool, waiting = server.network.handler_pool, server.network.channel.data
            if what == "report":
                pool.on_failed = fail
            else:
                monkeypatch.setattr(Connection, "refuse", fail)
            broken, other = await server.client(), await server.client()
            pool.shutdown()
            whole = frame(heartbeat(BROKEN), 1, 0)
            broken.writer.write(whole if what == "report" else (len(whole) - 6).to_bytes(4, "big") + whole[4:-2])
            await until(lambda: waiting.size == 1)
            for number in range(5):
                other.send(heartbeat(number))
            await until(lambda: waiting.size == 6)
            pool.start()
            assert [(await other.receive_heartbeat())[1] for _ in range(5)] == list(range(5))
            await broken.close()
            await other.close()

    run(scenario())


@both_loops
def test_requests_sent_just_before_the_client_leaves_are_handled(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api(lambda *_: None)
        async with Server(api) as server:
            client = await server.client()
            for number in range(50):
                client.send(heartbeat(number))
            await client.close()
            await until(lambda: len(api.asked) == 50)
            await until(lambda: server.network.channel.in_flight == 0)
            assert numbers(api) == list(range(50))

    run(scenario())


@both_loops
def test_every_split_of_the_bytes_gives_the_same_answers(run: Run) -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            client = await server.client()
            whole = b"".join(frame(heartbeat(n), 3 + n % 2, n) for n in range(4))
            for byte in whole:
                client.writer.write(bytes((byte,)))
                await client.writer.drain()
                await asyncio.sleep(0)
            answers = [await client.receive() for _ in range(4)]
            assert [struct.unpack_from(">i", a)[0] for a in answers] == [0, 1, 2, 3]
            await client.close()

    run(scenario())


@both_loops
def test_the_context_names_the_client(run: Run) -> None:
    async def scenario() -> None:
        seen: list[RequestContext] = []

        def script(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
            seen.append(ctx)
            return echo(request)

        api = heartbeat_api(script)
        async with Server(api, listeners=("INSIDE", "OUTSIDE")) as server:
            client = await server.client("OUTSIDE")
            local = client.writer.get_extra_info("sockname")
            client.send(heartbeat(1), 4)
            await client.receive()
            (ctx,) = seen
            port = server.network.bound_port("OUTSIDE")
            assert ctx.connection_id == f"127.0.0.1:{port}-127.0.0.1:{local[1]}-0"
            assert (ctx.api_key, ctx.api_version, ctx.correlation_id, ctx.client_id) == (12, 4, 0, "tester")
            assert (ctx.listener_name, ctx.client_host, ctx.principal) == ("OUTSIDE", "127.0.0.1", "User:ANONYMOUS")
            assert ctx.security_protocol.name == "PLAINTEXT"
            assert ctx.client_software_name == "unknown"
            assert abs(ctx.now_ms - server.clock.now_ms()) < 60_000
            await client.close()

    run(scenario())


def test_listeners_are_checked() -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match=r"control\.plane\.listener\.name is 'X'"):
            Server(heartbeat_api(), control_plane_listener="X")
        with pytest.raises(ConfigError, match="each once"):
            Server(heartbeat_api(), listeners=("A", "A"))
        with pytest.raises(ValueError, match="declared twice"):
            Server(heartbeat_api(), heartbeat_api())
        async with Server(heartbeat_api()) as server:
            other = Server(heartbeat_api())
            other.network.acceptors[0].endpoint = EndPoint("PLAINTEXT", "127.0.0.1", server.port)
            with pytest.raises(ConfigError, match=r"listener PLAINTEXT cannot be bound to 127\.0\.0\.1"):
                await other.network.bind()

    asyncio.run(scenario())


@both_loops
def test_no_connection_overtakes_one_that_waits_for_room_in_the_queue(run: Run) -> None:
    async def scenario() -> None:
        api = heartbeat_api()
        config = SocketServerConfig(queued_max_requests=2, num_io_threads=1)
        async with Server(api, config=config, started=False) as server:
            server.accept_without_handlers()
            first, waiting, late = await server.client(), await server.client(), await server.client()
            first.send(heartbeat(0))
            first.send(heartbeat(1))
            await until(lambda: server.network.channel.data.size == 2)
            waiting.send(heartbeat(2))
            await until(lambda: server.network.channel.data.waiting)
            assert server.network.channel.data.take() is not None
            late.send(heartbeat(3))
            await until(lambda: len(server.network.channel.data.waiting) == 2)
            server.network.handler_pool.start()
            assert await waiting.receive_heartbeat() == (0, 2)
            assert await late.receive_heartbeat() == (0, 3)
            assert numbers(api) == [2, 1, 3]

    run(scenario())
