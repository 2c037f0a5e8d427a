"""Aimed scenarios of single requests: early ends, control records of clients, descriptions, coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.list_transactions import ListTransactionsRequest
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.cluster import SimNode
from klamm.sim.transactions.aimed_actor import Actor, Prepared
from klamm.sim.transactions.aimed_stage import TRANSACTION_KEY, Aim, Stage
from klamm.sim.violation import require

ABORT_MARKER: Final = bytes(4)
IDS: Final = "abcdefgh"


async def _end_while_completing(stage: Stage) -> None:
    """The markers of a commit are held back: every end of the next transaction has to wait (decision 0028)."""
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    coordinator = await stage.coordinator(actor.transactional_id)
    markers = stage.detain(coordinator.host, WriteTxnMarkersRequest)
    await actor.commit()
    await stage.detained(markers)
    for commit in (True, False):
        early = await actor.end(commit=commit, once=True)
        expect("an end before the markers", early, ErrorCode.CONCURRENT_TRANSACTIONS)
    markers.release()
    await actor.write(stage.tps[0])
    await actor.commit()


async def _write_control_records(stage: Stage) -> None:
    """A client sends a batch that looks like an abort marker of its own transaction."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    await actor.write(tp)
    marker = build_batch(
        [Record(timestamp=0, key=ABORT_MARKER, value=bytes(6))],
        producer_id=actor.identity.producer_id,
        producer_epoch=actor.identity.producer_epoch,
        base_sequence=1,
        is_control=True,
        is_transactional=True,
    )
    nobody = build_batch([Record(timestamp=0, value=b"nobody's")], is_transactional=True)
    for what, batch in (("a control batch of a client", marker), ("a transactional batch of nobody", nobody)):
        expect(what, await actor.deliver(Prepared({tp: batch}, {})), ErrorCode.INVALID_RECORD)
    await actor.commit()


async def _end_as_operator(stage: Stage) -> None:
    """An operator may abort an open transaction in its own epoch, and nothing else: higher epochs fence for ever."""
    actor = Actor(stage, "w")
    await actor.init()
    tp = await stage.partition_away_from(await stage.coordinator(actor.transactional_id))
    await actor.write(tp)
    await actor.abort()
    await actor.init()
    await actor.write(tp)
    leader = await stage.leader(tp)
    assert leader.broker is not None
    known = leader.broker.logs.logs[tp].producers.entries[actor.identity.producer_id].coordinator_epoch
    for what, epoch, coordinator_epoch, commit, expected in (
        ("a commit", 0, known, True, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ("a later producer epoch", 1, known, False, ErrorCode.INVALID_PRODUCER_EPOCH),
        ("a later coordinator", 0, known + 1, False, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ("an abort", 0, known, False, ErrorCode.NONE),
    ):
        marker = WritableTxnMarker(
            producer_id=actor.identity.producer_id,
            producer_epoch=actor.identity.producer_epoch + epoch,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            coordinator_epoch=coordinator_epoch,
        )
        response = await stage.ask(leader, WriteTxnMarkersRequest(markers=[marker]), 1)
        code = ErrorCode(response.markers[0].topics[0].partitions[0].error_code)
        expect(f"{what} of an operator", code, expected)
    await actor.abort()


async def _add_all_or_none(stage: Stage) -> None:
    """One of two partitions does not exist: the other one is not added either, and no transaction is open."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    topics = [_topic(tp), AddPartitionsToTxnTopic(name="missing", partitions=[0])]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=actor.transactional_id,
        v3_and_below_producer_id=actor.identity.producer_id,
        v3_and_below_producer_epoch=actor.identity.producer_epoch,
        v3_and_below_topics=topics,
    )
    response = await actor.ask(coordinator, request, 3)
    codes = _codes(response.results_by_topic_v3_and_below)
    expected = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    require(codes == expected, f"AddPartitionsToTxn answers {codes}, expected: {expected}")
    described = await _described(stage, coordinator, actor)
    require(described.transaction_state == "Empty", f"the transaction is {described.transaction_state}")
    await actor.write(tp)
    await actor.commit()


async def _verify_several(stage: Stage) -> None:
    """A leader asks about two transactions at once: each has its own answer, and nothing is added."""
    one, other = Actor(stage, "w"), Actor(stage, "v")
    tp, another = stage.tps[:2]
    await one.init()
    coordinator = await stage.coordinator(one.transactional_id)
    await other.init()
    await stage.lead(stage.transactions_of(other.transactional_id), coordinator)
    await one.write(tp)
    await other.write(another)
    asked = [
        AddPartitionsToTxnTransaction(
            transactional_id=actor.transactional_id,
            producer_id=actor.identity.producer_id,
            producer_epoch=actor.identity.producer_epoch,
            verify_only=True,
            topics=[_topic(tp)],
        )
        for actor in (one, other)
    ]
    response = await stage.ask(coordinator, AddPartitionsToTxnRequest(transactions=asked), 4)
    codes = [code for result in response.results_by_transaction for code in _codes(result.topic_results)]
    expected = [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
    require(codes == expected, f"the verification of two transactions is {codes}, expected: {expected}")
    described = await _described(stage, coordinator, other)
    found = [(topic.topic, tuple(topic.partitions)) for topic in described.topics]
    require(found == [(another.topic, (another.partition,))], f"the second transaction has {found}")
    await one.commit()
    await other.commit()


async def _describe(stage: Stage) -> None:
    """An open transaction is shown by its coordinator, and by every replica of its partition."""
    actor, idle, tp = Actor(stage, "w"), Actor(stage, "v"), stage.tps[0]
    await actor.init()
    await idle.init()
    await actor.write(tp)
    leader = await stage.leader(tp)
    assert leader.broker is not None
    end = leader.broker.logs.logs[tp].log_end_offset
    for node in stage.nodes:
        assert node.broker is not None
        log = node.broker.logs.logs[tp]
        await stage.wait(lambda log=log: log.log_end_offset == end, "the replica has the batch")  # type: ignore[misc]
        await _check_producers(stage, node, tp, actor)
    described = await _described(stage, await stage.coordinator(actor.transactional_id), actor)
    require(described.transaction_state == "Ongoing", f"the transaction is {described.transaction_state}")
    listed: set[str] = set()
    for node in stage.nodes:
        response = await stage.ask(node, ListTransactionsRequest(state_filters=["Ongoing"]), 0)
        expect("ListTransactions", ErrorCode(response.error_code), ErrorCode.NONE)
        listed.update(it.transactional_id for it in response.transaction_states)
    require(listed == {actor.transactional_id}, f"the open transactions are {listed}")
    await actor.commit()


async def _check_producers(stage: Stage, node: SimNode, tp: TopicPartition, actor: Actor) -> None:
    topic = TopicRequest(name=tp.topic, partition_indexes=[tp.partition])
    response = await stage.ask(node, DescribeProducersRequest(topics=[topic]), 0)
    partition = response.topics[0].partitions[0]
    expect(f"DescribeProducers of broker {node.id}", ErrorCode(partition.error_code), ErrorCode.NONE)
    found = [(it.producer_id, it.current_txn_start_offset) for it in partition.active_producers]
    expected = [(actor.identity.producer_id, 0)]
    require(found == expected, f"broker {node.id} has the producers {found}, expected: {expected}")


async def _find_coordinators(stage: Stage) -> None:
    """Every broker names the leader of the transactional id's partition."""
    await stage.coordinator(IDS)
    partitions = {stage.transactions_of(name): None for name in IDS}
    require(len(partitions) > 1, "all transactional ids have the same partition")
    for tp, node in zip(partitions, stage.nodes, strict=False):
        await stage.lead(tp, node)
    for name in IDS:
        leader = await stage.leader(stage.transactions_of(name))
        for node in stage.nodes:
            await _check_coordinator(stage, node, name, leader)


async def _check_coordinator(stage: Stage, node: SimNode, name: str, leader: SimNode) -> None:
    """The metadata of a broker may lag for a moment."""
    for _ in range(20):
        request = FindCoordinatorRequest(key=name, key_type=TRANSACTION_KEY)
        response = await stage.ask(node, request, 3)
        if response.node_id == leader.id:
            return
        await asyncio.sleep(0.05)
    require(False, f"broker {node.id} names {response.node_id} as the coordinator of {name}, expected: {leader.id}")


async def _described(stage: Stage, coordinator: SimNode, actor: Actor) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=[actor.transactional_id])
    return (await stage.ask(coordinator, request, 0)).transaction_states[0]


def _topic(tp: TopicPartition) -> AddPartitionsToTxnTopic:
    return AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])


def _codes(topics: Sequence[Any]) -> list[ErrorCode]:
    return [ErrorCode(it.partition_error_code) for topic in topics for it in topic.results_by_partition]


AIMS_OF_REQUESTS: Final[dict[str, Aim]] = {
    "end while completing": Aim(_end_while_completing),
    "control records of a client": Aim(_write_control_records),
    "marker of an operator": Aim(_end_as_operator, {"klamm.admit.unproven.peers": False}),
    "missing partition": Aim(_add_all_or_none),
    "several verifications": Aim(_verify_several),
    "described transaction": Aim(_describe),
    "coordinators of ids": Aim(_find_coordinators),
}
