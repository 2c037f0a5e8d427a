"""Control requests that take several turns of the loop, while there is always more data than handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from klamm.network import RequestContext
from klamm.network.connection import MAX_IN_FLIGHT
from klamm.network.request_handler import CONTROL_ROUNDS
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from tests.unit.network.harness import (
    Answer,
    ManualClock,
    RawClient,
    Server,
    both_loops,
    control_api,
    heartbeat,
    heartbeat_api,
    numbers,
    until,
)

Run = Callable[[Any], None]
CLIENTS = 20


class TickingClock(ManualClock):
    """Every reading is a millisecond later: no turn goes on because it is young."""

    def monotonic(self) -> float:
        self.seconds += 0.001
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
def test_data_goes_on_while_a_control_request_is_not_answered(run: Run) -> None:
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
