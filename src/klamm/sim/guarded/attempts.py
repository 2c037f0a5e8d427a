"""Requests that would do harm if a broker accepted them: right epochs, offsets and ids, from a sender without rights.

Each is an `Attempt` with the error that must refuse it. Requests between brokers claim to come from `sender`.
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
from klamm.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
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
from klamm.protocol.wire import Message
from klamm.security.client_security import PLAINTEXT, ClientSecurity
from klamm.sim.checkers import Violation
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster, SimNode
from klamm.zk.model import paths
from klamm.zk.model.znodes import decode_controller_epoch

_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Attempt(NamedTuple):
    """A request, its version, where its response has the error, and the error that it must have."""

    request: Message
    version: int
    read: Callable[[Any], int]
    expected: ErrorCode

    @property
    def name(self) -> str:
        return type(self.request).__name__.removesuffix("Request")


class RefusedClient:
    """A client whose requests must all be refused. `attempts` makes them."""

    def __init__(self, name: str, cluster: SimCluster, security: ClientSecurity = PLAINTEXT) -> None:
        self.name = name
        self._cluster = cluster
        self._rng = Random(cluster.rng.getrandbits(64))
        self._client = Client(name, cluster.addresses, self._rng, security)

    def attempts(self, node: SimNode, tp: TopicPartition) -> Iterator[Attempt]:
        raise NotImplementedError

    async def try_everything(self) -> None:
        """Send every request once, to a broker that answers."""
        tp = self._cluster.partitions[0]
        node = next(node for node in self._cluster.nodes.values() if node.broker is not None)
        for attempt in list(self.attempts(node, tp)):
            await self._send(node, attempt)

    async def run(self) -> None:
        """Send a request from time to time while the cluster runs."""
        while True:
            await self._client.rest()
            node = self._rng.choice(list(self._cluster.nodes.values()))
            tp = self._rng.choice(self._cluster.partitions)
            if node.broker is None:
                continue
            attempt = self._rng.choice(list(self.attempts(node, tp)))
            with contextlib.suppress(OSError):
                await self._send(node, attempt)

    async def _send(self, node: SimNode, attempt: Attempt) -> None:
        """Raises Violation unless the broker refuses the request, and OSError if it does not answer."""
        response = await self._client.ask(node.id, attempt.request, attempt.version)
        error = ErrorCode(attempt.read(response))
        if error != attempt.expected:
            raise Violation(f"broker {node.id} answered {attempt.name} of {self.name} with {error.name}")
        self._cluster.counts[f"refused {attempt.name}"] += 1


def of_cluster(request: Message, version: int) -> Attempt:
    """The request as a whole needs a right on the cluster."""
    return Attempt(request, version, lambda response: response.error_code, _CLUSTER)


def as_controller(cluster: SimCluster, node: SimNode, tp: TopicPartition, sender: int) -> Iterator[Attempt]:
    broker = node.broker
    znode = cluster.zookeeper.tree.nodes.get(paths.CONTROLLER_EPOCH)
    assert broker is not None
    head: dict[str, Any] = {
        "controller_id": sender,
        "controller_epoch": 0 if znode is None else decode_controller_epoch(znode.data),
        "broker_epoch": broker.broker_epoch,
    }
    yield of_cluster(LeaderAndIsrRequest(**head, live_leaders=(), topic_states=()), 5)
    yield of_cluster(UpdateMetadataRequest(**head, live_brokers=(), topic_states=()), 7)
    stopped = StopReplicaPartitionState(partition_index=tp.partition, leader_epoch=1 << 30, delete_partition=True)
    topic = StopReplicaTopicState(topic_name=tp.topic, partition_states=[stopped])
    yield of_cluster(StopReplicaRequest(**head, topic_states=[topic]), 3)


def as_broker(cluster: SimCluster, sender: int) -> Iterator[Attempt]:
    """Requests to the controller in the name of a broker, with its epoch."""
    claimed = cluster.nodes[sender].broker
    own: dict[str, Any] = {"broker_id": sender, "broker_epoch": 0 if claimed is None else claimed.broker_epoch}
    yield of_cluster(ControlledShutdownRequest(**own), 3)
    yield of_cluster(AllocateProducerIdsRequest(**own), 0)
    yield of_cluster(AlterPartitionRequest(**own, topics=()), 2)


def fetch(node: SimNode, tp: TopicPartition, sender: int) -> FetchRequest:
    """A fetch at the end of the log: from a follower, it would acknowledge all records. Consumers have the id -1."""
    assert node.broker is not None
    hosted = node.broker.replicas.partitions.get(tp)
    fetched = FetchPartition(
        partition=tp.partition,
        current_leader_epoch=-1 if hosted is None else hosted.leader_epoch,
        fetch_offset=hosted.log.log_end_offset if hosted is not None and hosted.log is not None else 0,
        partition_max_bytes=1_000,
    )
    return FetchRequest(
        replica_id=sender,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000,
        session_epoch=-1,
        topics=[FetchTopic(topic=tp.topic, partitions=[fetched])],
    )


def epoch_ends(tp: TopicPartition, sender: int, expected: ErrorCode) -> Attempt:
    """A follower asks where epochs end: the answer shows names and offsets of the log."""
    asked = OffsetForLeaderPartition(partition=tp.partition, current_leader_epoch=-1, leader_epoch=0)
    topic = OffsetForLeaderTopic(topic=tp.topic, partitions=[asked])
    return Attempt(
        OffsetForLeaderEpochRequest(replica_id=sender, topics=[topic]),
        4,
        lambda response: response.topics[0].partitions[0].error_code,
        expected,
    )


def commit_marker(tp: TopicPartition) -> Attempt:
    marker = WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        coordinator_epoch=0,
    )
    return Attempt(
        WriteTxnMarkersRequest(markers=[marker]),
        1,
        lambda response: response.markers[0].topics[0].partitions[0].error_code,
        _CLUSTER,
    )


def partitions_of_transaction(tp: TopicPartition, transactional_id: str) -> Attempt:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=1,
        producer_epoch=0,
        verify_only=False,
        topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
    )
    return of_cluster(AddPartitionsToTxnRequest(transactions=[transaction]), 4)
