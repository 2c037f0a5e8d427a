"""Requests between brokers without an authorizer: the sender must prove to be a broker, unless everyone is admitted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from klamm import apis
from klamm.apis import produce
from klamm.apis.api_declaration import Api, at_once, bind
from klamm.errors import ErrorCode
from klamm.log.producer_state import AppendOrigin
from klamm.model import TopicPartition
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from klamm.protocol.schema import plan
from klamm.protocol.wire import Message
from klamm.replica.append_path import append_records
from tests.support.messages import build, codes
from tests.support.one_broker import OneBroker, batch

BETWEEN_BROKERS = (
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "ControlledShutdown",
    "AlterPartition",
    "AllocateProducerIds",
)
REFUSED = {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[OneBroker]:
    one = OneBroker(tmp_path, {"klamm.admit.unproven.peers": "false"})
    yield one
    one.close()


@pytest.fixture
def open_to_all(tmp_path: Path) -> Iterator[OneBroker]:
    one = OneBroker(tmp_path, {"klamm.admit.unproven.peers": "true"})
    yield one
    one.close()


def ask(one: OneBroker, name: str, request: Message, version: int, peer: int | None) -> Any:
    api: Api[Any, Any] = next(api for api in bind(apis.ALL, one.broker) if api.name == name)
    channel = ChannelContext(order=1)
    channel.peer_broker_id = peer
    ctx = RequestContext(api.key, version, channel=channel, now_ms=one.clock.now_ms())
    result: Any = api.dispatch(ctx, request)
    while isinstance(result, (GeneratorType, asyncio.Future)):
        result = at_once(result) if isinstance(result, GeneratorType) else one.run(result)
    return result


def errors(one: OneBroker, name: str, request: Message, version: int, peer: int | None) -> set[int]:
    response = ask(one, name, request, version, peer)
    api = next(api for api in apis.ALL if api.name == name)
    return {code for _, code in codes(plan(api.response, version), response)}


def request_of(name: str, sender: int) -> tuple[Message, int]:
    api = next(api for api in apis.ALL if api.name == name)
    version = api.versions[1]
    fields = {"controller_id": sender, "broker_id": sender, "controller_epoch": 0, "broker_epoch": 0}
    return build(plan(api.request, version), fields), version


@pytest.mark.parametrize("name", BETWEEN_BROKERS)
def test_a_sender_that_proved_nothing_is_refused(strict: OneBroker, name: str) -> None:
    request, version = request_of(name, sender=2)
    assert errors(strict, name, request, version, peer=None) == REFUSED


@pytest.mark.parametrize("name", BETWEEN_BROKERS)
def test_a_broker_may_not_speak_for_another(strict: OneBroker, name: str) -> None:
    request, version = request_of(name, sender=2)
    assert errors(strict, name, request, version, peer=3) == REFUSED


@pytest.mark.parametrize("name", BETWEEN_BROKERS)
def test_a_proven_broker_reaches_the_handler(strict: OneBroker, name: str) -> None:
    request, version = request_of(name, sender=2)
    assert not errors(strict, name, request, version, peer=2) & REFUSED


@pytest.mark.parametrize("name", BETWEEN_BROKERS)
def test_everyone_is_admitted_by_a_setting(open_to_all: OneBroker, name: str) -> None:
    request, version = request_of(name, sender=2)
    assert not errors(open_to_all, name, request, version, peer=None) & REFUSED


def fetch(replica_id: int, version: int, offset: int) -> FetchRequest:
    partition = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    if version >= 15:
        request.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=-1)
    else:
        request.replica_id = replica_id
    return request


@pytest.mark.parametrize("version", [4, 12, 15])
def test_a_forged_follower_does_not_move_the_high_watermark(strict: OneBroker, version: int) -> None:
    tp = TopicPartition("t", 0)
    strict.lead("t", isr=(1, 2), replicas=(1, 2))
    data = PartitionProduceData(index=0, records=batch(b"one"))
    sent = [TopicProduceData(name="t", partition_data=[data])]
    strict.ask(produce.API, ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=sent), 9)
    log = strict.broker.replicas.partitions[tp].log
    assert log is not None
    end = log.log_end_offset
    assert end == 1 and log.high_watermark == 0
    for peer in (None, 3):
        response = ask(strict, "Fetch", fetch(2, version, end), version, peer)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED or version < 7
        assert not response.responses
        assert log.high_watermark == 0
    if version < 15:
        ask(strict, "Fetch", fetch(2, version, end), version, peer=2)
        assert log.high_watermark == 1, "the follower itself acknowledges the record"


@pytest.mark.parametrize("version", [4, 12])
def test_a_forged_follower_does_not_acknowledge_a_record(strict: OneBroker, version: int) -> None:
    """A producer with acks=all waits for the follower itself."""
    strict.lead("t", isr=(1, 2), replicas=(1, 2))
    data = PartitionProduceData(index=0, records=batch(b"one"))
    sent = [TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=60_000, topic_data=sent)
    acknowledged = strict.begin(produce.API, request, 9)
    strict.spin()
    log = strict.broker.replicas.partitions[TopicPartition("t", 0)].log
    assert log is not None and log.log_end_offset == 1
    for peer in (None, 3):
        for offset in (1, 2**62):
            assert not ask(strict, "Fetch", fetch(2, version, offset), version, peer).responses
            strict.spin()
            assert not acknowledged.done()
    ask(strict, "Fetch", fetch(2, version, 1), version, peer=2)
    response = strict.run(acknowledged)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_a_consumer_needs_no_proof(strict: OneBroker) -> None:
    strict.lead("t")
    response = ask(strict, "Fetch", fetch(-1, 12, 0), 12, peer=None)
    assert [p.error_code for topic in response.responses for p in topic.partitions] == [0]


def test_verification_of_transactions_comes_from_brokers(strict: OneBroker) -> None:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="x", producer_id=1, producer_epoch=0, verify_only=True, topics=()
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    assert ask(strict, "AddPartitionsToTxn", request, 4, peer=None).error_code in REFUSED
    assert ask(strict, "AddPartitionsToTxn", request, 4, peer=2).error_code not in REFUSED


def abort_marker(producer_epoch: int, coordinator_epoch: int, producer_id: int = 7) -> WriteTxnMarkersRequest:
    topics = [WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=topics,
        coordinator_epoch=coordinator_epoch,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def append(one: OneBroker, sequence: int, **fields: Any) -> int:
    data = batch(b"v", producer_id=7, producer_epoch=3, base_sequence=sequence, **fields)
    results = append_records(one.broker.replicas, 1, True, AppendOrigin.CLIENT, {TopicPartition("t", 0): data})
    assert isinstance(results, dict)
    return results[TopicPartition("t", 0)].error


def test_a_client_cannot_fence_a_producer_with_a_marker(strict: OneBroker) -> None:
    strict.lead("t")
    assert append(strict, 0) == 0
    for epoch in (3, 4, 32_767):
        refused = errors(strict, "WriteTxnMarkers", abort_marker(epoch, 0), 1, peer=None)
        assert refused == {ErrorCode.INVALID_PRODUCER_EPOCH}, "nothing is open"
    for producer_id in (-1, -(2**63)):
        assert errors(strict, "WriteTxnMarkers", abort_marker(3, 0, producer_id), 1, peer=None) == REFUSED
    assert append(strict, 1) == 0
    assert append(strict, 2, is_transactional=True) == 0
    assert errors(strict, "WriteTxnMarkers", abort_marker(4, 0), 1, peer=None) == {ErrorCode.INVALID_PRODUCER_EPOCH}
    assert append(strict, 3, is_transactional=True) == 0


def test_a_client_cannot_fence_a_coordinator_with_a_marker(strict: OneBroker) -> None:
    strict.lead("t")
    assert append(strict, 0, is_transactional=True) == 0
    for coordinator_epoch in (1, 2**31 - 1):
        assert errors(strict, "WriteTxnMarkers", abort_marker(3, coordinator_epoch), 1, peer=None) == REFUSED
    assert errors(strict, "WriteTxnMarkers", abort_marker(3, 5), 1, peer=2) == {0}, "brokers raise it"
    assert append(strict, 1, is_transactional=True) == 0
    assert errors(strict, "WriteTxnMarkers", abort_marker(3, 6), 1, peer=None) == REFUSED
    assert errors(strict, "WriteTxnMarkers", abort_marker(3, 5), 1, peer=None) == {0}, "an operator aborts"


def test_markers_and_epochs_of_followers_come_from_brokers(strict: OneBroker) -> None:
    marker = {"producer_id": 1, "transaction_result": True, "topics": [{"name": "t", "partition_indexes": [0]}]}
    markers_layout = plan(next(a for a in apis.ALL if a.name == "WriteTxnMarkers").request, 1)
    markers = build(markers_layout, {"markers": [marker]})
    assert errors(strict, "WriteTxnMarkers", markers, 1, peer=None) == REFUSED
    assert not errors(strict, "WriteTxnMarkers", markers, 1, peer=2) & REFUSED
    marker["transaction_result"] = False
    aborts = build(markers_layout, {"markers": [marker]})
    assert not errors(strict, "WriteTxnMarkers", aborts, 1, peer=None) & REFUSED, "an operator ends a transaction"
    several = build(
        plan(next(a for a in apis.ALL if a.name == "WriteTxnMarkers").request, 1), {"markers": [marker] * 2}
    )
    assert errors(strict, "WriteTxnMarkers", several, 1, peer=None) == REFUSED
    layout = plan(next(a for a in apis.ALL if a.name == "OffsetForLeaderEpoch").request, 4)
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": "t", "partitions": [partition]}]
    follower = build(layout, {"replica_id": 2, "topics": topics})
    assert errors(strict, "OffsetForLeaderEpoch", follower, 4, peer=None) == REFUSED
    assert not errors(strict, "OffsetForLeaderEpoch", follower, 4, peer=2) & REFUSED
    consumer = build(layout, {"replica_id": -1, "topics": topics})
    assert not errors(strict, "OffsetForLeaderEpoch", consumer, 4, peer=None) & REFUSED
