"""Client quotas on real connections: a response comes at once with its throttle time, then the connection is muted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from klamm.config.client_quotas import ClientQuotas, QuotaEntity
from klamm.network import RequestContext
from klamm.network.muting import THROTTLED
from klamm.network.request_context import Plane
from klamm.protocol.frames import RequestHeader
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.wire import Message, decode
from tests.support.frames import encode_request_frame
from tests.unit.network.harness import (
    Answer,
    ManualClock,
    RawClient,
    ScriptedApi,
    Server,
    echo,
    heartbeat,
    heartbeat_api,
    numbers,
    until,
)


def quotas(**values: float) -> ClientQuotas:
    """For the client id of the harness."""
    found = ClientQuotas()
    properties = {key: str(int(value)) if key.endswith("byte_rate") else str(value) for key, value in values.items()}
    found.set_entity(QuotaEntity(client_id="tester"), properties)
    return found


def is_throttled(server: Server) -> bool:
    return any(c.paused & THROTTLED for c in server.network.acceptors[0].processor.connections)


async def heartbeat_answer(client: RawClient) -> HeartbeatResponse:
    answer, _ = decode(HeartbeatResponse, 1, (await client.receive())[4:])
    return answer


def slow(clock: ManualClock, ms: int) -> ScriptedApi:
    """A handler that takes so long, on the test's clock."""

    def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
        clock.seconds += ms / 1000
        return echo(request)

    return heartbeat_api(script)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_client_over_its_request_quota_is_muted_and_the_others_are_not() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        api = slow(clock, 50)
        async with Server(api, clock=clock, quotas=quotas(request_percentage=0.1)) as server:
            client = await server.client()
            client.send(heartbeat(1))
            assert (await heartbeat_answer(client)).throttle_time_ms == 1000, "at most one window, as in Kafka"
            assert is_throttled(server)
            client.send(heartbeat(2))
            other = await server.client()
            other.writer.write(frame_of(heartbeat(3), 1, "other"))
            assert (await heartbeat_answer(other)).throttle_time_ms == 0
            assert numbers(api) == [1, 3]
            assert (await heartbeat_answer(client)).error_code == 2, "after the throttle time"

    run(scenario())


def frame_of(request: Message, version: int, client_id: str) -> bytes:
    return b"".join(encode_request_frame(RequestHeader(request.KEY, version, 0, client_id), request))


def test_within_the_quota_nothing_is_throttled() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Server(slow(clock, 1), clock=clock, quotas=quotas(request_percentage=50)) as server:
            client = await server.client()
            for number in range(5):
                client.send(heartbeat(number))
                assert (await heartbeat_answer(client)).throttle_time_ms == 0
            assert not is_throttled(server) and len(server.quotas.request.accounts) == 1

    run(scenario())


def state(server: Server) -> tuple[bool, int]:
    return server.quotas.is_enabled, len(server.quotas.request.accounts)


def test_without_a_quota_no_client_has_an_account() -> None:
    async def scenario() -> None:
        everybody = ClientQuotas()
        async with Server(heartbeat_api(), quotas=everybody) as server:
            client = await server.client()
            client.send(heartbeat(1))
            await client.receive()
            assert state(server) == (False, 0)
            everybody.set_entity(QuotaEntity(client_id="another"), {"request_percentage": "1.0"})
            client.send(heartbeat(2))
            await client.receive()
            assert state(server) == (True, 0)

    run(scenario())


def test_requests_of_brokers_are_exempt() -> None:
    async def scenario() -> None:
        clock = ManualClock()

        def script(_: RequestContext, __: Any) -> Answer:
            clock.seconds += 0.1
            return ControlledShutdownResponse(error_code=0, remaining_partitions=[])

        api = ScriptedApi(ControlledShutdownRequest, ControlledShutdownResponse, script, plane=Plane.CONTROL)
        async with Server(api, clock=clock, quotas=quotas(request_percentage=0.1)) as server:
            client = await server.client()
            client.send(ControlledShutdownRequest(broker_id=1, broker_epoch=1), 2)
            await client.receive()
            assert not is_throttled(server)
            assert server.value("Request", "exempt-request-time", "kafka.server") == pytest.approx(1.0)

    run(scenario())


@pytest.mark.parametrize("acks", [1, 0])
def test_a_producer_over_its_quota_is_muted(acks: int) -> None:
    async def scenario() -> None:
        def script(_: RequestContext, request: ProduceRequest) -> Answer:
            return ProduceResponse(responses=[]) if request.acks else None

        api = ScriptedApi(ProduceRequest, ProduceResponse, script)
        request = ProduceRequest(acks=acks, timeout_ms=1, topic_data=[])
        async with Server(api, quotas=quotas(producer_byte_rate=1)) as server:
            client = await server.client()
            client.send(request, 8)
            await until(lambda: is_throttled(server))
            if acks:
                frame = await client.receive()
                answer, _ = decode(ProduceResponse, 8, frame[4:])
                assert answer.throttle_time_ms == (len(frame_of(request, 8, "tester")) - 4) * 1000 - 10_000
            client.send(request, 8)
            other = await server.client()
            other.send(request, 8)
            await until(lambda: len(api.asked) == 2)
            assert server.value("Produce", "queue-size", "kafka.server") == 2

    run(scenario())


def test_only_the_own_slices_of_a_request_count() -> None:
    async def scenario() -> None:
        clock = ManualClock()

        def slices(request: HeartbeatRequest, count: int) -> Generator[None, None, HeartbeatResponse]:
            for _ in range(count):
                clock.seconds += 0.001
                yield
            return echo(request)

        def script(_: RequestContext, request: HeartbeatRequest) -> Any:
            return slices(request, request.generation_id)

        async with Server(heartbeat_api(script), clock=clock, quotas=quotas(request_percentage=50)) as server:
            first, second = await server.client(), await server.client()
            first.send(heartbeat(40))
            second.send(heartbeat(60))
            await asyncio.gather(first.receive(), second.receive())
            rates = "".join(server.registry.families())
            line = next(each for each in rates.splitlines() if each.startswith("kafka_server_request_request_time{"))
            assert 'client_id="tester"' in line
            elapsed_s = 10.1
            assert float(line.split()[-1]) * elapsed_s == pytest.approx(10, rel=0.05), "100 ms of handlers are 10 %s"

    run(scenario())
