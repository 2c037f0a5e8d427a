"""Control requests on the wire: the version that the inter-broker protocol fixes, and the translation of requests and
answers.

An UpdateMetadata differs between brokers only in the broker epoch: the rest is encoded once and kept with the shared
body. The arrays of topics are encoded by `wire_states`, which caches each partition; `encode_around` writes the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from klamm.controller import wire_states
from klamm.controller.config import InterBrokerProtocol
from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.controller.responses import ControlResponse
from klamm.controller.wire_states import EncodingSteps
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, BrokerEndPoints, TopicPartition, make_topic_partition
from klamm.protocol.messages import leader_and_isr as lair
from klamm.protocol.messages import stop_replica as stop
from klamm.protocol.messages import update_metadata as umr
from klamm.protocol.wire import BytesLike, encode, encode_around

_BROKER_EPOCH: Final = struct.Struct(">q")
P = TypeVar("P", LeaderAndIsrPartition, UpdateMetadataPartition, StopReplicaPartition)


Encoded: TypeAlias = tuple[int, int, list[BytesLike]]
"""API key, version and body of a request."""


def encode_in_steps(request: ControlRequest, protocol: InterBrokerProtocol) -> EncodingSteps[Encoded]:
    """Encode a request under this inter-broker protocol. One of very many partitions pauses in between."""
    if isinstance(request, LeaderAndIsrRequest):
        version = protocol.leader_and_isr_version
        return lair.LeaderAndIsrRequest.KEY, version, (yield from _leader_and_isr_bytes(request, version))
    if isinstance(request, UpdateMetadataRequest):
        version = protocol.update_metadata_version
        return umr.UpdateMetadataRequest.KEY, version, (yield from _update_metadata(request, version))
    version = protocol.stop_replica_version
    return stop.StopReplicaRequest.KEY, version, encode(_stop_replica(request, version), version)


def _by_topic(partitions: Iterable[P]) -> dict[str, list[P]]:
    topics: dict[str, list[P]] = {}
    for partition in partitions:
        topics.setdefault(partition.partition.topic, []).append(partition)
    return topics


def _leader_and_isr_bytes(request: LeaderAndIsrRequest, version: int) -> EncodingSteps[list[BytesLike]]:
    if version < wire_states.FIRST_LEADER_AND_ISR:
        return encode(_leader_and_isr(request), version)
    states, ids = request.partitions, dict(request.topic_ids)
    topics = yield from wire_states.leader_and_isr_topics(states, ids, version, request.encoded)
    head, tail = encode_around(_leader_and_isr(replace(request, partitions=())), version, "topic_states")
    return [head, topics, tail]


def _leader_and_isr(request: LeaderAndIsrRequest) -> lair.LeaderAndIsrRequest:
    ids = dict(request.topic_ids)
    return lair.LeaderAndIsrRequest(
        controller_id=request.head.controller_id,
        controller_epoch=request.head.controller_epoch,
        broker_epoch=request.head.broker_epoch,
        topic_states=[
            lair.LeaderAndIsrTopicState(
                topic_name=topic,
                topic_id=ids.get(topic, ZERO_UUID),
                partition_states=[_leader_and_isr_state(state) for state in states],
            )
            for topic, states in _by_topic(request.partitions).items()
        ],
        live_leaders=[
            lair.LeaderAndIsrLiveLeader(broker_id=it.id, host_name=it.endpoint.host, port=it.endpoint.port)
            for it in request.live_leaders
        ],
    )


def _leader_and_isr_state(state: LeaderAndIsrPartition) -> lair.LeaderAndIsrPartitionState:
    it = state.leader_and_isr
    return lair.LeaderAndIsrPartitionState(
        partition_index=state.partition.partition,
        controller_epoch=state.controller_epoch,
        leader=it.leader,
        leader_epoch=it.leader_epoch,
        isr=it.isr,
        partition_epoch=it.partition_epoch,
        replicas=state.replicas,
        adding_replicas=state.adding_replicas,
        removing_replicas=state.removing_replicas,
        is_new=state.is_new,
        leader_recovery_state=it.leader_recovery_state,
    )


def _update_metadata(request: UpdateMetadataRequest, version: int) -> EncodingSteps[list[BytesLike]]:
    """The part before the broker's epoch, the epoch, and the rest: all brokers share the first and the last.

    The senders of all brokers take turns with the steps of one encoding, so that none encodes the body again.
    """
    body, key = request.body, (version, request.head.controller_id, request.head.controller_epoch)
    while key not in body.encoded:
        steps = body.encoding.get(key)
        if steps is None:
            steps = body.encoding[key] = _shared_bytes(request.head, body, version)
        try:
            next(steps)
        except StopIteration as done:
            body.encoded[key] = done.value
            del body.encoding[key]
        except Exception:
            del body.encoding[key]
            raise
        else:
            yield
    before, after = body.encoded[key]
    return [before, _BROKER_EPOCH.pack(request.head.broker_epoch), after]


def _shared_bytes(head: RequestHead, body: UpdateMetadataBody, version: int) -> EncodingSteps[tuple[bytes, bytes]]:
    if version < wire_states.FIRST_UPDATE_METADATA:
        before, after = encode_around(_update_metadata_message(head, body), version, "broker_epoch")
        return before, after
    topics = yield from wire_states.update_metadata_topics(body.partitions, body.ids_by_topic(), version)
    rest = _update_metadata_message(head, replace(body, partitions=()))
    before, between, after = encode_around(rest, version, "broker_epoch", "topic_states")
    return before, between + topics + after


def _update_metadata_message(head: RequestHead, body: UpdateMetadataBody) -> umr.UpdateMetadataRequest:
    ids = body.ids_by_topic()
    return umr.UpdateMetadataRequest(
        controller_id=head.controller_id,
        controller_epoch=head.controller_epoch,
        broker_epoch=head.broker_epoch,
        topic_states=[
            umr.UpdateMetadataTopicState(
                topic_name=topic,
                topic_id=ids.get(topic, ZERO_UUID),
                partition_states=[_update_metadata_state(state) for state in states],
            )
            for topic, states in _by_topic(body.partitions).items()
        ],
        live_brokers=[_live_broker(broker) for broker in body.live_brokers],
    )


def _update_metadata_state(state: UpdateMetadataPartition) -> umr.UpdateMetadataPartitionState:
    return umr.UpdateMetadataPartitionState(
        partition_index=state.partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        zk_version=state.zk_version,
        replicas=state.replicas,
        offline_replicas=state.offline_replicas,
    )


def _live_broker(broker: BrokerEndPoints) -> umr.UpdateMetadataBroker:
    return umr.UpdateMetadataBroker(
        id_=broker.id,
        endpoints=[
            umr.UpdateMetadataEndpoint(
                port=it.port, host=it.host, listener=it.listener, security_protocol=it.security_protocol
            )
            for it in broker.endpoints
        ],
        rack=broker.rack,
    )


def _stop_replica(request: StopReplicaRequest, version: int) -> stop.StopReplicaRequest:
    """Before version 3 the deletion flag is per request: the batch contains one request of each kind."""
    topics = _by_topic(request.partitions)
    message = stop.StopReplicaRequest(
        controller_id=request.head.controller_id,
        controller_epoch=request.head.controller_epoch,
        broker_epoch=request.head.broker_epoch,
    )
    if version >= 3:
        message.topic_states = [
            stop.StopReplicaTopicState(
                topic_name=topic,
                partition_states=[
                    stop.StopReplicaPartitionState(
                        partition_index=s.partition.partition, leader_epoch=s.leader_epoch, delete_partition=s.delete
                    )
                    for s in states
                ],
            )
            for topic, states in topics.items()
        ]
        return message
    message.delete_partitions = request.partitions[0].delete
    message.topics = [
        stop.StopReplicaTopicV1(name=topic, partition_indexes=[s.partition.partition for s in states])
        for topic, states in topics.items()
    ]
    return message


# ---- answers ---------------------------------------------------------------------------------------------------------


def decode_response(request: ControlRequest, message: Any) -> ControlResponse:
    """Decode the answer of a broker. From version 5 on LeaderAndIsr names topics by the ids of the request."""
    error = ErrorCode.of(message.error_code)
    if isinstance(request, UpdateMetadataRequest):
        return ControlResponse(error)
    if isinstance(request, StopReplicaRequest):
        flat = ((TopicPartition(p.topic_name, p.partition_index), p.error_code) for p in message.partition_errors)
        return ControlResponse(error, tuple((tp, ErrorCode.of(code)) for tp, code in flat))
    return ControlResponse(error, _leader_and_isr_errors(request, message))


def _leader_and_isr_errors(
    request: LeaderAndIsrRequest, message: lair.LeaderAndIsrResponse
) -> tuple[tuple[TopicPartition, ErrorCode], ...]:
    names: dict[UUID, str] = {topic_id: topic for topic, topic_id in request.topic_ids}
    errors = [
        (make_topic_partition((names[topic.topic_id], p.partition_index)), ErrorCode.of(p.error_code))
        for topic in message.topics
        if topic.topic_id in names
        for p in topic.partition_errors
    ]
    errors += [
        (TopicPartition(p.topic_name, p.partition_index), ErrorCode.of(p.error_code)) for p in message.partition_errors
    ]
    return tuple(errors)
