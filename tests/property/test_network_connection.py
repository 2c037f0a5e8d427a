"""A Connection under any split of its bytes, any order of completion and any pace of its reader."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.clock import SystemClock
from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.network import RequestContext, SocketServer, SocketServerConfig
from klamm.network.connection import MAX_IN_FLIGHT, Connection
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.unit.network.harness import Answer, ScriptedApi, control_api, echo, frame, heartbeat, heartbeat_api


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; `stalls` says at which writes the peer stops reading for a while."""

    def __init__(self, stalls: set[int]) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_reading_now = True
        self.protocol: Connection | None = None
        self._stalls = stalls
        self._writes = 0
        self._closing = False

    def write(self, data: Any) -> None:
        assert not self._closing, "written after close"
        self.written += data
        self._writes += 1
        if self._writes in self._stalls and self.protocol is not None:
            self.protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close


@contextmanager
def connected(
    *apis: ScriptedApi, stalls: set[int]
) -> Iterator[tuple[asyncio.AbstractEventLoop, SocketServer, Connection, Any]]:
    loop = asyncio.new_event_loop()
    try:
        clock = SystemClock()
        server = SocketServer(
            (EndPoint("PLAINTEXT", "127.0.0.1", 0),),
            apis,
            loop=loop,
            clock=clock,
            registry=MetricsRegistry(clock),
            config=SocketServerConfig(num_io_threads=2, queued_max_requests=3, connections_max_idle_ms=-1),
        )
        server.start_processing()
        connection = server.acceptors[0].new_connection()
        transport = MemoryTransport(stalls)
        transport.protocol = connection
        connection.connection_made(transport)
        yield loop, server, connection, transport
    finally:
        loop.close()


def turns(loop: asyncio.AbstractEventLoop, count: int = 1) -> None:
    for _ in range(count):
        loop.run_until_complete(asyncio.sleep(0))


def feed(connection: Connection, data: bytes) -> None:
    buffer = memoryview(connection.get_buffer(-1))
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))


def answers(written: bytes) -> list[int]:
    """The error codes of Heartbeat v1 responses; each response is 14 bytes."""
    assert len(written) % 14 == 0
    return [cast(int, struct.unpack(">iiih", written[at : at + 14])[3]) for at in range(0, len(written), 14)]


KINDS = st.lists(st.sampled_from(["now", "later", "never"]), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(kinds=KINDS, seed=st.integers(0, 2**32), stalls=st.sets(st.integers(1, 10)))
def test_answers_come_once_and_in_order(kinds: list[str], seed: int, stalls: set[int]) -> None:
    rng = random.Random(seed)
    pending: dict[int, asyncio.Future[HeartbeatResponse]] = {}

    def script(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
        number = request.generation_id
        if kinds[number] == "later":
            ctx.reserve_response(1000 * number)
            return pending.setdefault(number, loop.create_future())
        return echo(request) if kinds[number] == "now" else None

    api = heartbeat_api(script)
    with connected(api, stalls=stalls) as (loop, server, connection, transport):
        data = b"".join(frame(heartbeat(n), 1, n) for n in range(len(kinds)))
        expected = [n for n, kind in enumerate(kinds) if kind != "never"]
        while data or len(api.asked) < len(kinds) or len(transport.written) < 14 * len(expected):
            if data and transport.is_reading_now:
                size = rng.randint(1, 200)
                feed(connection, data[:size])
                data = data[size:]
            turns(loop, rng.randint(0, 2))
            assert connection.in_flight <= MAX_IN_FLIGHT
            if pending and rng.random() < 0.7:
                number = rng.choice(sorted(pending))
                pending.pop(number).set_result(HeartbeatResponse(error_code=number))
            if connection.is_write_paused and rng.random() < 0.5:
                connection.resume_writing()
        if connection.is_write_paused:
            assert server.channel.unsent_bytes > 0
            connection.resume_writing()
        assert server.channel.unsent_bytes == 0
        assert answers(bytes(transport.written)) == expected
        assert [r.generation_id for r in api.asked] == list(range(len(kinds)))
        assert not transport.is_closing()


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.binary(min_size=1, max_size=300), max_size=8), lead=st.booleans())
def test_any_bytes_leave_the_loop_alive(pieces: list[bytes], lead: bool) -> None:
    with connected(heartbeat_api(), control_api(), stalls=set()) as (loop, _, connection, transport):
        if lead:
            feed(connection, frame(heartbeat(3), 1, 0))
        for piece in pieces:
            if not transport.is_closing():
                feed(connection, piece)
            turns(loop)
        turns(loop, 5)
        if lead:
            assert answers(bytes(transport.written[:14])) == [3]


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=120), key=st.sampled_from([7, 12, 18, 99]), version=st.integers(-1, 6))
def test_a_hostile_body_closes_or_is_answered(body: bytes, key: int, version: int) -> None:
    with connected(heartbeat_api(), control_api(), stalls=set()) as (loop, _, connection, transport):
        request = struct.pack(">hhi", key, version, 7) + body
        feed(connection, struct.pack(">i", len(request)) + request)
        turns(loop, 5)
        assert transport.is_closing() or transport.written[4:8] == struct.pack(">i", 7)
