"""The timer of idle connections, in virtual time: rounding must not make it spin."""

from __future__ import annotations

import asyncio
from random import Random

from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.network import SocketServer
from klamm.sim.loop import SimLoop


class LoopClock:
    def __init__(self, loop: SimLoop) -> None:
        self.monotonic = loop.time

    def now_ms(self) -> int:
        return 0


def test_the_timer_closes_each_idle_connection_once_and_lets_time_pass() -> None:
    loop = SimLoop(1)
    server = SocketServer(
        [EndPoint("PLAINTEXT", "127.0.0.1", 0)],
        [],
        loop=loop,
        clock=LoopClock(loop),
        registry=MetricsRegistry(LoopClock(loop)),
    )
    acceptor = server.acceptors[0]
    processor = acceptor.processor
    rng = Random(7)

    async def connect() -> None:
        for index in range(200):
            await asyncio.sleep(rng.random())
            connection = acceptor.new_connection()
            connection.index = index
            connection.last_active_at = loop.time()
            processor.add(connection)
        await asyncio.sleep(601)

    loop.run_until_complete(connect())
    assert processor.expired_connections_killed == 200
    processor.shutdown()
    loop.close()
