"""Connects the transaction coordinator to a broker: its event loop, replicas, metadata, metrics and network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field, replace

from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import outgoing_totals
from klamm.clock import Clock
from klamm.config import KafkaConfig
from klamm.coordinator.broker_adapters import (
    AppendRecords,
    AppendTransactional,
    LoopScheduler,
    ReplicaOffsetsLog,
    Replicas,
    confirmed_within_ms,
)
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.transaction.marker_sender import Connect, TransactionMarkerSender
from klamm.coordinator.transaction.transaction_completions import TransactionCompletions
from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from klamm.coordinator.transaction.transaction_markers import Destination, Locate
from klamm.coordinator.transaction.transaction_metadata import MAX_PRODUCER_EPOCH
from klamm.coordinator.transaction.transaction_metrics import TransactionMetrics
from klamm.coordinator.transaction.transaction_state_manager import TransactionStateManager
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import TRANSACTION_STATE_TOPIC, ConnectionOrder, TopicPartition, TransactionVersion
from klamm.security.outgoing import OutgoingSecurity

Generated = int | ErrorCode
GenerateProducerId = Callable[[], "Generated | asyncio.Future[Generated]"]


@lazy_dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of a broker that its transaction coordinator uses.

    `version` is the level of `transaction.version`, `last_connection` the number of the youngest connection.
    """

    id: int
    replicas: Replicas
    append_records: AppendRecords
    append_transactional: AppendTransactional
    metadata: MetadataCache
    clock: Clock
    loop: asyncio.AbstractEventLoop
    metrics: MetricsRegistry
    generate_producer_id: GenerateProducerId
    version: Callable[[], TransactionVersion]
    last_connection: Callable[[], ConnectionOrder]
    max_producer_epoch: int = MAX_PRODUCER_EPOCH
    outgoing: OutgoingSecurity = field(default_factory=OutgoingSecurity)


def create_transaction_coordinator(
    config: KafkaConfig, parts: BrokerParts
) -> tuple[TransactionCoordinator, TransactionMarkerSender]:
    """The coordinator of a broker; it follows leadership changes. The broker calls `startup()` and `shutdown()`."""
    settings = replace(TransactionConfig.from_kafka(config), max_producer_epoch=parts.max_producer_epoch)
    scheduler = LoopScheduler(parts.loop, parts.clock)
    metrics = TransactionMetrics(parts.metrics)
    metadata = parts.metadata
    sender = TransactionMarkerSender(_connect_by_metadata(config, parts), parts.loop)
    within_ms = confirmed_within_ms(config)
    manager = TransactionStateManager(
        ReplicaOffsetsLog(parts.replicas, parts.append_records, within_ms, TRANSACTION_STATE_TOPIC, is_prompt=True),
        parts.clock,
        settings,
        scheduler,
        metrics,
        lambda: metadata.partition_count(TRANSACTION_STATE_TOPIC),
        parts.version,
        parts.last_connection,
    )
    locate = locate_by_metadata(metadata, lambda: parts.replicas.controller_epoch)
    completions = TransactionCompletions(manager, scheduler, parts.clock, locate, sender.wake, settings.max_wait_ms)
    sender.start(completions.markers)
    coordinator = TransactionCoordinator(
        manager, completions, settings, scheduler, metrics, lambda: _deferred(parts.generate_producer_id())
    )
    scheduler.start(coordinator.advance)
    parts.replicas.leadership_listeners.append(coordinator.on_leadership_change)
    return coordinator, sender


def _deferred(generated: Generated | asyncio.Future[Generated]) -> Deferred[Generated]:
    if not isinstance(generated, asyncio.Future):
        return Deferred.of(generated)
    deferred: Deferred[Generated] = Deferred()

    def on_done(done: asyncio.Future[Generated]) -> None:
        is_failed = done.cancelled() or done.exception() is not None
        deferred.complete(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_failed else done.result())

    generated.add_done_callback(on_done)
    return deferred


def locate_by_metadata(metadata: MetadataCache, controller_epoch: Callable[[], int]) -> Locate:
    """Find the leader of a partition in the metadata.

    A broker that starts leads before its metadata arrives. A partition that the metadata does not have was deleted only
    if the metadata is complete and comes from the controller whose requests made this broker lead.
    """

    def locate(tp: TopicPartition) -> int | Destination:
        snapshot = metadata.snapshot
        state = snapshot.partition(*tp)
        if state is None:
            is_deleted = metadata.knows_all_partitions(controller_epoch())
            return Destination.DELETED if is_deleted else Destination.UNKNOWN
        return state.leader if snapshot.has_alive_broker(state.leader) else Destination.UNKNOWN

    return locate


def _connect_by_metadata(config: KafkaConfig, parts: BrokerParts) -> Connect:
    listener, timeout_ms = config.inter_broker_listener, config.request_timeout_ms

    async def connect(broker_id: int) -> BrokerConnection:
        endpoint = parts.metadata.endpoint(broker_id, listener)
        if endpoint is None:
            raise ConnectionError(f"the metadata has no address of broker {broker_id} for {listener}")
        return await BrokerConnection.connect(
            endpoint.host,
            endpoint.port,
            timeout_ms=timeout_ms,
            client_id=f"broker-{parts.id}-txn-marker-sender",
            request_timeout_ms=timeout_ms,
            security=parts.outgoing.of(listener),
            totals=outgoing_totals(parts.metrics, "txn-marker", broker_id),
        )

    return connect
