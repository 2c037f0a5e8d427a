"""The intruder: a client that knows everything and may do nothing.

Its requests would take effect if they were accepted: they carry the right epochs, offsets and ids. Each of them must be
refused with an authorization error, at any moment of a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from klamm.protocol.messages.alter_partition import AlterPartitionRequest
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from klamm.protocol.messages.update_metadata import UpdateMetadataRequest
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message
from klamm.sim.checkers import Violation
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster, SimNode
from klamm.zk.model import paths
from klamm.zk.model.znodes import decode_controller_epoch

HOST: Final = "mallory"
_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_FAR: Final = 1 << 40


class Attempt(NamedTuple):
    """A request, its version, where its response has the error, and the error that it must have."""

    request: Message
    version: int
    read: Callable[[Any], int]
    expected: ErrorCode


class Intruder:
    def __init__(self, cluster: SimCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._rng = Random(cluster.rng.getrandbits(64))
        self._client = Client(HOST, cluster.addresses, self._rng)

    async def try_everything(self) -> None:
        """Every request, once, at a broker that answers."""
        for tp in self._cluster.partitions[:1]:
            for node in [node for node in self._cluster.nodes.values() if node.broker is not None][:1]:
                for attempt in list(self._attempts(node, tp)):
                    await self._send(node, attempt)

    async def run(self) -> None:
        """Some request every now and then, as long as the cluster runs."""
        while True:
            await self._client.rest()
            node = self._rng.choice(list(self._cluster.nodes.values()))
            tp = self._rng.choice(self._cluster.partitions)
            if node.broker is None:
                continue
            attempt = self._rng.choice(list(self._attempts(node, tp)))
            with contextlib.suppress(OSError):
                await self._send(node, attempt)

    async def _send(self, node: SimNode, attempt: Attempt) -> None:
        response = await self._client.ask(node.id, attempt.request, attempt.version)
        error = ErrorCode(attempt.read(response))
        name = type(attempt.request).__name__
        if error != attempt.expected:
            raise Violation(f"broker {node.id} answered the intruder's {name} with {error.name}")
        self._cluster.counts[f"refused {name.removesuffix('Request')}"] += 1

    def _attempts(self, node: SimNode, tp: TopicPartition) -> Iterator[Attempt]:
        yield from self._as_controller(node, tp)
        yield from self._as_broker(node, tp)
        yield from self._as_client(tp)

    def _as_controller(self, node: SimNode, tp: TopicPartition) -> Iterator[Attempt]:
        broker = node.broker
        znode = self._cluster.zookeeper.tree.nodes.get(paths.CONTROLLER_EPOCH)
        assert broker is not None
        head: dict[str, Any] = {
            "controller_id": broker.metadata.controller_id,
            "controller_epoch": 0 if znode is None else decode_controller_epoch(znode.data),
            "broker_epoch": broker.broker_epoch,
        }
        yield _of_cluster(LeaderAndIsrRequest(**head, live_leaders=(), topic_states=()), 5)
        yield _of_cluster(UpdateMetadataRequest(**head, live_brokers=(), topic_states=()), 7)
        stopped = StopReplicaPartitionState(partition_index=tp.partition, leader_epoch=1 << 30, delete_partition=True)
        topic = StopReplicaTopicState(topic_name=tp.topic, partition_states=[stopped])
        yield _of_cluster(StopReplicaRequest(**head, topic_states=[topic]), 3)

    def _as_broker(self, node: SimNode, tp: TopicPartition) -> Iterator[Attempt]:
        broker = node.broker
        assert broker is not None
        own: dict[str, Any] = {"broker_id": node.id, "broker_epoch": broker.broker_epoch}
        yield _of_cluster(ControlledShutdownRequest(**own), 3)
        yield _of_cluster(AllocateProducerIdsRequest(**own), 0)
        yield _of_cluster(AlterPartitionRequest(**own, topics=()), 2)
        hosted = broker.replicas.partitions.get(tp)
        end = hosted.log.log_end_offset if hosted is not None and hosted.log is not None else 0
        follower = self._rng.choice([other for other in self._cluster.nodes if other != node.id] or [node.id])
        fetched = FetchPartition(
            partition=tp.partition,
            current_leader_epoch=-1 if hosted is None else hosted.leader_epoch,
            fetch_offset=end,
            partition_max_bytes=1_000,
        )
        yield Attempt(
            FetchRequest(
                replica_id=follower,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1_000,
                session_epoch=-1,
                topics=[FetchTopic(topic=tp.topic, partitions=[fetched])],
            ),
            12,
            lambda response: response.responses[0].partitions[0].error_code,
            _TOPIC,
        )
        marker = WritableTxnMarker(
            producer_id=1,
            producer_epoch=0,
            transaction_result=True,
            topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            coordinator_epoch=0,
        )
        yield Attempt(
            WriteTxnMarkersRequest(markers=[marker]),
            1,
            lambda response: response.markers[0].topics[0].partitions[0].error_code,
            _CLUSTER,
        )
        transaction = AddPartitionsToTxnTransaction(
            transactional_id="x",
            producer_id=1,
            producer_epoch=0,
            verify_only=False,
            topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
        )
        yield _of_cluster(AddPartitionsToTxnRequest(transactions=[transaction]), 4)

    def _as_client(self, tp: TopicPartition) -> Iterator[Attempt]:
        batch = build_batch([Record(timestamp=0, value=b"forged")])
        data = PartitionProduceData(index=tp.partition, records=batch)
        yield Attempt(
            ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=1_000,
                topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
            ),
            9,
            lambda response: response.responses[0].partition_responses[0].error_code,
            _TOPIC,
        )
        asked = ListOffsetsPartition(partition_index=tp.partition, timestamp=-1)
        yield Attempt(
            ListOffsetsRequest(
                replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=tp.topic, partitions=[asked])]
            ),
            7,
            lambda response: response.topics[0].partitions[0].error_code,
            _TOPIC,
        )
        yield Attempt(
            MetadataRequest(topics=[MetadataRequestTopic(name=tp.topic)], allow_auto_topic_creation=False),
            9,
            lambda response: response.topics[0].error_code,
            _TOPIC,
        )
        offset = OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=_FAR, committed_metadata=None
        )
        yield Attempt(
            OffsetCommitRequest(
                group_id=self._group,
                topics=[OffsetCommitRequestTopic(name=tp.topic, partitions=[offset])],
            ),
            7,
            lambda response: response.topics[0].partitions[0].error_code,
            _GROUP,
        )


def _of_cluster(request: Message, version: int) -> Attempt:
    return Attempt(request, version, lambda response: response.error_code, _CLUSTER)
