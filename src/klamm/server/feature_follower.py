"""Finds out whether every live broker speaks the repaired protocol of transactions (KIP-890 part 2).

It keeps a connection to each of the others. One that is replaced by another program closes it, and its successor is
asked again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.broker import Broker
from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import outgoing_totals
from klamm.client.patience import FEATURE_QUESTION
from klamm.metadata import MetadataSnapshot, MetadataUpdate
from klamm.model import TransactionVersion
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.protocol.wire import Message
from klamm.server.background_tasks import Spawn

NEEDED: Final[tuple[tuple[type[Message], int], ...]] = (
    (ProduceRequest, 12),
    (AddPartitionsToTxnRequest, 5),
    (EndTxnRequest, 5),
    (WriteTxnMarkersRequest, 2),
    (TxnOffsetCommitRequest, 5),
)
"""The versions that a broker of the repaired protocol serves."""


class FeatureFollower:
    """Lives on the broker loop; writes `broker.features`."""

    def __init__(self, broker: Broker, spawn: Spawn) -> None:
        self._broker = broker
        self._spawn = spawn
        self._following: dict[int, None] = {}
        self._connections: dict[int, BrokerConnection] = {}

    def start(self) -> None:
        features = self._broker.features
        if features.max_version >= TransactionVersion.TV_2:
            features.set_capable(self._broker.id, is_capable=True)
            self._broker.metadata.update_listeners.append(self._on_update)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        live = self._broker.metadata.snapshot.brokers
        if live is before.brokers:
            return
        if self._broker.id in live:
            self._broker.features.set_capable(self._broker.id, is_capable=True)
        self._decide()
        for broker_id in [broker_id for broker_id in self._connections if broker_id not in live]:
            self._disconnect(broker_id)  # if it returns, it is asked again, although its process may be the same
        for broker_id in live:
            if broker_id != self._broker.id and broker_id not in self._following:
                self._following[broker_id] = None
                self._spawn(self._follow(broker_id))

    def _decide(self) -> None:
        live = self._broker.metadata.snapshot.brokers
        self._broker.features.decide(live.keys(), self._broker.clock.now_ms())

    async def _follow(self, broker_id: int) -> None:
        """Ask the broker, and again whenever its connection has ended, while it is alive."""
        try:
            while self._broker.metadata.has_alive_broker(broker_id):
                connection = await self._ask(broker_id)
                self._decide()
                if connection is not None:
                    await connection.closed
                else:
                    await asyncio.sleep(FEATURE_QUESTION.pause_s())
        finally:
            self._following.pop(broker_id, None)
            self._disconnect(broker_id)

    async def _ask(self, broker_id: int) -> BrokerConnection | None:
        """Return a connection to a broker that is capable; None if it is not, or cannot be asked.

        A broker that does not answer keeps its last verdict: it leads nothing before it is reachable again.
        """
        config = self._broker.config
        endpoint = self._broker.metadata.endpoint(broker_id, config.inter_broker_listener)
        self._disconnect(broker_id)
        if endpoint is None:
            return None
        try:
            connection = await BrokerConnection.connect(
                endpoint.host,
                endpoint.port,
                timeout_ms=config.request_timeout_ms,
                client_id=f"broker-{self._broker.id}-features",
                request_timeout_ms=config.request_timeout_ms,
                security=self._broker.outgoing.of(config.inter_broker_listener),
                totals=outgoing_totals(self._broker.metrics, "features", broker_id),
            )
            self._connections[broker_id] = connection
            ranges = (await connection.api_versions()).ranges
        except OSError:
            return None
        is_capable = all(ranges.get(request.KEY, (0, -1))[1] >= version for request, version in NEEDED)
        self._broker.features.set_capable(broker_id, is_capable=is_capable)
        return connection if is_capable else None

    def _disconnect(self, broker_id: int) -> None:
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()
