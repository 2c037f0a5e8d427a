"""The parts of a broker that talk to other brokers: fetchers, ISR changes, and channels to the controller."""

from __future__ import annotations

import asyncio
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
from klamm.replica.producer_ids import ProducerIdBlock
from klamm.replica.zk_isr_manager import CHECK_INTERVAL_MS, ZkIsrManager
from klamm.server import inter_broker, producer_id_blocks
from klamm.server.controller_channel import ControllerChannel
from klamm.server.schedules import Scheduler

_CREATE_TOPICS_VERSION: Final = 7


class Replication:
    """Made once the broker's owners are; `start` when it has registered. Lives on the broker loop."""

    def __init__(self, broker: Broker) -> None:
        config = broker.config
        self._broker = broker
        self._ibp = inter_broker.protocol(config)
        self._alter_partition = self._channel("alter-partition")
        self._forwarding = self._channel("forwarding")
        self._producer_ids = self._channel("producer-ids")
        self._fetchers = self._make_fetchers(config)
        self._isr = self._make_isr_manager()
        broker.replicas.fetchers = self._fetchers
        broker.replicas.isr_change_listener = self._isr.submit
        broker.topic_creation.forward = self._create_topics
        broker.configs.on_change(["num.replica.fetchers"], self._on_num_fetchers)

    def start(self, scheduler: Scheduler) -> None:
        if isinstance(self._isr, ZkIsrManager):
            scheduler.every("isr-change-propagation", CHECK_INTERVAL_MS, self._isr.propagate)

    async def stop(self) -> None:
        await self._fetchers.close()
        await self._isr.close()
        for channel in (self._alter_partition, self._forwarding, self._producer_ids):
            await channel.close()

    # --- the parts -----------------------------------------------------------------------------------------------

    def _channel(self, purpose: str) -> ControllerChannel:
        broker = self._broker
        return ControllerChannel(
            broker.metadata,
            broker.config.inter_broker_listener,
            name=f"broker-{broker.id}-{purpose}",
            loop=broker.loop,
            timeout_ms=broker.config.controller_socket_timeout_ms,
        )

    def _make_fetchers(self, config: KafkaConfig) -> ReplicaFetcherManager:
        broker = self._broker
        settings = inter_broker.fetcher_config(config, broker.id)
        return ReplicaFetcherManager(
            settings,
            replicas=broker.replicas,
            loop=broker.loop,
            connect=connect_by_metadata(settings, broker.metadata),
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

    def _on_num_fetchers(self, before: KafkaConfig, after: KafkaConfig) -> None:
        self._fetchers.resize(after.num_replica_fetchers)

    # --- asking the controller -----------------------------------------------------------------------------------

    async def alter_partition(self, request: AlterPartitionRequest, max_version: int) -> AlterPartitionResponse:
        response: AlterPartitionResponse = await self._alter_partition.send(request, max_version)
        return response

    def allocate_producer_ids(self) -> asyncio.Future[ProducerIdBlock]:
        broker = self._broker
        if inter_broker.has_producer_id_rpc(self._ibp):
            return broker.loop.create_task(producer_id_blocks.ask_controller(broker, self._producer_ids))
        return broker.loop.create_task(producer_id_blocks.take_from_zookeeper(broker.zk, broker.id))

    def _create_topics(self, topics: tuple[CreatableTopic, ...]) -> asyncio.Future[TopicResults]:
        return self._broker.loop.create_task(self._ask_to_create(topics))

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


def _creatable(topic: CreatableTopic) -> wire.CreatableTopic:
    return wire.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=(),
        configs=[wire.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
    )
