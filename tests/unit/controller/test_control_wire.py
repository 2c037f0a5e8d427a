"""Logical control requests on the wire, under every inter-broker protocol."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from klamm.controller.config import InterBrokerProtocol
from klamm.controller.control_wire import decode_response
from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveLeader,
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.controller.responses import ControlResponse, response_event
from klamm.errors import ErrorCode
from klamm.model import (
    BrokerEndPoints,
    EndPoint,
    LeaderAndIsr,
    LeaderRecoveryState,
    SecurityProtocol,
    TopicPartition,
)
from klamm.protocol.messages import leader_and_isr as lair
from klamm.protocol.messages import request_class
from klamm.protocol.messages import stop_replica as stop
from klamm.protocol.wire import decode, encode
from tests.support.control_requests import encode_request

HEAD = RequestHead(1, 7, 99)
T, TP = UUID(int=5), TopicPartition("t", 3)
ENDPOINT = EndPoint("PLAINTEXT", "h", 9092, SecurityProtocol.PLAINTEXT)
LAIR = LeaderAndIsrRequest(
    HEAD,
    (LeaderAndIsrPartition(TP, LeaderAndIsr(2, 4, (2, 1), 6), 7, (1, 2), (1,), (), True),),
    (("t", T),),
    (LiveLeader(2, ENDPOINT),),
)
UMR = UpdateMetadataRequest(
    HEAD,
    UpdateMetadataBody(
        (UpdateMetadataPartition(TP, 7, 2, 4, (2, 1), 6, (1, 2), (1,)),),
        (("t", T),),
        (BrokerEndPoints(2, (ENDPOINT,), "rack", 5),),
    ),
)
STOP = StopReplicaRequest(HEAD, (StopReplicaPartition(TP, -2, True),))
PROTOCOLS = ["2.4-IV0", "2.4", "2.6", "2.8", "3.2", "3.9"]


def sent(request: ControlRequest, protocol: str) -> tuple[Any, int]:
    key, version, parts = encode_request(request, InterBrokerProtocol.parse(protocol))
    whole = b"".join(bytes(part) for part in parts)
    message, end = decode(request_class(key), version, whole)
    assert end == len(whole)
    return message, version


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_leader_and_isr(protocol: str) -> None:
    message, version = sent(LAIR, protocol)
    assert (message.controller_id, message.controller_epoch, message.broker_epoch) == (1, 7, 99)
    (topic,) = message.topic_states
    (state,) = topic.partition_states
    assert topic.topic_name == "t" and topic.topic_id == (T if version >= 5 else UUID(int=0))
    assert (state.leader, state.leader_epoch, state.partition_epoch, state.controller_epoch) == (2, 4, 6, 7)
    assert list(state.isr) == [2, 1] and list(state.replicas) == [1, 2] and state.is_new
    assert list(state.adding_replicas) == [1]
    assert [(it.broker_id, it.host_name, it.port) for it in message.live_leaders] == [(2, "h", 9092)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_update_metadata(protocol: str) -> None:
    message, version = sent(UMR, protocol)
    assert (message.controller_id, message.controller_epoch, message.broker_epoch) == (1, 7, 99)
    (topic,) = message.topic_states
    (state,) = topic.partition_states
    assert topic.topic_id == (T if version >= 7 else UUID(int=0))
    assert (state.partition_index, state.leader, state.zk_version) == (3, 2, 6)
    assert list(state.offline_replicas) == [1]
    (broker,) = message.live_brokers
    assert (broker.id_, broker.rack, broker.endpoints[0].host, broker.endpoints[0].listener) == (
        2,
        "rack",
        "h",
        "PLAINTEXT",
    )


def many_states(rng: Random) -> tuple[LeaderAndIsrRequest, UpdateMetadataRequest]:
    """Topics of one and of many partitions, not all in one piece, lists of all lengths, one longer than a byte says."""
    reported, metadata = [], []
    for number in range(120):
        tp = TopicPartition(rng.choice(["t", "ü", "a" * 200]), number)
        replicas = tuple(rng.sample(range(300), rng.choice([1, 3, 200])))
        isr, adding, removing, offline = (replicas[: rng.randrange(len(replicas) + 1)] for _ in range(4))
        state = LeaderAndIsr(rng.choice([-1, 7]), number, isr, rng.randrange(9), LeaderRecoveryState(number % 2))
        reported.append(LeaderAndIsrPartition(tp, state, 5, replicas, adding, removing, number % 3 == 0))
        metadata.append(UpdateMetadataPartition(tp, 5, state.leader, number, isr, number, replicas, offline))
    ids = (("t", T), ("ü", UUID(int=9)))
    return (
        LeaderAndIsrRequest(HEAD, tuple(reported), ids, LAIR.live_leaders),
        UpdateMetadataRequest(HEAD, UpdateMetadataBody(tuple(metadata), ids, UMR.body.live_brokers)),
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_states_are_written_as_the_messages_encoders_write_them(protocol: str) -> None:
    for request in many_states(Random(5)):
        parsed, version = sent(request, protocol)
        _, _, parts = encode_request(request, InterBrokerProtocol.parse(protocol))
        assert b"".join(bytes(part) for part in parts) == b"".join(map(bytes, encode(parsed, version)))
        assert sum(len(topic.partition_states) for topic in parsed.topic_states) == 120


def test_a_state_is_encoded_once_for_all_brokers_of_a_batch() -> None:
    other = replace(LAIR, head=RequestHead(1, 7, 100))
    protocol = InterBrokerProtocol.parse("3.9")
    encode_request(LAIR, protocol)
    assert other.encoded is LAIR.encoded and len(other.encoded[7]) == 1
    assert sent(other, "3.9")[0].broker_epoch == 100 and len(other.encoded[7]) == 1


def test_a_body_that_all_brokers_share_is_encoded_once() -> None:
    other = UpdateMetadataRequest(RequestHead(1, 7, 100), UMR.body)
    protocol = InterBrokerProtocol.parse("3.9")
    (_, _, one), (_, _, two) = encode_request(UMR, protocol), encode_request(other, protocol)
    assert one[0] is two[0] and one[2] is two[2]
    assert sent(other, "3.9")[0].broker_epoch == 100


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stop_replica(protocol: str) -> None:
    message, version = sent(STOP, protocol)
    assert message.broker_epoch == 99
    if version >= 3:
        (state,) = message.topic_states[0].partition_states
        assert (state.partition_index, state.leader_epoch, state.delete_partition) == (3, -2, True)
    else:
        assert message.delete_partitions and list(message.topics[0].partition_indexes) == [3]


def test_answers_of_leader_and_isr_are_found_by_topic_id() -> None:
    error = lair.LeaderAndIsrPartitionError(partition_index=3, error_code=56)
    message = lair.LeaderAndIsrResponse(
        error_code=0,
        topics=[
            lair.LeaderAndIsrTopicError(topic_id=T, partition_errors=[error]),
            lair.LeaderAndIsrTopicError(topic_id=UUID(int=9), partition_errors=[error]),
        ],
    )
    assert decode_response(LAIR, message) == ControlResponse(partition_errors=((TP, ErrorCode.KAFKA_STORAGE_ERROR),))


def test_a_stop_replica_that_failed_as_a_whole_failed_for_each_partition() -> None:
    message = stop.StopReplicaResponse(error_code=77, partition_errors=[])
    event = response_event(2, STOP, decode_response(STOP, message))
    assert event is not None
    assert event.partition_errors == ((TP, ErrorCode.STALE_BROKER_EPOCH),)  # type: ignore[union-attr]


def test_an_unknown_code_is_an_unknown_error() -> None:
    message = stop.StopReplicaResponse(error_code=999, partition_errors=[])
    assert decode_response(STOP, message).error is ErrorCode.UNKNOWN_SERVER_ERROR
