"""Requests in slices and small requests share the turns of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Any

import pytest

from klamm.network import RequestContext
from klamm.network.connection import MAX_IN_FLIGHT
from klamm.network.request import Request
from klamm.network.request_handler import SHARE_SECONDS, SLICE_SECONDS, KafkaRequestHandlerPool
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from tests.unit.network.harness import (
    Answer,
    ManualClock,
    ScriptedApi,
    Server,
    both_loops,
    echo,
    heartbeat,
    heartbeat_api,
    until,
)

Run = Callable[[Any], None]
TICK_SECONDS = 0.0001
STEPS = 200
PER_SLICE = round(SLICE_SECONDS / TICK_SECONDS)
PER_SHARE = round(SHARE_SECONDS / TICK_SECONDS)
CLIENTS = 50


class TickingClock(ManualClock):
    """Every reading is a tenth of a millisecond later, so this is the time of a step."""

    def monotonic(self) -> float:
        self.seconds += TICK_SECONDS
        return self.seconds


class Stepping:
    """Handles a request in `STEPS` steps, and notes the turn of the loop in which each was taken."""

    def __init__(self) -> None:
        self.turn = 0
        self.turns: list[int] = []

    def __call__(self, _: RequestContext, request: DeleteGroupsRequest) -> Any:
        self._count(asyncio.get_running_loop())
        return self._steps()

    def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        self.turn += 1
        if len(self.turns) < STEPS:
            loop.call_soon(self._count, loop)

    def _steps(self) -> Generator[None, None, DeleteGroupsResponse]:
        for _ in range(STEPS):
            self.turns.append(self.turn)
            yield
        return DeleteGroupsResponse(results=[])


@both_loops
def test_the_loop_runs_after_every_millisecond_of_a_request_in_slices(run: Run) -> None:
    async def scenario() -> None:
        handle = Stepping()
        sliced = ScriptedApi(DeleteGroupsRequest, DeleteGroupsResponse, handle)
        async with Server(sliced, clock=TickingClock()) as server:
            client = await server.client()
            client.send(DeleteGroupsRequest(groups_names=["g"]), 0)
            await client.receive()
            assert len(handle.turns) == STEPS
            assert max(Counter(handle.turns).values()) <= PER_SLICE + 1

    run(scenario())


@both_loops
def test_small_requests_wait_for_the_share_of_requests_in_slices(run: Run) -> None:
    """Neither waits for the end of the other."""

    async def scenario() -> None:
        handle = Stepping()
        sliced = ScriptedApi(DeleteGroupsRequest, DeleteGroupsResponse, handle)
        data = heartbeat_api()
        taken: list[int] = []

        def script(_: RequestContext, request: HeartbeatRequest) -> Answer:
            taken.append(len(handle.turns))
            return echo(request)

        data.script = script
        async with Server(sliced, data, clock=TickingClock(), started=False) as server:
            server.accept_without_handlers()
            clients = [await server.client() for _ in range(CLIENTS)]
            clients[0].send(DeleteGroupsRequest(groups_names=["g"]), 0)
            for client in clients[1:]:
                for number in range(MAX_IN_FLIGHT):
                    client.send(heartbeat(number))
            most = 1 + (CLIENTS - 1) * MAX_IN_FLIGHT
            await until(lambda: server.value("RequestChannel", "RequestQueueSize") == most)
            server.network.handler_pool.start()
            await clients[0].receive()
            waits = [after - before for before, after in pairwise(taken) if before < after < STEPS]
            assert waits and PER_SLICE < max(waits) <= PER_SHARE + PER_SLICE

    run(scenario())


class BrokenStepError(Exception):
    """A bug in a step."""


def breaking() -> Generator[None, None, None]:
    yield
    raise BrokenStepError


@both_loops
@pytest.mark.parametrize("yields", [0, 1])
def test_a_step_that_fails_while_a_request_is_freed_ends_only_its_connection(
    run: Run, yields: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        def script(ctx: RequestContext, request: DeleteGroupsRequest) -> Generator[None, None, DeleteGroupsResponse]:
            ctx.free_in_steps(breaking())
            for _ in range(yields):
                yield
            return DeleteGroupsResponse(results=[])

        sliced = ScriptedApi(DeleteGroupsRequest, DeleteGroupsResponse, script)
        async with Server(sliced, heartbeat_api()) as server:
            client, other = await server.client(), await server.client()
            client.send(DeleteGroupsRequest(groups_names=["g"]), 0)
            await client.receive_end()
            other.send(heartbeat(7))
            assert await other.receive_heartbeat() == (0, 7)
            await until(lambda: len(server.network.acceptors[0].open) == 1)

    run(scenario())
    (failed,) = [record for record in caplog.records if record.exc_info]
    assert "DeleteGroups v0" in failed.getMessage() and failed.exc_info is not None
    assert failed.exc_info[0] is BrokenStepError


@both_loops
def test_frames_whose_decoding_fails_in_a_step_do_not_hold_up_later_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large frame counts as being decoded until its steps have ended."""

    async def scenario() -> None:
        def run_steps(self: KafkaRequestHandlerPool, request: Request, decoding: object) -> Generator[None, None, None]:
            return breaking()

        groups = DeleteGroupsRequest(groups_names=["g" * 30_000] * 40)
        delete = ScriptedApi(
            DeleteGroupsRequest, DeleteGroupsResponse, lambda ctx, request: DeleteGroupsResponse(results=[])
        )
        async with Server(delete) as server:
            with monkeypatch.context() as patch:
                patch.setattr(KafkaRequestHandlerPool, "_handle_large", run_steps)
                clients = [await server.client() for _ in range(3)]
                for client in clients:
                    client.send(groups, 0)
                for client in clients:
                    assert await client.receive_end() == b""
            work = server.network.handler_pool._sliced
            await until(lambda: (work._large_bytes, len(work)) == (0, 0))
            await until(lambda: server.network.channel.memory_pool.used_bytes == 0)
            later = await server.client()
            later.send(groups, 0)
            assert await later.receive()

    run(scenario())
