"""Faults of the simulated network that transactions need: late requests of abandoned connections, and lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from klamm.protocol.frames import decode_request_header
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.wire import encode
from klamm.sim.loop import SimLoop, SimProcess
from klamm.sim.network import Network, is_request
from klamm.sim.transactions.repeated_requests import RepeatedRequests
from klamm.sim.transactions.restless_client import RestlessClient

REQUEST = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
IS_MEANT = is_request(HeartbeatRequest.KEY)


class Server(asyncio.Protocol):
    """Notes the connection of every request, and answers. A request arrives in two parts."""

    def __init__(self, number: int, arrived: list[int]) -> None:
        self._number = number
        self._arrived = arrived
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + int.from_bytes(self._data[:4], "big"):
            size = 4 + int.from_bytes(self._data[:4], "big")
            header, _ = decode_request_header(self._data, 4)
            self._data = self._data[size:]
            self._arrived.append(self._number)
            body = b"".join(map(bytes, encode(HeartbeatResponse(error_code=0), 0)))
            self._transport.write((len(body) + 4).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big") + body)


def run(scenario: Callable[[Network, RestlessClient], Coroutine[Any, Any, None]], seed: int) -> list[int]:
    """Return the numbers of the connections in the order in which their requests arrived."""
    loop = SimLoop(seed)
    network = loop.network = Network(loop)
    arrived: list[int] = []
    connections = iter(range(1, 100))
    process = SimProcess("client", "client")

    async def main() -> None:
        network.listen("b1", 9092, lambda: Server(next(connections), arrived))
        client = RestlessClient("client", {1: ("b1", 9092)}, Random(seed))
        await loop.spawn(process, scenario(network, client))
        await asyncio.sleep(20)

    loop.run_until_complete(main())
    process.kill()
    process.bury()
    loop.close()
    return arrived


@pytest.mark.parametrize("seed", range(4))
def test_a_held_request_arrives_after_its_repetition(seed: int) -> None:
    """Whether the client closes the connection that it gave up, or leaves it open."""

    async def scenario(network: Network, client: RestlessClient) -> None:
        network.hold("client", "b1", IS_MEANT, until_s=5.0)
        with pytest.raises(TimeoutError):
            await client.ask(1, REQUEST, 0)
        assert client.abandoned == 1
        assert (await client.ask(1, REQUEST, 0)).error_code == 0
        assert (await client.ask(1, REQUEST, 0)).error_code == 0

    assert run(scenario, seed) == [2, 2, 1]


def test_a_lost_answer_ends_the_connection() -> None:
    async def scenario(network: Network, client: RestlessClient) -> None:
        network.lose_answer("client", "b1", IS_MEANT)
        with pytest.raises(ConnectionError):
            await client.ask(1, REQUEST, 0)
        assert (await client.ask(1, REQUEST, 0)).error_code == 0
        assert network.replies_lost == 1

    assert run(scenario, 1) == [1, 2]


def test_senders_are_observed() -> None:
    seen: list[tuple[str, str]] = []

    async def scenario(network: Network, client: RestlessClient) -> None:
        network.on_sent = lambda source, target, data: seen.append((source, target)) if IS_MEANT(data) else None
        await client.ask(1, REQUEST, 0)

    assert run(scenario, 1) == [1]
    assert seen == [("client", "b1")]


@pytest.mark.parametrize("seed", range(4))
def test_a_request_that_arrives_after_its_repetition_is_counted_once(seed: int) -> None:
    counters: list[RepeatedRequests] = []

    async def scenario(network: Network, client: RestlessClient) -> None:
        counters.append(RepeatedRequests(network, [HeartbeatRequest.KEY]))
        network.hold("client", "b1", IS_MEANT, until_s=5.0)
        with pytest.raises(TimeoutError):
            await client.ask(1, REQUEST, 0)
        await client.ask(1, REQUEST, 0)
        await client.ask(1, REQUEST, 0)  # Another request with the same bytes, on the same connection.
        assert counters[0].count == 0

    assert run(scenario, seed) == [2, 2, 1]
    assert counters[0].count == 1


def test_a_repetition_after_its_request_is_not_counted() -> None:
    """The answer was lost, or the first request never arrived: the order is right."""
    counters: list[RepeatedRequests] = []

    async def scenario(network: Network, client: RestlessClient) -> None:
        counters.append(RepeatedRequests(network, [HeartbeatRequest.KEY]))
        network.lose_answer("client", "b1", IS_MEANT)
        with pytest.raises(ConnectionError):
            await client.ask(1, REQUEST, 0)
        await client.ask(1, REQUEST, 0)

    assert run(scenario, 1) == [1, 2]
    assert counters[0].count == 0
