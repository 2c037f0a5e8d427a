"""Forged control requests, with an epoch that was never elected or with another broker's id, and follower fetches.

The forger knows everything that can be discovered or guessed: broker epochs, partitions, leader epochs, log ends. It
cannot prove that it is a broker. If brokers need no proof, epochs protect against forged control requests, and nothing
protects against forged fetches.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple, Protocol

from klamm.broker import Broker
from klamm.errors import ErrorCode
from klamm.model import EPOCH_DURING_DELETE, NO_EPOCH, TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from klamm.protocol.wire import Message
from klamm.sim.checkers import Violation
from klamm.sim.clients import Client

FOREIGN_HOST: Final = "forger.example"
_NOBODY: Final = 99
_NEVER_REACHED: Final = 1_000
_REFUSALS: Final = (
    ErrorCode.STALE_CONTROLLER_EPOCH,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


class ForgedNode(Protocol):
    """`klamm.sim.cluster.SimNode`, as far as it is used here."""

    id: int

    @property
    def broker(self) -> Broker | None: ...


class ForgedHead(NamedTuple):
    """The sender and the registration that a forged control request claims."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int


def forge(rng: Random, node: ForgedNode, tp: TopicPartition, controller_id: int, epoch: int) -> tuple[Message, int]:
    """Return a control request that would take `tp` or its clients away from `node`, and its version."""
    broker = node.broker
    assert broker is not None
    if is_other := rng.random() < 0.3:
        controller_id = _NOBODY
    controller_epoch = epoch if is_other else epoch + _NEVER_REACHED
    forgers = (forge_update_metadata, forge_stop_replica, forge_leader_and_isr)
    return forgers[rng.randrange(3)](node, tp, ForgedHead(controller_id, controller_epoch, broker.broker_epoch))


def forge_update_metadata(node: ForgedNode, tp: TopicPartition, head: ForgedHead) -> tuple[Message, int]:
    """Clients of the broker would be sent to a foreign host."""
    endpoint = UpdateMetadataEndpoint(port=9092, host=FOREIGN_HOST, listener="PLAINTEXT", security_protocol=0)
    return UpdateMetadataRequest(
        controller_id=head.controller_id,
        controller_epoch=head.controller_epoch,
        broker_epoch=head.broker_epoch,
        topic_states=(),
        live_brokers=[UpdateMetadataBroker(id_=node.id, endpoints=[endpoint])],
    ), 7


def forge_stop_replica(node: ForgedNode, tp: TopicPartition, head: ForgedHead) -> tuple[Message, int]:
    """The broker would delete its replica."""
    stopped = StopReplicaPartitionState(
        partition_index=tp.partition, leader_epoch=EPOCH_DURING_DELETE, delete_partition=True
    )
    return StopReplicaRequest(
        controller_id=head.controller_id,
        controller_epoch=head.controller_epoch,
        broker_epoch=head.broker_epoch,
        topic_states=[StopReplicaTopicState(topic_name=tp.topic, partition_states=[stopped])],
    ), 3


def forge_leader_and_isr(node: ForgedNode, tp: TopicPartition, head: ForgedHead) -> tuple[Message, int]:
    """The broker would lead, without any other replica."""
    broker = node.broker
    assert broker is not None
    hosted = broker.replicas.partitions.get(tp)
    leader_epoch = 1 if hosted is None else hosted.leader_epoch + 1
    state = LeaderAndIsrPartitionState(
        partition_index=tp.partition,
        controller_epoch=head.controller_epoch,
        leader=node.id,
        leader_epoch=leader_epoch,
        isr=(node.id,),
        partition_epoch=100,
        replicas=(node.id,),
    )
    topic_id = broker.metadata.snapshot.topic_id(tp.topic)
    return LeaderAndIsrRequest(
        controller_id=head.controller_id,
        controller_epoch=head.controller_epoch,
        broker_epoch=head.broker_epoch,
        live_leaders=(),
        topic_states=[LeaderAndIsrTopicState(topic_name=tp.topic, topic_id=topic_id, partition_states=[state])],
    ), 5


def forge_fetch(node: ForgedNode, tp: TopicPartition, follower: int) -> tuple[Message, int]:
    """Return a fetch in the name of a follower, and its version. It would acknowledge all records of the log."""
    broker = node.broker
    assert broker is not None
    hosted = broker.replicas.partitions.get(tp)
    end = hosted.log.log_end_offset if hosted is not None and hosted.log is not None else 0
    fetched = FetchPartition(
        partition=tp.partition,
        current_leader_epoch=NO_EPOCH if hosted is None else hosted.leader_epoch,
        fetch_offset=end,
        partition_max_bytes=1_000,
    )
    return FetchRequest(
        replica_id=follower,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000,
        session_epoch=NO_EPOCH,
        topics=[FetchTopic(topic=tp.topic, partitions=[fetched])],
    ), 12


async def send_forged(
    client: Client, broker_id: int, request: Message, version: int, *, is_proof_needed: bool
) -> ErrorCode:
    """Raise Violation unless the broker refuses the request or does not answer.

    If brokers prove themselves, the request is refused before anything in it is looked at.
    """
    try:
        response = await client.ask(broker_id, request, version)
    except OSError:
        return ErrorCode.REQUEST_TIMED_OUT
    error = ErrorCode(response.error_code)
    if error not in ((ErrorCode.CLUSTER_AUTHORIZATION_FAILED,) if is_proof_needed else _REFUSALS):
        raise Violation(f"broker {broker_id} answered a forged {type(request).__name__} with {error.name}")
    return error
