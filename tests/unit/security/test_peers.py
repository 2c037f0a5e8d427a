"""Requests between brokers for which no entry decides: the sender must prove to be a broker, unless all are admitted.

No entry decides without an authorizer, and if there are none for the cluster and
`allow.everyone.if.no.acl.found` allows everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any, cast

import pytest

from klamm import apis
from klamm.apis import produce
from klamm.apis.api_declaration import Api, at_once, bind
from klamm.apis.fetch_context import FetchContext
from klamm.broker import Acls
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
from klamm.replica.fetch_path import FetchParams
from klamm.replica.partition_reader import Isolation
from klamm.replica.remote_replica import RemoteReplica
from klamm.security.acl import audit
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.security.acl.bindings import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclOperation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from klamm.security.acl.rules import AclRules
from klamm.security.listener_security import ANONYMOUS
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


ROOT, OTHER = "User:root", "User:other"


def acls() -> Acls:
    authorizer = AclAuthorizer([ROOT], allow_everyone_if_no_acl_found=True)
    topic = ResourcePattern(ResourceType.TOPIC, "unrelated")
    authorizer.replace_rules(AclRules.of([AclBinding(topic, entry(AclOperation.READ))]))
    return Acls(authorizer, cast(Any, None))


def entry(operation: AclOperation) -> AclEntry:
    return AclEntry(OTHER, "*", operation, Permission.ALLOW)


def enter(one: OneBroker, operation: AclOperation) -> None:
    """Add an entry of another user for the cluster."""
    assert one.broker.acls is not None
    binding = AclBinding(ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME), entry(operation))
    one.broker.acls.authorizer.replace_rules(AclRules.of([binding]))


def opened(tmp_path: Path, *, admits: bool, has_authorizer: bool) -> Iterator[OneBroker]:
    one = OneBroker(tmp_path, {"klamm.admit.unproven.peers": str(admits).lower()})
    if has_authorizer:
        one.give(acls=acls())
    yield one
    one.close()


@pytest.fixture(params=[False, True], ids=["without an authorizer", "with an authorizer"])
def strict(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OneBroker]:
    yield from opened(tmp_path, admits=False, has_authorizer=request.param)


@pytest.fixture(params=[False, True], ids=["without an authorizer", "with an authorizer"])
def open_to_all(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OneBroker]:
    yield from opened(tmp_path, admits=True, has_authorizer=request.param)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[OneBroker]:
    yield from opened(tmp_path, admits=False, has_authorizer=True)


def ask(one: OneBroker, name: str, request: Message, version: int, peer: int | None, principal: str = ANONYMOUS) -> Any:
    api: Api[Any, Any] = next(api for api in bind(apis.ALL, one.broker) if api.name == name)
    channel = ChannelContext(principal=principal, order=1)
    channel.peer_broker_id = peer
    ctx = RequestContext(api.key, version, channel=channel, now_ms=one.clock.now_ms())
    result: Any = api.dispatch(ctx, request)
    while isinstance(result, (GeneratorType, asyncio.Future)):
        result = at_once(result) if isinstance(result, GeneratorType) else one.run(result)
    return result


def errors(
    one: OneBroker, name: str, request: Message, version: int, peer: int | None, principal: str = ANONYMOUS
) -> set[int]:
    response = ask(one, name, request, version, peer, principal)
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


@pytest.mark.parametrize("name", BETWEEN_BROKERS)
def test_a_super_user_needs_no_proof(guarded: OneBroker, name: str) -> None:
    request, version = request_of(name, sender=2)
    assert not errors(guarded, name, request, version, peer=None, principal=ROOT) & REFUSED


@pytest.mark.parametrize("name", BETWEEN_BROKERS)
def test_entries_of_the_cluster_decide_without_a_proof(guarded: OneBroker, name: str) -> None:
    request, version = request_of(name, sender=2)
    enter(guarded, AclOperation.CLUSTER_ACTION)
    assert not errors(guarded, name, request, version, peer=None, principal=OTHER) & REFUSED
    assert errors(guarded, name, request, version, peer=2) == REFUSED, "as in Kafka, the principal needs the right"


def test_a_refusal_for_lack_of_a_proof_is_logged(guarded: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, audit.LOGGER)
    request, version = request_of("AlterPartition", sender=2)
    errors(guarded, "AlterPartition", request, version, peer=2)
    assert not caplog.messages
    errors(guarded, "AlterPartition", request, version, peer=3)
    (line,) = caplog.messages
    assert line.startswith("Principal = User:ANONYMOUS is Denied Operation = ClusterAction from host = 127.0.0.1")


def test_alter_on_the_cluster_allows_commits_by_an_entry_only(guarded: OneBroker) -> None:
    """Everyone has ALTER while the cluster has no entries."""
    guarded.lead("t")
    marker = abort_marker(3, 0)
    marker.markers[0].transaction_result = True
    assert errors(guarded, "WriteTxnMarkers", marker, 1, peer=None) == REFUSED
    assert not errors(guarded, "WriteTxnMarkers", marker, 1, peer=None, principal=ROOT) & REFUSED
    enter(guarded, AclOperation.ALTER)
    assert not errors(guarded, "WriteTxnMarkers", marker, 1, peer=None, principal=OTHER) & REFUSED


def fetch(replica_id: int, version: int, offset: int, *, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    partition = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    if version >= 15:
        request.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=-1)
    else:
        request.replica_id = replica_id
    return request


def is_refused(one: OneBroker, response: Any, version: int) -> bool:
    """Whether a fetch gets nothing. An authorizer refuses partitions, not requests."""
    if one.broker.acls is None:
        is_named = response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED or version < 7
        return is_named and not response.responses
    partitions = [partition for topic in response.responses for partition in topic.partitions]
    return [partition.error_code for partition in partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


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
        assert is_refused(strict, response, version)
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
            assert is_refused(strict, ask(strict, "Fetch", fetch(2, version, offset), version, peer), version)
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
    found = errors(strict, "OffsetForLeaderEpoch", follower, 4, peer=None)
    # With an authorizer, DESCRIBE on the topic is enough, and everyone has it.
    assert (found == REFUSED) == (strict.broker.acls is None)
    assert not errors(strict, "OffsetForLeaderEpoch", follower, 4, peer=2) & REFUSED
    consumer = build(layout, {"replica_id": -1, "topics": topics})
    assert not errors(strict, "OffsetForLeaderEpoch", consumer, 4, peer=None) & REFUSED


def followed(one: OneBroker) -> tuple[int, RemoteReplica]:
    """Return the session of broker 2, which has the whole log, and its replica at the leader."""
    one.lead("t", isr=(1, 2), replicas=(1, 2))
    first = ask(one, "Fetch", fetch(2, 12, 0, session_epoch=0), 12, peer=2)
    assert first.session_id
    return first.session_id, one.broker.replicas.partitions[TopicPartition("t", 0)].remotes[2]


def next_of(session_id: int, replica_id: int) -> FetchRequest:
    return FetchRequest(
        replica_id=replica_id, max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=1, topics=[]
    )


@pytest.mark.parametrize("peer", [None, 3])
@pytest.mark.parametrize("replica_id", [2, -1])
def test_a_forged_follower_does_not_keep_another_one_in_sync(
    strict: OneBroker, replica_id: int, peer: int | None
) -> None:
    """It has the same principal and host, and knows the session."""
    session_id, remote = followed(strict)
    caught_up_ms = remote.last_caught_up_time_ms
    strict.clock.elapsed_ms += 10_000
    response = ask(strict, "Fetch", next_of(session_id, replica_id), 12, peer)
    assert remote.last_caught_up_time_ms == caught_up_ms
    if replica_id < 0:
        return
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and not response.responses
    strict.clock.elapsed_ms += 1
    own = ask(strict, "Fetch", next_of(session_id, replica_id), 12, peer=2)
    assert own.error_code == 0, "its session has stayed as it was"
    assert remote.last_caught_up_time_ms == caught_up_ms + 10_001


def test_another_proof_decides_again_which_partitions_may_be_read(guarded: OneBroker) -> None:
    _, remote = followed(guarded)
    (session,) = guarded.broker.fetch_sessions
    caught_up_ms = remote.last_caught_up_time_ms
    guarded.clock.elapsed_ms += 10_000
    channel = ChannelContext(order=1)
    ctx = RequestContext(1, 12, channel=channel, now_ms=guarded.clock.now_ms())
    params = FetchParams(0, 0, 1000, Isolation.LOG_END, replica_id=2)
    context = FetchContext(session, [], is_full=False)
    assert context.begin(guarded.broker, params, ctx) == list(session.partitions.values())
    assert remote.last_caught_up_time_ms == caught_up_ms
