"""Aimed scenarios of logs and of `transaction.version`: stable offsets, recovery, truncation, brokers that join."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.log.producer_history import MAX_CHANGES
from klamm.model import TopicPartition, TransactionVersion
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.replica.partition_reader import LATEST_TIMESTAMP
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.cluster import SimNode
from klamm.sim.network import is_request
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import REPAIRED, Aim, Stage
from klamm.sim.transactions.committed_reader import READ_COMMITTED
from klamm.sim.violation import require

READ_UNCOMMITTED: Final = 0
CUT_S: Final = 0.6
SHORT_S: Final = 0.1
_FIRST_OTHER_PRODUCER: Final = 1_000_000


async def _hold_back_unreplicated_end(stage: Stage) -> None:
    """The marker is in the leader's log, but not on all replicas: the transaction still counts as open."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    leader = await stage.leader(tp)
    follower = next(node for node in stage.nodes if node not in (coordinator, leader))
    await actor.write(tp)
    fetch = stage.detain(follower.host, FetchRequest, leader)
    await stage.detained(fetch)
    await actor.commit()
    await stage.wait(lambda: _log(leader, tp).log_end_offset == 2, "the leader has the marker")
    end = await _stable_end(stage, leader, tp)
    require(end == 0, f"{tp} is stable up to {end}, although its marker is not on all replicas")
    fetch.release()
    await actor.write(tp)
    await actor.commit()


async def _stable_end(stage: Stage, leader: SimNode, tp: TopicPartition, timestamp: int = LATEST_TIMESTAMP) -> int:
    wanted = ListOffsetsPartition(partition_index=tp.partition, current_leader_epoch=-1, timestamp=timestamp)
    topic = ListOffsetsTopic(name=tp.topic, partitions=[wanted])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=[topic])
    response = await stage.ask(leader, request, 5)
    return int(response.topics[0].partitions[0].offset)


def _log(node: SimNode, tp: TopicPartition) -> Log:
    assert node.broker is not None
    return node.broker.logs.logs[tp]


async def _list_overlapping_aborts(stage: Stage) -> None:
    """The transaction that begins first is aborted last: readers of committed records get both, by their beginning."""
    first, second, tp = Actor(stage, "v"), Actor(stage, "w"), stage.tps[0]
    for each in (first, second):
        await each.init()
        await each.write(tp)
    leader = await stage.leader(tp)
    await second.abort()  # The answer comes before the marker, and the markers of two transactions can pass each other.
    await stage.wait(lambda: _log(leader, tp).log_end_offset == 3, "the marker of the second transaction is written")
    await first.abort()
    await stage.wait(lambda: _log(leader, tp).last_stable_offset == 4, "both transactions have ended")
    found = await _aborted(stage, leader, tp, READ_COMMITTED)
    expected = [(first.identity.producer_id, 0), (second.identity.producer_id, 1)]
    require(found == expected, f"the aborted transactions are {found}, expected: {expected}")
    found = await _aborted(stage, leader, tp, READ_UNCOMMITTED)
    require(found is None, f"a reader of uncommitted records got the aborted transactions {found}")


async def _aborted(stage: Stage, leader: SimNode, tp: TopicPartition, isolation: int) -> list[tuple[int, int]] | None:
    return (await _fetch(stage, leader, tp, isolation))[1]


async def _fetch(
    stage: Stage, leader: SimNode, tp: TopicPartition, isolation: int
) -> tuple[int, list[tuple[int, int]] | None]:
    """Return the number of bytes that a reader receives, and the aborted transactions."""
    wanted = FetchPartition(partition=tp.partition, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=10_000)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=10_000,
        isolation_level=isolation,
        topics=[FetchTopic(topic=tp.topic, partitions=[wanted])],
    )
    response = await stage.ask(leader, request, 11)
    partition = response.responses[0].partitions[0]
    expect("Fetch", ErrorCode(partition.error_code), ErrorCode.NONE)
    found = partition.aborted_transactions
    size = len(partition.records or b"")
    return size, None if found is None else [(txn.producer_id, txn.first_offset) for txn in found]


async def _read_from_follower(stage: Stage) -> None:
    """A follower shows nothing of an open transaction, and reports an aborted one. Neither is found by its time."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    await actor.write(tp)
    leader = await stage.leader(tp)
    follower = next(node for node in stage.nodes if node is not leader)
    await stage.wait(lambda: _log(follower, tp).high_watermark == 1, "the follower has the record")
    for node in (leader, follower):
        size, found = await _fetch(stage, node, tp, READ_COMMITTED)
        require(not size, f"broker {node.id} shows {size} bytes of an open transaction")
    found_at = await _stable_end(stage, leader, tp, 0)
    require(found_at == -1, f"a time is found at {found_at}, in an open transaction")
    await actor.abort()
    await stage.wait(lambda: _log(follower, tp).last_stable_offset == 2, "the follower has the marker")
    found = await _aborted(stage, follower, tp, READ_COMMITTED)
    expected = [(actor.identity.producer_id, 0)]
    require(found == expected, f"the aborted transactions of the follower are {found}, expected: {expected}")


async def _write_small_messages(stage: Stage) -> None:
    """A topic accepts only batches that are smaller than a marker: its transactions end all the same."""
    actor = Actor(stage, "w")
    small = await stage.create_topic("small", 3, {"max.message.bytes": "75"})
    await actor.init()
    for commit in (True, False):
        await actor.write(small)
        expect("an end", await actor.end(commit=commit), ErrorCode.NONE)
    leader = await stage.leader(small)
    await stage.wait(lambda: _log(leader, small).last_stable_offset == 4, "both transactions have ended")


async def _recover_logs(stage: Stage) -> None:
    """All brokers are killed: the logs still know which transactions were aborted, and which one is open."""
    actor, other = Actor(stage, "w"), Actor(stage, "v")
    await actor.init()
    await other.init()
    await actor.write(*stage.tps)
    await actor.abort()
    await actor.write(*stage.tps)
    await actor.commit()
    await other.write(stage.tps[0])
    await stage.restart(*stage.nodes)
    await other.abort()


async def _late_batch_after_truncation(stage: Stage) -> None:
    """A replica truncates its log so far that it reads its producers again and forgets when a transaction was aborted.

    It leads, and a late batch arrives.
    """
    actor = Actor(stage, "w")
    await actor.init()
    home = next(node for node in stage.nodes if node is not stage.controller)
    tp, others = stage.tps[0], [node for node in stage.nodes if node is not home]
    await stage.lead(tp, home)
    await actor.write(tp)
    late = stage.detain(actor.host, ProduceRequest)
    sending = asyncio.ensure_future(actor.produce(tp, on="first", once=True))
    await stage.detained(late)
    await actor.abort()
    end = 2  # Behind a record and the marker.
    await stage.wait(lambda: {_log(node, tp).high_watermark for node in stage.nodes} == {end}, "all have the marker")
    for other in others:
        stage.cut(home, other, CUT_S)
    await asyncio.gather(*[_write_alone(stage, home, tp, number) for number in range(MAX_CHANGES + 1)])
    await stage.lead(tp, others[0])
    await stage.wait(lambda: _log(home, tp).log_end_offset == end, "the replica has truncated its log")
    await stage.wait(lambda: _log(home, tp).high_watermark == end, "the replica follows")
    await stage.lead(tp, home)
    await actor.add(tp)
    late.release()
    expect("a batch of an aborted transaction", await sending, None)
    await actor.commit()


async def _write_alone(stage: Stage, leader: SimNode, tp: TopicPartition, number: int) -> None:
    """A record of another producer, without a transaction, that no follower gets."""
    producer_id = _FIRST_OTHER_PRODUCER + number
    batch = build_batch(
        [Record(timestamp=0, value=b"alone")], producer_id=producer_id, producer_epoch=0, base_sequence=0
    )
    data = PartitionProduceData(index=tp.partition, records=batch)
    topic = TopicProduceData(name=tp.topic, partition_data=[data])
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=1_000, topic_data=[topic])
    response = await stage.ask(leader, request, 9)
    code = ErrorCode(response.responses[0].partition_responses[0].error_code)
    expect("a record for the leader alone", code, ErrorCode.NONE)


async def _switch_version(stage: Stage) -> None:
    """A broker joins: `transaction.version` is off until the others know that it speaks the repaired protocol."""
    actor, joining = Actor(stage, "w", is_new=True), stage.nodes[-1]
    if joining is stage.controller:
        joining = stage.nodes[0]
    others = [node for node in stage.nodes if node is not joining]
    await stage.wait(lambda: all(_level(node) == TransactionVersion.TV_2 for node in others), "the level is 2")
    await actor.init()
    joining.kill()
    await stage.wait(lambda: not any(_knows(node, joining) for node in others), "the others know of its end")
    tp = await stage.partition_away_from(joining)
    await actor.write(tp)
    await _commit(stage, actor, 5, closes=False)
    await actor.write(tp)
    questions = [stage.cluster.network.detain(node.host, _is_question_of_features, joining.host) for node in others]
    joining.start()
    await stage.wait(lambda: all(_knows(node, joining) for node in others), "the others know of its start")
    levels = [_level(node) for node in others]
    require(max(levels) == TransactionVersion.TV_0, f"the levels are {levels} with a broker that nobody knows")
    await _commit(stage, actor, 5, closes=True)
    older = Actor(stage, "v")
    await older.init()
    names = ApiVersionsRequest(client_software_name="java", client_software_version="3")
    await older.ask(await stage.coordinator(older.transactional_id), names, 3)
    await older.write(tp)
    await _commit(stage, older, 4, closes=False)
    await older.write(tp)
    for question in questions:
        question.release()
    await stage.wait(lambda: all(_level(node) == TransactionVersion.TV_2 for node in others), "the level is 2 again")
    await _commit(stage, older, 4, closes=True)
    await older.ask(await stage.coordinator(older.transactional_id), names, 3)
    await older.write(tp)
    await _commit(stage, older, 4, closes=False)
    await actor.write(stage.tps[0])
    await _commit(stage, actor, 5, closes=False)


async def _commit(stage: Stage, actor: Actor, version: int, *, closes: bool) -> None:
    """Commit with this version of EndTxn; `closes`: the coordinator closes the connection with its answer."""
    coordinator = await stage.coordinator(actor.transactional_id)
    expect(f"EndTxn v{version} of {actor.host}", await actor.end(commit=True, version=version), ErrorCode.NONE)
    await asyncio.sleep(SHORT_S)
    end = "closed" if closes else "left open"
    require(actor.is_connected(coordinator) != closes, f"the connection of EndTxn v{version} is not {end}")


def _is_question_of_features(data: bytes) -> bool:
    return is_request(ApiVersionsRequest.KEY)(data) and b"-features" in data


def _level(node: SimNode) -> TransactionVersion:
    assert node.broker is not None
    return node.broker.features.version


def _knows(node: SimNode, other: SimNode) -> bool:
    assert node.broker is not None
    return other.id in node.broker.metadata.snapshot.brokers


AIMS_OF_LOGS: Final[dict[str, Aim]] = {
    "unreplicated end": Aim(_hold_back_unreplicated_end),
    "overlapping aborts": Aim(_list_overlapping_aborts),
    "reader of a follower": Aim(_read_from_follower),
    "small messages": Aim(_write_small_messages),
    "recovered logs": Aim(_recover_logs),
    "late batch after a truncation": Aim(_late_batch_after_truncation),
    "broker that joins": Aim(_switch_version, REPAIRED),
}
