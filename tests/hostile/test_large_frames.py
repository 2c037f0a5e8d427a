"""Very large frames are received and freed in steps of the loop. Bytes and steps are counted, not milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from mmap import mmap

import uvloop

from klamm.network import RequestContext
from klamm.protocol.chunked import FREED_BYTES
from klamm.protocol.frames import GROWTH_BYTES, MAPPED_BYTES
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.unit.network.harness import ScriptedApi, Server, frame, heartbeat_api, until

LARGE_BYTES = 5 * FREED_BYTES


class Kept:
    """The pages of a request's frame, and how large they were in each turn of the loop."""

    def __init__(self) -> None:
        self.pages: mmap | None = None
        self.sizes: list[int] = []

    def keep(self, _: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
        view = memoryview(request.assignments[0].assignment)
        assert isinstance(view.obj, mmap)
        self.pages = view.obj
        return SyncGroupResponse(error_code=0, assignment=b"")

    async def watch(self) -> None:
        """Note the size in every turn of the loop, until all pages but the last part are gone."""
        while self.pages is None:  # noqa: ASYNC110 - no turn may be missed
            await asyncio.sleep(0)
        while not self.sizes or self.sizes[-1] > FREED_BYTES:
            self.sizes.append(len(self.pages))
            await asyncio.sleep(0)


def sync(size_bytes: int) -> bytes:
    assignment = SyncGroupRequestAssignment(member_id="m", assignment=b"a" * size_bytes)
    return frame(SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[assignment]), 3)


def test_one_turn_of_the_loop_reads_little_of_a_large_frame() -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            connections = server.network.acceptors[0].processor.connections
            with socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE_BYTES)
                peer.connect(("127.0.0.1", server.port))
                peer.setblocking(False)
                await until(lambda: len(connections) == 1)
                body = struct.pack(">i", LARGE_BYTES) + bytes(LARGE_BYTES)
                waiting = sent = peer.send(body)  # The loop does not turn meanwhile: all of it waits in the socket.
                assert waiting > 2 * GROWTH_BYTES, "the system gives sockets too little memory for this test"
                received = [0]
                while received[-1] < sent - 4:
                    await asyncio.sleep(0)
                    received.append(next(iter(connections)).unfinished_bytes)
                turns = [after - before for before, after in itertools.pairwise(received)]
                assert max(turns) <= 2 * GROWTH_BYTES

    uvloop.run(scenario())


def test_the_pages_of_a_frame_are_freed_in_steps_after_its_request() -> None:
    async def scenario() -> None:
        kept = Kept()
        api = ScriptedApi(SyncGroupRequest, SyncGroupResponse, kept.keep)
        api.asked = NoList()
        async with Server(api) as server:
            client = await server.client()
            watching = asyncio.create_task(kept.watch())
            client.writer.write(sync(LARGE_BYTES))
            await client.receive()
            await watching
            steps = [before - after for before, after in zip(kept.sizes, kept.sizes[1:], strict=False)]
            assert max(steps) <= 4 * FREED_BYTES
            assert kept.sizes[-1] <= FREED_BYTES

    uvloop.run(scenario())


def test_an_unfinished_frame_of_a_closed_connection_is_freed_in_steps() -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            connections = server.network.acceptors[0].processor.connections
            client = await server.client()
            client.writer.write(sync(LARGE_BYTES)[:-1])
            await until(lambda: connections and next(iter(connections)).unfinished_bytes > LARGE_BYTES - FREED_BYTES)
            reader = next(iter(connections))._reader
            kept = Kept()
            assert isinstance(reader._large, mmap)
            kept.pages = reader._large
            await client.close()
            await kept.watch()
            assert len(kept.sizes) > LARGE_BYTES // FREED_BYTES - 2
            assert server.network.channel.unfinished.total_bytes == 0

    uvloop.run(scenario())


def test_an_announced_size_is_not_counted_before_its_bytes_arrive() -> None:
    async def scenario() -> None:
        async with Server(heartbeat_api()) as server:
            unfinished = server.network.channel.unfinished
            client = await server.client()
            client.writer.write(struct.pack(">i", 10 * MAPPED_BYTES) + bytes(100_000))
            await until(lambda: unfinished.total_bytes)
            assert unfinished.total_bytes == GROWTH_BYTES

    uvloop.run(scenario())


class NoList(list[object]):
    """Forgets: a request that is kept would keep the pages of its frame."""

    def append(self, _: object) -> None:
        pass
