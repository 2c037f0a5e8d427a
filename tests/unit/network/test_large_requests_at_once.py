"""Large requests with many elements grow when they are decoded, so few of them are decoded at once."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from klamm.network import RequestContext
from klamm.network.sliced_work import LARGE_BYTES, MAX_LARGE_BYTES, MAX_RUNNING
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tests.unit.network.harness import RawClient, ScriptedApi, Server, until

NAME_BYTES = 1_000


def request_of(size_bytes: int) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=["g" * NAME_BYTES] * (size_bytes // NAME_BYTES))


class Counted:
    """Handles requests in slices until they may end; counts those that are in progress."""

    def __init__(self) -> None:
        self.in_progress: list[int] = []
        self.may_end = False
        self.most_bytes = 0

    def __call__(self, _: RequestContext, request: DeleteGroupsRequest) -> Any:
        return self._handle(len(request.groups_names) * NAME_BYTES)

    def _handle(self, size_bytes: int) -> Generator[None, None, DeleteGroupsResponse]:
        self.in_progress.append(size_bytes)
        self.most_bytes = max(self.most_bytes, sum(self.in_progress))
        while not self.may_end:
            yield
        self.in_progress.remove(size_bytes)
        return DeleteGroupsResponse(results=[])


async def send(server: Server, size_bytes: int) -> RawClient:
    client = await server.client()
    client.send(request_of(size_bytes), 0)
    return client


def test_large_requests_are_decoded_up_to_a_total_size() -> None:
    async def scenario() -> None:
        handle = Counted()
        async with Server(ScriptedApi(DeleteGroupsRequest, DeleteGroupsResponse, handle)) as server:
            large = [await send(server, MAX_LARGE_BYTES // 2 - LARGE_BYTES) for _ in range(4)]
            await until(lambda: len(handle.in_progress) == 2)
            small = await send(server, LARGE_BYTES // 2)
            await until(lambda: len(handle.in_progress) == 3)  # it does not wait for the large ones
            handle.may_end = True
            for client in (small, *large):
                await client.receive()
            assert handle.most_bytes <= MAX_LARGE_BYTES + LARGE_BYTES

    asyncio.run(scenario())


def test_a_larger_request_is_decoded_alone() -> None:
    async def scenario() -> None:
        handle = Counted()
        async with Server(ScriptedApi(DeleteGroupsRequest, DeleteGroupsResponse, handle)) as server:
            sizes = [MAX_LARGE_BYTES + LARGE_BYTES, MAX_LARGE_BYTES + 2 * LARGE_BYTES]
            clients = [await send(server, size) for size in sizes]
            await until(lambda: handle.in_progress)
            handle.may_end = True
            for client in clients:
                await client.receive()
            assert handle.most_bytes <= max(sizes)

    asyncio.run(scenario())


def test_small_requests_run_up_to_their_number() -> None:
    async def scenario() -> None:
        handle = Counted()
        async with Server(ScriptedApi(DeleteGroupsRequest, DeleteGroupsResponse, handle)) as server:
            clients = [await send(server, LARGE_BYTES // 4) for _ in range(MAX_RUNNING)]
            await until(lambda: len(handle.in_progress) == MAX_RUNNING)
            handle.may_end = True
            for client in clients:
                await client.receive()

    asyncio.run(scenario())


class Endless:
    """Clients whose next request comes when one begins, until the awaited one, which is larger, has begun."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self.clients: list[RawClient] = []
        self.is_complete = False
        self.begun_bytes = 0
        self.has_begun = False

    def __call__(self, _: RequestContext, request: DeleteGroupsRequest) -> Any:
        return self._handle(len(request.groups_names) * NAME_BYTES)

    def _handle(self, size_bytes: int) -> Generator[None, None, DeleteGroupsResponse]:
        while not self.is_complete:
            yield
        if size_bytes > self._size_bytes:
            self.has_begun = True
        elif not self.has_begun:
            self.begun_bytes += size_bytes
            self.clients[0].send(request_of(self._size_bytes), 0)
            self.clients.append(self.clients.pop(0))
        yield
        return DeleteGroupsResponse(results=[])


@pytest.mark.parametrize(("size_bytes", "clients"), [(LARGE_BYTES // 4, 16 * MAX_RUNNING), (2 * LARGE_BYTES, 8)])
def test_a_large_request_does_not_wait_for_ever(size_bytes: int, clients: int) -> None:
    """Smaller ones always wait, too. They come first only until they have had as many bytes as it has.

    Then it is decoded, while small ones have the other turns.
    """
    large_bytes = MAX_LARGE_BYTES + LARGE_BYTES

    async def scenario() -> None:
        handle = Endless(size_bytes)
        async with Server(ScriptedApi(DeleteGroupsRequest, DeleteGroupsResponse, handle)) as server:
            handle.clients = [await send(server, size_bytes) for _ in range(clients)]
            in_progress = server.network.handler_pool._sliced
            await until(lambda: len(in_progress) == clients)
            large = await send(server, large_bytes)
            await until(lambda: len(in_progress) > clients)
            handle.is_complete = True
            await until(lambda: handle.has_begun or handle.begun_bytes > 8 * large_bytes)
            assert handle.has_begun
            await large.receive()

    asyncio.run(scenario())
