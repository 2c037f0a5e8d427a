"""Sends markers to partition leaders over the network, this broker included: one request in flight per broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from klamm.coordinator.transaction.transaction_markers import MarkerBatch, TransactionMarkers
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from klamm.protocol.wire import Message

_log = logging.getLogger("klamm.coordinator.transaction")


class MarkerConnection(Protocol):
    """A BrokerConnection."""

    @property
    def is_closed(self) -> bool: ...

    async def highest_version(self, request: type[Message], limit: int | None = None) -> int: ...

    def send(self, request: Message, version: int) -> asyncio.Future[Any]: ...

    def close(self) -> None: ...


Connect = Callable[[int], Awaitable[MarkerConnection]]


class TransactionMarkerSender:
    """Lives on the broker loop. A broker has a task only while it has markers to receive; its connection stays."""

    def __init__(self, connect: Connect, loop: asyncio.AbstractEventLoop) -> None:
        self._connect = connect
        self._loop = loop
        self._markers: TransactionMarkers | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, MarkerConnection] = {}

    def start(self, markers: TransactionMarkers) -> None:
        self._markers = markers

    def wake(self, broker_id: int) -> None:
        """Send what waits for the broker, unless its task does so already."""
        if self._markers is not None and broker_id not in self._tasks:
            sending, name = self._run(broker_id, self._markers), f"txn-marker-sender-{broker_id}"
            self._tasks[broker_id] = self._loop.create_task(sending, name=name)

    async def close(self) -> None:
        self._markers = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _run(self, broker_id: int, markers: TransactionMarkers) -> None:
        try:
            while (batch := markers.take(broker_id)) is not None:
                try:
                    errors = _errors(await self._send(batch))
                except Exception as error:
                    if isinstance(error, OSError):
                        _log.info("sending WriteTxnMarkers to broker %d failed: %s", broker_id, error)
                    else:  # A bug. Without its markers the transaction would never end.
                        _log.exception("sending WriteTxnMarkers to broker %d failed, trying again", broker_id)
                    self._disconnect(broker_id)
                    markers.on_failure(batch)
                else:
                    for part in batch.parts():
                        markers.on_response(part, errors)
                        await asyncio.sleep(0)
        finally:
            del self._tasks[broker_id]  # before anything else runs: the next marker wakes a new task

    async def _send(self, batch: MarkerBatch) -> WriteTxnMarkersResponse:
        connection = self._connections.get(batch.broker_id)
        if connection is None or connection.is_closed:
            connection = self._connections[batch.broker_id] = await self._connect(batch.broker_id)
        version = await connection.highest_version(WriteTxnMarkersRequest)
        response: WriteTxnMarkersResponse = await connection.send(_request(batch), version)
        return response

    def _disconnect(self, broker_id: int) -> None:
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()


def _request(batch: MarkerBatch) -> WriteTxnMarkersRequest:
    markers = []
    for completion, partitions in batch.entries.values():
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        markers.append(
            WritableTxnMarker(
                producer_id=completion.value.producer_id,
                producer_epoch=completion.value.producer_epoch,
                transaction_result=completion.commit,
                topics=[WritableTxnMarkerTopic(name=name, partition_indexes=each) for name, each in topics.items()],
                coordinator_epoch=completion.partition.coordinator_epoch,
                transaction_version=completion.value.client_version,
            )
        )
    return WriteTxnMarkersRequest(markers=markers)


def _errors(response: WriteTxnMarkersResponse) -> dict[int, dict[TopicPartition, ErrorCode]]:
    return {
        marker.producer_id: {
            TopicPartition(topic.name, partition.partition_index): ErrorCode.of(partition.error_code)
            for topic in marker.topics
            for partition in topic.partitions
        }
        for marker in response.markers
    }
