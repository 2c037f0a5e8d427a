"""Very large frames are received and freed in steps of the loop. Bytes and steps are counted, not milliseconds.

Over SASL_SSL, the loop decrypts before it gives bytes to the connection: the same bounds hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import struct
from mmap import mmap

import uvloop

from klamm.model import SecurityProtocol
from klamm.network import RequestContext
from klamm.protocol.chunked import FREED_BYTES
from klamm.protocol.frames import GROWTH_BYTES, MAPPED_BYTES
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from klamm.security.tls.contexts import TlsSettings, client_context
from tests.support.secured_attacks import log_in
from tests.unit.network.harness import ScriptedApi, Server, frame, heartbeat_api, until
from tests.unit.network.secured_harness import AUTHORITY, SecuredServer, plain_and_secured
from tests.unit.security.sasl_peer import PASSWORDS

LARGE_BYTES = 5 * FREED_BYTES
RECORD_BYTES = 1 << 14


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


def connected(port: int, protocol: SecurityProtocol) -> socket.socket:
    """A blocking connection with much room for bytes that the broker has not read."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE_BYTES)
    peer.connect(("127.0.0.1", port))
    if protocol is SecurityProtocol.PLAINTEXT:
        return peer
    secured = client_context(TlsSettings(trusted=AUTHORITY.pem)).wrap_socket(peer, server_hostname="localhost")
    log_in(secured, "alice", PASSWORDS["alice"])
    return secured


def fill(peer: socket.socket, body: bytes) -> int:
    """Send without waiting until the socket is full, and return how many bytes it took."""
    peer.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
        while sent < len(body):
            sent += peer.send(body[sent : sent + RECORD_BYTES])
    return sent


@plain_and_secured
def test_one_turn_of_the_loop_reads_little_of_a_large_frame(protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        async with SecuredServer(protocol) as server:
            connections = server.network.acceptors[0].processor.connections
            with await asyncio.to_thread(connected, server.port, protocol) as peer:
                await until(lambda: len(connections) == 1)
                body = struct.pack(">i", LARGE_BYTES) + bytes(LARGE_BYTES)
                sent = fill(peer, body)  # The loop does not turn meanwhile: all of it waits in the socket.
                assert sent > 2 * GROWTH_BYTES, "the system gives sockets too little memory for this test"
                received = [0]
                while received[-1] < sent - 4:
                    await asyncio.sleep(0)
                    received.append(next(iter(connections))._reader.pending_bytes)
                turns = [after - before for before, after in itertools.pairwise(received)]
                assert max(turns) <= 2 * GROWTH_BYTES

    uvloop.run(scenario())


@plain_and_secured
def test_the_pages_of_a_frame_are_freed_in_steps_after_its_request(protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        kept = Kept()
        api = ScriptedApi(SyncGroupRequest, SyncGroupResponse, kept.keep)
        api.asked = NoList()
        async with SecuredServer(protocol, api) as server:
            client = await server.user()
            watching = asyncio.create_task(kept.watch())
            client.writer.write(sync(LARGE_BYTES))
            await client.receive()
            await watching
            steps = [before - after for before, after in zip(kept.sizes, kept.sizes[1:], strict=False)]
            assert max(steps) <= 4 * FREED_BYTES
            assert kept.sizes[-1] <= FREED_BYTES

    uvloop.run(scenario())


@plain_and_secured
def test_an_unfinished_frame_of_a_closed_connection_is_freed_in_steps(protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        async with SecuredServer(protocol) as server:
            connections = server.network.acceptors[0].processor.connections
            client = await server.user()
            client.writer.write(sync(LARGE_BYTES)[:-1])
            await until(
                lambda: connections and next(iter(connections))._reader.pending_bytes > LARGE_BYTES - FREED_BYTES
            )
            reader = next(iter(connections))._reader
            kept = Kept()
            assert isinstance(reader._large, mmap)
            kept.pages = reader._large
            await asyncio.gather(kept.watch(), client.close())
            assert len(set(kept.sizes)) > LARGE_BYTES // FREED_BYTES - 2
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
