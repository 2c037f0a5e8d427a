"""The broker's channel to the controller: finds it, negotiates versions, and follows it when it moves.

Kafka's BrokerToControllerChannelManager. Every purpose has its own channel: an ISR change never waits behind a topic
creation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import ConnectionTotals, outgoing_totals
from klamm.client.patience import CONTROLLER_CHANNEL
from klamm.config import KafkaConfig
from klamm.errors import ErrorCode
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.protocol.wire import Message
from klamm.security.outgoing import OutgoingSecurity

log = logging.getLogger(__name__)


class ControllerChannel:
    """Lives on the broker loop. The controller's address is the one the metadata gives now, through `listener`."""

    def __init__(
        self,
        metadata: MetadataCache,
        listener: str,
        *,
        name: str,
        loop: asyncio.AbstractEventLoop,
        timeout_ms: int,
        outgoing: OutgoingSecurity | None = None,
        totals: Callable[[int], ConnectionTotals] = lambda _: ConnectionTotals(),
    ) -> None:
        """`totals` returns those of the channel's connections to a broker."""
        self._outgoing = outgoing if outgoing is not None else OutgoingSecurity()
        self._totals = totals
        self._metadata = metadata
        self._listener = listener
        self._name = name
        self._loop = loop
        self._timeout_ms = timeout_ms
        self._opening: asyncio.Task[BrokerConnection] | None = None
        self._endpoint: EndPoint | None = None

    async def send(self, request: Message, max_version: int, timeout_ms: int | None = None) -> Any:
        """Return the controller's answer, in the highest common version up to `max_version`.

        Retries while there is no controller, it is unreachable, or the broker is not the controller. Raises
        TimeoutError after `timeout_ms`.
        """
        deadline = self._loop.time() + (self._timeout_ms if timeout_ms is None else timeout_ms) / 1000
        problem = "there is none"
        while (remaining := deadline - self._loop.time()) > 0:
            try:
                async with asyncio.timeout(remaining):
                    response = await self._ask(request, max_version)
            except OSError as failure:
                problem = str(failure) or "it does not answer"
                self._disconnect()
            else:
                if not is_refusal(response):
                    return response
                problem = "it has moved"
                self._disconnect()
            await asyncio.sleep(CONTROLLER_CHANNEL.pause_s())
        raise TimeoutError(f"the controller could not be asked: {problem}")

    async def close(self) -> None:
        self._disconnect()

    async def _ask(self, request: Message, max_version: int) -> Any:
        connection = await self._connected()
        version = await connection.highest_version(type(request), max_version)
        return await connection.send(request, version)

    async def _connected(self) -> BrokerConnection:
        """Return the open connection, or a new one; callers that arrive while it is being opened wait for it."""
        snapshot = self._metadata.snapshot
        endpoint = snapshot.endpoint(snapshot.controller_id, self._listener)
        if endpoint is None:
            raise ConnectionError("the metadata names no controller")
        if endpoint != self._endpoint or _has_ended(self._opening):
            self._disconnect()
        if self._opening is None:
            self._endpoint = endpoint
            opening = BrokerConnection.connect(
                endpoint.host,
                endpoint.port,
                client_id=self._name,
                request_timeout_ms=self._timeout_ms,
                security=self._outgoing.of(self._listener),
                totals=self._totals(snapshot.controller_id),
            )
            self._opening = self._loop.create_task(opening, name=f"{self._name}-connect")
        return await asyncio.shield(self._opening)

    def _disconnect(self) -> None:
        opening, self._opening, self._endpoint = self._opening, None, None
        if opening is not None:
            opening.add_done_callback(_close)
            opening.cancel()


def open_channel(
    purpose: str,
    broker_id: int,
    metadata: MetadataCache,
    config: KafkaConfig,
    loop: asyncio.AbstractEventLoop,
    outgoing: OutgoingSecurity,
    metrics: MetricsRegistry,
) -> ControllerChannel:
    """Return a broker's channel for one purpose. It connects when it is used."""
    return ControllerChannel(
        metadata,
        config.inter_broker_listener,
        name=f"broker-{broker_id}-{purpose}",
        loop=loop,
        timeout_ms=config.controller_socket_timeout_ms,
        outgoing=outgoing,
        totals=partial(outgoing_totals, metrics, purpose),
    )


def _has_ended(opening: asyncio.Task[BrokerConnection] | None) -> bool:
    if opening is None or not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().is_closed


def _close(opening: asyncio.Task[BrokerConnection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def is_refusal(response: Any) -> bool:
    """Return whether the broker answered that it is not the controller, for the request or for all of its topics."""
    if getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
        return True
    topics = getattr(response, "topics", ())
    codes = {getattr(topic, "error_code", ErrorCode.NONE) for topic in topics}
    return codes == {ErrorCode.NOT_CONTROLLER}
