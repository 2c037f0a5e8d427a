"""Makes the owners of a broker's state and puts them side by side. Nothing runs yet."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from klamm.broker import Acls, Broker, Registration, TopicCreation
from klamm.config import ConfigRepository
from klamm.controller.controller_runner import ControllerRunner
from klamm.coordinator.transaction.transaction_feature import TransactionFeature
from klamm.coordinator.transaction.transaction_shell import BrokerParts
from klamm.log import LogManager
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import TransactionVersion
from klamm.network.connection_environment import ConnectionOrders
from klamm.purgatory import DelayedOperationPurgatory
from klamm.quota.quota_managers import QuotaManagers
from klamm.replica.append_path import append_records
from klamm.replica.controller_guard import ControllerGuard, read_control_state
from klamm.replica.fetch_session import FetchSessionCache
from klamm.replica.gauges import register_purgatory
from klamm.replica.producer_ids import ProducerIdManager
from klamm.replica.replica_manager import ReplicaManager
from klamm.replica.replica_selector import SELECTORS
from klamm.replica.replication_quota import ReplicationQuotas
from klamm.replica.transaction_verification import append_transactional
from klamm.security.outgoing import OutgoingSecurity
from klamm.server import inter_broker, metadata_gauges, resource_gauges
from klamm.server.control_log import ControlLogWriter
from klamm.server.controller_channel import open_channel
from klamm.server.coordinators import Coordinators
from klamm.server.dynamic_config import follow_throttles, follow_topic_configs
from klamm.server.environment import Environment
from klamm.server.producer_id_blocks import ProducerIdBlocks
from klamm.zk.client.zk_session import ZkSession


@dataclass(frozen=True, slots=True)
class Assembly:
    """The broker, and the parts of it that handlers do not see."""

    broker: Broker
    controller: ControllerRunner
    producer_id_blocks: ProducerIdBlocks
    coordinators: Coordinators
    connections: ConnectionOrders


def assemble(
    broker_id: int,
    cluster_id: str,
    configs: ConfigRepository,
    logs: LogManager,
    zk: ZkSession,
    control_log: ControlLogWriter,
    environment: Environment,
    outgoing: OutgoingSecurity,
    acls: Acls | None = None,
) -> Assembly:
    loop, config, clock = asyncio.get_running_loop(), configs.config, environment.clock
    metrics = MetricsRegistry(clock)
    metadata = MetadataCache(broker_id)
    replicas = _replicas(broker_id, configs, logs, metadata, metrics, environment)
    logs.start_background(loop, environment.file_worker)
    registration = Registration()
    guard = ControllerGuard(loop, lambda: read_control_state(zk, broker_id), lambda: registration.epoch)
    replicas.record_checks.start(environment.record_worker or ThreadPoolExecutor(1, thread_name_prefix="klamm-records"))
    controller = environment.controller_runner(
        zk=zk,
        clock=clock,
        rng=environment.new_rng(),
        metrics=metrics,
        loop=loop,
        on_broker_epoch=registration.renew,
        on_claim=guard.confirm,
        control_log=control_log.of_control_loop,
    )
    has_rpc = inter_broker.has_producer_id_rpc(inter_broker.protocol(config))
    channel = open_channel("producer-ids", broker_id, metadata, config, loop, outgoing, metrics) if has_rpc else None
    blocks = ProducerIdBlocks(broker_id, registration, zk, channel)
    producer_ids = ProducerIdManager(loop, blocks.allocate)
    connections = ConnectionOrders()
    logs.number_connections(lambda: connections.last)
    features = TransactionFeature(TransactionVersion(config.klamm_transaction_version))
    coordinators = Coordinators(
        config,
        BrokerParts(
            id=broker_id,
            replicas=replicas,
            append_records=partial(append_records, replicas),
            append_transactional=partial(append_transactional, replicas),
            metadata=metadata,
            clock=clock,
            loop=loop,
            metrics=metrics,
            generate_producer_id=producer_ids.generate,
            version=lambda: features.version,
            last_connection=lambda: connections.last,
            max_producer_epoch=environment.max_producer_epoch,
            outgoing=outgoing,
        ),
        lambda: str(environment.new_uuid()),
    )
    broker = Broker(
        id=broker_id,
        cluster_id=cluster_id,
        configs=configs,
        clock=clock,
        loop=loop,
        metadata=metadata,
        logs=logs,
        replicas=replicas,
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        controller=controller.handle,
        controller_guard=guard,
        metrics=metrics,
        quotas=QuotaManagers(configs.client_quotas, config, clock, metrics),
        fetch_sessions=FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, clock, environment.new_rng(), metrics
        ),
        producer_ids=producer_ids,
        topic_purgatory=DelayedOperationPurgatory("Topic", loop),
        election_purgatory=DelayedOperationPurgatory("ElectLeader", loop),
        topic_creation=TopicCreation(controller.handle, configs),
        zk=zk,
        registration=registration,
        control_log=control_log.of_broker_loop,
        features=features,
        outgoing=outgoing,
        acls=acls,
    )
    _register_gauges(broker)
    follow_topic_configs(broker, controller.handle)
    follow_throttles(broker)
    return Assembly(broker, controller, blocks, coordinators, connections)


def _register_gauges(broker: Broker) -> None:
    for purgatory in (broker.topic_purgatory, broker.election_purgatory):
        register_purgatory(broker.metrics, purgatory)
    metadata_gauges.register(broker)
    resource_gauges.register(broker.metrics, broker.logs)


def _replicas(
    broker_id: int,
    configs: ConfigRepository,
    logs: LogManager,
    metadata: MetadataCache,
    metrics: MetricsRegistry,
    environment: Environment,
) -> ReplicaManager:
    config, clock = configs.config, environment.clock
    window = config.replication_quota_window_num, config.replication_quota_window_size_seconds
    replicas = ReplicaManager(
        broker_id=broker_id,
        logs=logs,
        metadata=metadata,
        clock=clock,
        loop=asyncio.get_running_loop(),
        metrics=metrics,
        max_lag_ms=config.replica_lag_time_max_ms,
        quotas=ReplicationQuotas(clock, metrics, *window),
    )
    replicas.replica_selector = SELECTORS[config.replica_selector_class] if config.replica_selector_class else None
    return replicas


def shut_down(broker: Broker) -> None:
    """End the work of the owners: all waiting requests are answered."""
    broker.groups.shutdown()
    broker.transactions.shutdown()
    for purgatory in (broker.topic_purgatory, broker.election_purgatory):
        purgatory.shutdown()
    broker.controller_guard.shutdown()
    broker.replicas.shutdown()
