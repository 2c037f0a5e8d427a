"""The clients by which a broker calls others: fetchers, ISR changes, channels to the controller, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.controller.events import CreatableTopic
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.protocol.messages import create_topics as wire
from klamm.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.replica.alter_partition_manager import AlterPartitionManager
from klamm.replica.fetcher_manager import ReplicaFetcherManager, connect_by_metadata
from klamm.replica.transaction_watch import INTERVAL_MS
from klamm.replica.transactional_producers import VerificationConfig
from klamm.replica.zk_isr_manager import CHECK_INTERVAL_MS, ZkIsrManager
from klamm.server import inter_broker
from klamm.server.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from klamm.server.controller_channel import ControllerChannel, open_channel
from klamm.server.schedules import Scheduler

_CREATE_TOPICS_VERSION: Final = 7


class InterBrokerClients:
    """Created after the broker's owners, started after the registration. Lives on the broker loop."""

    def __init__(self, broker: Broker) -> None:
        config = broker.config
        self._broker = broker
        self._ibp = inter_broker.protocol(config)
        self._alter_partition = self._channel("alter-partition")
        self._forwarding = self._channel("forwarding")
        self._fetchers = self._make_fetchers(config)
        self._isr = self._make_isr_manager()
        self._transactions = self._make_transactions(config)
        broker.replicas.fetchers = self._fetchers
        broker.replicas.isr_change_listener = self._isr.submit
        broker.topic_creation.forward = self._create_topics
        broker.configs.on_change(["num.replica.fetchers"], self._on_num_fetchers)

    def start(self, scheduler: Scheduler) -> None:
        if isinstance(self._isr, ZkIsrManager):
            scheduler.every("isr-change-propagation", CHECK_INTERVAL_MS, self._isr.propagate)
        scheduler.every("late-transactions", INTERVAL_MS, self._look_for_late_transactions)

    def _look_for_late_transactions(self) -> Iterator[None]:
        broker = self._broker
        replicas = broker.replicas
        return replicas.transaction_watch.look(
            replicas.partitions, broker.clock.now_ms(), broker.config.transaction_max_timeout_ms
        )

    async def stop(self) -> None:
        await self._fetchers.close()
        await self._transactions.close()
        await self._isr.close()
        for channel in (self._alter_partition, self._forwarding):
            await channel.close()

    # --- the parts -----------------------------------------------------------------------------------------------

    def _channel(self, purpose: str) -> ControllerChannel:
        broker = self._broker
        return open_channel(
            purpose, broker.id, broker.metadata, broker.config, broker.loop, broker.outgoing, broker.metrics
        )

    def _make_fetchers(self, config: KafkaConfig) -> ReplicaFetcherManager:
        broker = self._broker
        settings = replace(inter_broker.fetcher_config(config, broker.id), outgoing=broker.outgoing)
        return ReplicaFetcherManager(
            settings,
            replicas=broker.replicas,
            loop=broker.loop,
            connect=connect_by_metadata(settings, broker.metadata, broker.metrics),
            broker_epoch=lambda: broker.broker_epoch,
        )

    def _make_isr_manager(self) -> AlterPartitionManager | ZkIsrManager:
        broker = self._broker
        if not self._ibp.has_alter_partition:
            return ZkIsrManager(broker.replicas, broker.zk, broker.loop)
        return AlterPartitionManager(
            broker.replicas,
            self,
            broker_epoch=lambda: broker.broker_epoch,
            loop=broker.loop,
            has_topic_ids=self._ibp.has_topic_ids,
        )

    def _make_transactions(self, config: KafkaConfig) -> AddPartitionsToTxnManager:
        broker = self._broker
        producers = broker.replicas.transactional_producers
        producers.config = lambda: _verification_config(broker.config)
        producers.add_partitions = manager = AddPartitionsToTxnManager(
            broker.metadata,
            config.inter_broker_listener,
            name=f"broker-{broker.id}-transactions",
            loop=broker.loop,
            metrics=broker.metrics,
            outgoing=broker.outgoing,
        )
        return manager

    def _on_num_fetchers(self, before: KafkaConfig, after: KafkaConfig) -> None:
        self._fetchers.resize(after.num_replica_fetchers)

    # --- asking the controller -----------------------------------------------------------------------------------

    async def alter_partition(self, request: AlterPartitionRequest, max_version: int) -> AlterPartitionResponse:
        response: AlterPartitionResponse = await self._alter_partition.send(request, max_version)
        return response

    def _create_topics(self, topics: tuple[CreatableTopic, ...]) -> asyncio.Future[TopicResults]:
        return self._broker.loop.create_task(self._ask_to_create(topics), name="auto-topic-creation")

    async def _ask_to_create(self, topics: tuple[CreatableTopic, ...]) -> TopicResults:
        timeout_ms = self._broker.config.request_timeout_ms
        request = wire.CreateTopicsRequest(topics=[_creatable(topic) for topic in topics], timeout_ms=timeout_ms)
        try:
            response: wire.CreateTopicsResponse = await self._forwarding.send(
                request, _CREATE_TOPICS_VERSION, timeout_ms
            )
        except OSError:
            return TopicResults(tuple(TopicResult(topic.name, ErrorCode.NOT_CONTROLLER) for topic in topics))
        return TopicResults(
            tuple(TopicResult(t.name, ErrorCode.of(t.error_code), t.error_message) for t in response.topics)
        )


def _verification_config(config: KafkaConfig) -> VerificationConfig:
    return VerificationConfig(
        config.transaction_partition_verification_enable,
        config.add_partitions_to_txn_retry_backoff_ms,
        config.add_partitions_to_txn_retry_backoff_max_ms,
    )


def _creatable(topic: CreatableTopic) -> wire.CreatableTopic:
    return wire.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=(),
        configs=[wire.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
    )
