"""A broker without a network: real logs, replicas and metadata; the controller is a script in the test's hand.

Decisions of the controller reach the broker as in a cluster: through the LeaderAndIsr, UpdateMetadata and
StopReplica handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import GeneratorType
from typing import Any, TypeVar, cast
from uuid import UUID

from klamm.apis import leader_and_isr, stop_replica, update_metadata
from klamm.apis.api_declaration import Api, at_once
from klamm.broker import Broker, Registration, TopicCreation
from klamm.config import ConfigRepository, KafkaConfig
from klamm.controller import events
from klamm.controller.replies import EventReply, ProducerIdsBlock, TopicResult, TopicResults
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.transaction.transaction_shell import BrokerParts, create_transaction_coordinator
from klamm.errors import ErrorCode
from klamm.log.files import Files
from klamm.log.log_config import LogConfig
from klamm.log.log_manager import LogEvents, LogManager
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import ZERO_UUID, TopicPartition, TransactionVersion
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from klamm.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message, decode, encode_bytes
from klamm.purgatory import DelayedOperationPurgatory
from klamm.quota.quota_managers import QuotaManagers
from klamm.replica.append_path import append_records
from klamm.replica.controller_guard import ControllerGuard, ControlState
from klamm.replica.fetch_session import FetchSessionCache
from klamm.replica.producer_ids import ProducerIdManager
from klamm.replica.replica_manager import ReplicaManager
from klamm.replica.topic_names import is_valid_topic_name
from klamm.replica.transaction_verification import append_transactional

Resp = TypeVar("Resp", bound=Message)
M = TypeVar("M", bound=Message)
R = TypeVar("R")
START_MS = 1_700_000_000_000


class ManualClock:
    def __init__(self) -> None:
        self.elapsed_ms = 0
        self.corrected_ms = 0
        """How far the wall clock was moved."""

    def now_ms(self) -> int:
        return START_MS + self.elapsed_ms + self.corrected_ms

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000


class ScriptedController:
    """Answers events with what `script` says, and NOT_CONTROLLER where it says nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_active = True
        self.submitted: list[events.ControllerEvent] = []
        self.script: Callable[[events.ControllerEvent], EventReply | None] = lambda event: None

    def submit(self, event: events.Event[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        known = cast(events.ControllerEvent, event)  # the union has every event that there is
        self.submitted.append(known)
        future: asyncio.Future[R] = self._loop.create_future()
        reply = self.script(known)
        future.set_result(event.refusal() if reply is None else cast(R, reply))
        return future


class RecordingGroups:
    def __init__(self) -> None:
        self.deleted: list[TopicPartition] = []
        self.completed: list[tuple[int, dict[int, int], bool]] = []
        self.completion: Deferred[None] = Deferred.of(None)

    def on_transaction_completed(self, producer_id: int, markers: Mapping[int, int], *, commit: bool) -> Deferred[None]:
        self.completed.append((producer_id, dict(markers), commit))
        return self.completion

    def on_partitions_deleted(self, partitions: Sequence[TopicPartition]) -> None:
        self.deleted += partitions


async def _in_steps(result: Any) -> Any:
    while isinstance(result, (GeneratorType, asyncio.Future)):
        if isinstance(result, asyncio.Future):
            result = await result
            continue
        try:
            while True:
                next(result)
                await asyncio.sleep(0)
        except StopIteration as done:
            result = done.value
    return result


class OneBroker:
    def __init__(
        self,
        tmp_path: Path,
        properties: Mapping[str, str] | None = None,
        broker_id: int = 1,
        files: Files | None = None,
        log_dirs: Sequence[str] = ("logs",),
    ) -> None:
        self.files = files
        self.log_dirs = [str(tmp_path / name) for name in log_dirs]
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.tmp_path = tmp_path
        self.properties = dict(properties or {})
        self.controller = ScriptedController(self.loop)
        self.groups = RecordingGroups()
        self.topic_configs: dict[str, LogConfig] = {}
        self.controller_epoch = 1
        self.control_state: ControlState | None = None
        """The values in ZooKeeper that differ from those that the script sends."""
        self.broker = self._make_broker(broker_id)

    def _make_broker(self, broker_id: int) -> Broker:
        configs = ConfigRepository(KafkaConfig({"broker.id": str(broker_id), **self.properties}))
        metrics = MetricsRegistry(self.clock)
        metadata = MetadataCache(broker_id)
        logs = LogManager(
            self.log_dirs,
            clock=self.clock,
            rng=Random(1),
            topic_config=lambda topic: self.topic_configs.get(topic, LogConfig()),
            events=LogEvents(
                on_dir_failure=lambda log_dir, sentence: self._on_dir_failure(log_dir),
                on_flushed=lambda tp, recovery_point: self.broker.replicas.on_flushed(tp, recovery_point),
            ),
            files=self.files,
        )
        logs.load_logs()
        replicas = ReplicaManager(
            broker_id=broker_id, logs=logs, metadata=metadata, clock=self.clock, loop=self.loop, metrics=metrics
        )
        producer_ids = ProducerIdManager(
            self.loop, lambda: self.controller.submit(events.AllocateProducerIds(broker_id, -1))
        )
        transactions, self._marker_sender = create_transaction_coordinator(
            configs.config,
            BrokerParts(
                id=broker_id,
                replicas=replicas,
                append_records=partial(append_records, replicas),
                append_transactional=partial(append_transactional, replicas),
                metadata=metadata,
                clock=self.clock,
                loop=self.loop,
                metrics=metrics,
                generate_producer_id=producer_ids.generate,
                version=lambda: TransactionVersion.TV_0,
                last_connection=lambda: 0,
            ),
        )
        return Broker(
            id=broker_id,
            cluster_id="test-cluster",
            configs=configs,
            clock=self.clock,
            loop=self.loop,
            metadata=metadata,
            logs=logs,
            replicas=replicas,
            groups=cast(Any, self.groups),
            transactions=transactions,
            controller=self.controller,
            controller_guard=ControllerGuard(self.loop, self._read_control_state, lambda: self.broker.broker_epoch),
            metrics=metrics,
            quotas=QuotaManagers(configs.client_quotas, configs.config, self.clock, metrics),
            fetch_sessions=FetchSessionCache(2, self.clock, Random(1), metrics),
            producer_ids=producer_ids,
            topic_purgatory=DelayedOperationPurgatory("Topic", self.loop),
            election_purgatory=DelayedOperationPurgatory("ElectLeader", self.loop),
            topic_creation=TopicCreation(self.controller, configs),
            zk=cast(Any, None),
            registration=Registration(),
        )

    async def _read_control_state(self) -> ControlState:
        """What ZooKeeper would say: the script is the controller that was elected last."""
        return self.control_state or ControlState(1, self.controller_epoch, self.broker.broker_epoch)

    def _on_dir_failure(self, log_dir: str) -> None:
        self.loop.call_soon(self.fail_log_dir, log_dir)

    def fail_log_dir(self, log_dir: str) -> None:
        """Take the partitions of a directory offline at once."""
        for _ in self.broker.replicas.log_dir_failure_pass(log_dir):
            pass

    def give(self, **parts: Any) -> None:
        """Replace parts of the broker."""
        self.broker = replace(self.broker, **parts)

    def close(self) -> None:
        self.loop.run_until_complete(self._marker_sender.close())
        self.broker.replicas.shutdown()
        self.broker.logs.shutdown()
        self.loop.close()

    # --- asking --------------------------------------------------------------------------------------------------

    def dispatch(self, api: Api[Any, Any], request: Message, version: int, **context: Any) -> Any:
        """Return the handler's result. The request is encoded and decoded first, as over a wire."""
        received, _ = decode(type(request), version, encode_bytes(request, version))
        return api.handle(self.broker, self.context(request.KEY, version, **context), received)

    def begin(self, api: Api[Any, Any], request: Message, version: int, **context: Any) -> asyncio.Future[Any]:
        """Handle a request as the network layer does: one step of a sliced handler per turn of the loop."""
        return self.loop.create_task(_in_steps(self.dispatch(api, request, version, **context)))

    def context(
        self, key: int, version: int, *, client_id: str | None = "test", listener: str = "PLAINTEXT", order: int = 1
    ) -> RequestContext:
        channel = ChannelContext(listener_name=listener, order=order)
        self.last_context = RequestContext(key, version, 1, client_id, channel=channel, now_ms=self.clock.now_ms())
        return self.last_context

    def elect(self) -> None:
        """ZooKeeper names the script as the controller of its epoch, unless the test says otherwise."""
        if self.control_state is None:
            self.broker.controller_guard.confirm(1, self.controller_epoch)

    def ask(self, api: Api[Any, Resp], request: Message, version: int, **context: Any) -> Resp:
        """The response, waited for and as a client of that version reads it."""
        return self.as_read(cast("Resp", self.ask_for_anything(api, request, version, **context)), version)

    def ask_for_anything(self, api: Api[Any, Any], request: Message, version: int, **context: Any) -> Any:
        """The result of the handler, waited for; None if there is no response."""
        result = self.dispatch(api, request, version, **context)
        while isinstance(result, (GeneratorType, asyncio.Future)):
            result = at_once(result) if isinstance(result, GeneratorType) else self.run(result)
        return result

    def as_read(self, response: M, version: int) -> M:
        read, _ = decode(type(response), version, encode_bytes(response, version))
        return read

    def run(self, future: asyncio.Future[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(future, 30))

    def spin(self) -> None:
        """Lets callbacks that are due run."""
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))

    # --- as the controller ---------------------------------------------------------------------------------------

    def lead(self, topic: str, partitions: int = 1, *, topic_id: UUID = ZERO_UUID, **state: Any) -> None:
        """The topic exists, this broker leads it, and the metadata says so."""
        response = self.leader_and_isr({topic: list(range(partitions))}, topic_id=topic_id, **state)
        assert response.error_code == 0
        self.update_metadata({topic: list(range(partitions))}, topic_id=topic_id, **state)

    def leader_and_isr(
        self,
        topics: Mapping[str, Sequence[int]],
        *,
        topic_id: UUID = ZERO_UUID,
        leader: int = 1,
        leader_epoch: int = 0,
        isr: Sequence[int] = (1,),
        replicas: Sequence[int] = (1,),
        partition_epoch: int = 0,
        broker_epoch: int = -1,
        version: int = 7,
        is_new: bool = True,
    ) -> LeaderAndIsrResponse:
        def state(topic: str, index: int) -> LeaderAndIsrPartitionState:
            return LeaderAndIsrPartitionState(
                topic_name=topic,
                partition_index=index,
                controller_epoch=self.controller_epoch,
                leader=leader,
                leader_epoch=leader_epoch,
                isr=isr,
                partition_epoch=partition_epoch,
                replicas=replicas,
                is_new=is_new,
            )

        request = LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=self.controller_epoch,
            broker_epoch=broker_epoch,
            live_leaders=(),
            ungrouped_partition_states=[state(t, i) for t, each in topics.items() for i in each],
            topic_states=[
                LeaderAndIsrTopicState(topic_name=t, topic_id=topic_id, partition_states=[state(t, i) for i in each])
                for t, each in topics.items()
            ],
        )
        self.elect()
        return self.ask(leader_and_isr.API, request, version)

    def update_metadata(
        self,
        topics: Mapping[str, Sequence[int]],
        *,
        topic_id: UUID = ZERO_UUID,
        leader: int = 1,
        leader_epoch: int = 0,
        isr: Sequence[int] = (1,),
        replicas: Sequence[int] = (1,),
        partition_epoch: int = 0,
        broker_epoch: int = -1,
        brokers: Sequence[int] = (1,),
        racks: Mapping[int, str] | None = None,
        listeners: Sequence[str] = ("PLAINTEXT",),
        version: int = 8,
    ) -> UpdateMetadataResponse:
        def state(topic: str, index: int) -> UpdateMetadataPartitionState:
            return UpdateMetadataPartitionState(
                topic_name=topic,
                partition_index=index,
                controller_epoch=self.controller_epoch,
                leader=leader,
                leader_epoch=leader_epoch,
                isr=isr,
                zk_version=partition_epoch,
                replicas=replicas,
            )

        request = UpdateMetadataRequest(
            controller_id=1,
            controller_epoch=self.controller_epoch,
            broker_epoch=broker_epoch,
            ungrouped_partition_states=[state(t, i) for t, each in topics.items() for i in each],
            topic_states=[
                UpdateMetadataTopicState(topic_name=t, topic_id=topic_id, partition_states=[state(t, i) for i in each])
                for t, each in topics.items()
            ],
            live_brokers=[
                UpdateMetadataBroker(
                    id_=broker_id,
                    v0_host=f"host-{broker_id}",
                    v0_port=9092,
                    endpoints=[
                        UpdateMetadataEndpoint(
                            port=9092 + n, host=f"host-{broker_id}", listener=listener, security_protocol=0
                        )
                        for n, listener in enumerate(listeners)
                    ],
                    rack=(racks or {}).get(broker_id),
                )
                for broker_id in brokers
            ],
        )
        self.elect()
        return self.ask(update_metadata.API, request, version)

    def stop_replica(
        self, topic: str, index: int = 0, *, leader_epoch: int = -1, delete: bool = True, version: int = 4
    ) -> StopReplicaResponse:
        partition = StopReplicaPartitionState(partition_index=index, leader_epoch=leader_epoch, delete_partition=delete)
        request = StopReplicaRequest(
            controller_id=1,
            controller_epoch=self.controller_epoch,
            topic_states=[StopReplicaTopicState(topic_name=topic, partition_states=[partition])],
        )
        self.elect()
        return self.ask(stop_replica.API, request, version)

    def create_as_asked(self, event: events.ControllerEvent) -> EventReply | None:
        """A script: topics are created on this broker alone, producer ids come in blocks of three."""
        if isinstance(event, events.CreateTopics):
            return TopicResults(tuple(self._created(topic, event.validate_only) for topic in event.topics))
        if isinstance(event, events.AllocateProducerIds):
            start = 3 * sum(isinstance(each, events.AllocateProducerIds) for each in self.controller.submitted)
            return ProducerIdsBlock(ErrorCode.NONE, start, 3)
        return None

    def _created(self, topic: events.CreatableTopic, validate_only: bool) -> TopicResult:
        count = len(topic.assignments) or max(1, topic.num_partitions)
        if not is_valid_topic_name(topic.name) or count > 100:
            return TopicResult(topic.name, ErrorCode.INVALID_TOPIC_EXCEPTION, "It cannot be.")
        if self.broker.metadata.contains(topic.name):
            return TopicResult(topic.name, ErrorCode.TOPIC_ALREADY_EXISTS, "It exists.")
        topic_id = UUID(int=1000 + len(self.controller.submitted))
        if not validate_only:
            self.lead(topic.name, count, topic_id=topic_id)
        return TopicResult(topic.name, topic_id=topic_id, num_partitions=count, replication_factor=1)


def batch(*values: bytes, timestamp: int = START_MS, key: bytes | None = b"k", **options: Any) -> bytes:
    """A record batch as a producer sends it."""
    return build_batch([Record(i, timestamp + i, key, value) for i, value in enumerate(values)], **options)
