"""Control requests that take several turns of the loop, while there is always more data than handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from klamm.network import RequestContext, SocketServerConfig
from klamm.network.connection import MAX_IN_FLIGHT
from klamm.network.request_handler import CONTROL_ROUNDS
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from tests.unit.network.harness import (
    Answer,
    ManualClock,
    RawClient,
    Server,
    api_versions_api,
    both_loops,
    control_api,
    heartbeat,
    heartbeat_api,
    numbers,
    until,
)

Run = Callable[[Any], None]
CLIENTS = 20
STEPS = 10


class TickingClock(ManualClock):
    """Every reading is a tenth of a millisecond later: after eight requests no turn is young enough to continue."""

    def monotonic(self) -> float:
        self.seconds += 0.0001
        return self.seconds


async def queued(server: Server) -> list[RawClient]:
    """Clients with all the requests that they may have in the broker, none of them handled."""
    server.accept_without_handlers()
    clients = [await server.client() for _ in range(CLIENTS)]
    for client in clients:
        for number in range(MAX_IN_FLIGHT):
            client.send(heartbeat(number))
    await until(lambda: server.value("RequestChannel", "RequestQueueSize") == CLIENTS * MAX_IN_FLIGHT)
    return clients


async def ask_control(server: Server) -> RawClient:
    controller = await server.client()
    controller.send(ControlledShutdownRequest(broker_id=1))
    await until(lambda: server.value("RequestChannel", "ControlPlaneRequestQueueSize") == 1)
    return controller


@both_loops
def test_a_control_request_of_many_steps_does_not_wait_for_data_at_each(run: Run) -> None:
    async def scenario() -> None:
        data, control = heartbeat_api(), control_api()
        handled_meanwhile: list[int] = []

        async def in_steps() -> ControlledShutdownResponse:
            for _ in range(CONTROL_ROUNDS):
                await asyncio.sleep(0)
            handled_meanwhile.append(len(data.asked))
            return ControlledShutdownResponse(error_code=0, remaining_partitions=[])

        def script(_: RequestContext, request: ControlledShutdownRequest) -> Answer:
            return asyncio.get_running_loop().create_task(in_steps())

        control.script = script
        async with Server(data, control, clock=TickingClock(), started=False) as server:
            clients = await queued(server)
            controller = await ask_control(server)
            server.network.handler_pool.start()
            await controller.receive()
            assert handled_meanwhile[0] <= 2 * server.network.handler_pool.size
            for client in clients:
                assert [(await client.receive_heartbeat())[1] for _ in range(MAX_IN_FLIGHT)] == [*range(MAX_IN_FLIGHT)]

    run(scenario())


@both_loops
def test_data_has_its_turn_after_each_long_step_of_a_control_request(run: Run) -> None:
    async def scenario() -> None:
        data, control, clock = heartbeat_api(), control_api(), TickingClock()
        handled_meanwhile: list[int] = []

        async def in_long_steps() -> ControlledShutdownResponse:
            for _ in range(STEPS):
                clock.seconds += 0.005
                await asyncio.sleep(0)
            handled_meanwhile.append(len(data.asked))
            return ControlledShutdownResponse(error_code=0, remaining_partitions=[])

        def script(_: RequestContext, request: ControlledShutdownRequest) -> Answer:
            return asyncio.get_running_loop().create_task(in_long_steps())

        control.script = script
        async with Server(data, control, clock=clock, started=False) as server:
            await queued(server)
            controller = await ask_control(server)
            server.network.handler_pool.start()
            await controller.receive()
            assert handled_meanwhile[0] >= (STEPS - 2) * server.network.handler_pool.size

    run(scenario())


@both_loops
def test_versions_and_control_requests_are_answered_while_the_data_plane_is_closed(run: Run) -> None:
    """Even if requests that wait for it hold all the memory that there may be."""

    async def scenario() -> None:
        data, control, versions = heartbeat_api(), control_api(), api_versions_api()
        config = SocketServerConfig(queued_max_request_bytes=100)
        async with Server(data, control, versions, config=config, started=False) as server:
            server.network.start_processing(data=False)
            asking, controller = await server.client(), await server.client()
            asking.send(ApiVersionsRequest(), 0)
            await asking.receive()
            for number in range(MAX_IN_FLIGHT):
                asking.send(heartbeat(number))
            await until(lambda: server.network.channel.memory_pool.is_depleted)
            controller.send(ControlledShutdownRequest(broker_id=1))
            await controller.receive()
            assert not data.asked
            server.network.open_data_plane()
            for number in range(MAX_IN_FLIGHT):
                assert await asking.receive_heartbeat() == (number + 1, number)

    run(scenario())


@both_loops
def test_data_requests_continue_while_a_control_request_is_not_answered(run: Run) -> None:
    async def scenario() -> None:
        data, control = heartbeat_api(), control_api()
        answer = control.script(None, None)  # type: ignore[arg-type]
        waiting: list[asyncio.Future[Any]] = []

        def script(_: RequestContext, request: ControlledShutdownRequest) -> Answer:
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        control.script = script
        async with Server(data, control, clock=TickingClock(), started=False) as server:
            clients = await queued(server)
            controller = await ask_control(server)
            server.network.handler_pool.start()
            for client in clients:
                for _ in range(MAX_IN_FLIGHT):
                    await client.receive_heartbeat()
            assert len(numbers(data)) == CLIENTS * MAX_IN_FLIGHT
            waiting[0].set_result(answer)
            await controller.receive()

    run(scenario())
