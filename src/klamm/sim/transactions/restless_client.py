"""A client that soon gives up waiting for an answer and repeats its request over another connection.

The connection that it gave up is closed at once or left open, and its request may arrive long after its repetition.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from klamm.client.asyncio_connection import BrokerConnection
from klamm.protocol.wire import Message
from klamm.sim.clients import Client

IMPATIENT_MS: Final = 200
_REST_S: Final = (0.01, 0.08)
_OPEN_MS: Final = 8_000
"""How long an abandoned connection may stay open."""


class RestlessClient(Client):
    abandoned = 0
    """Connections that it gave up while they owed an answer."""

    async def ask(self, broker_id: int, request: Message, version: int, *, timeout_ms: int = IMPATIENT_MS) -> Any:
        connection = await self._connection(broker_id, timeout_ms)
        answer = connection.send(request, version, timeout_ms=_OPEN_MS)
        answer.add_done_callback(_retrieve)
        await asyncio.wait({answer}, timeout=timeout_ms / 1000)
        if answer.done():
            return answer.result()
        self._abandon(broker_id, connection)
        raise TimeoutError(f"{self.name} has no answer of broker {broker_id}")

    async def rest(self) -> None:
        await asyncio.sleep(self.rng.uniform(*_REST_S))

    def is_connected(self, broker_id: int) -> bool:
        """Whether the connection that was used last is open."""
        connection = self._connections.get(broker_id)
        return connection is not None and not connection.is_closed

    def close(self) -> None:
        """Close all connections; requests under way fail."""
        for connection in self._connections.values():
            connection.close()

    def _abandon(self, broker_id: int, connection: BrokerConnection) -> None:
        self.abandoned += 1
        if self._connections.get(broker_id) is connection:
            del self._connections[broker_id]
        if self.rng.random() < 0.5:
            connection.close()


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """An answer that nobody waits for may fail."""
    if not answer.cancelled():
        answer.exception()
