"""Aimed scenarios of races: timeouts against ends, failovers between a decision and its markers, late questions."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.model import TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.cluster import SimNode
from klamm.sim.network import Detention
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import REPAIRED, Aim, Stage
from klamm.sim.violation import require

TIMEOUT_MS: Final = 1_000
COMMITS: Final = (
    (True, True),
    (True, True),
    (False, False),
    (False, True),
    (False, True),
    (True, True),
    (True, False),
    (False, False),
)
"""Whether the producer receives the answer, and whether the coordinator moves before the markers are written.

The third and the sixth commit use up a producer id.
"""
ANSWER_S: Final = 10.0
"""How long a leader waits for the coordinator of a transaction."""
MARKERS_S: Final = 0.4
"""Enough for a marker, and too short for a follower to leave the ISR."""

_ALL_IN_SYNC: Final = {"transaction.state.log.min.isr": 3, "request.timeout.ms": 10_000}


def _log(node: SimNode, tp: TopicPartition) -> Log:
    assert node.broker is not None
    return node.broker.logs.logs[tp]


async def _hold_back_followers(stage: Stage, leader: SimNode) -> list[Detention]:
    """From now on no record of the leader is acknowledged by its followers."""
    fetches = [stage.detain(node.host, FetchRequest, leader) for node in stage.nodes if node is not leader]
    for fetch in fetches:
        await stage.detained(fetch)
    return fetches


async def _begin(stage: Stage) -> tuple[Actor, SimNode, float]:
    """Open a transaction with a short timeout; return its producer, its coordinator and the time of its timeout."""
    actor = Actor(stage, "w", timeout_ms=TIMEOUT_MS)
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    times_out_s = stage.now_s + TIMEOUT_MS / 1000
    await actor.write(await stage.partition_away_from(coordinator))
    return actor, coordinator, times_out_s


async def _time_out_during_end(stage: Stage) -> None:
    """A transaction times out while its commit is being stored: the commit counts."""
    actor, coordinator, times_out_s = await _begin(stage)
    await asyncio.sleep(times_out_s - stage.now_s - 0.4)
    fetches = await _hold_back_followers(stage, coordinator)
    require(stage.now_s < times_out_s, "the transaction has timed out too early")
    ending = asyncio.ensure_future(actor.end(commit=True))
    await asyncio.sleep(times_out_s - stage.now_s + 0.5)
    for fetch in fetches:
        fetch.release()
    expect("a commit that is stored slowly", await ending, ErrorCode.NONE)


async def _end_during_timeout(stage: Stage) -> None:
    """A commit arrives while the abort of its transaction, which has timed out, is being stored: the abort counts."""
    actor, coordinator, times_out_s = await _begin(stage)
    log = _log(coordinator, stage.transactions_of(actor.transactional_id))
    await asyncio.sleep(times_out_s - stage.now_s - 0.3)
    fetches = await _hold_back_followers(stage, coordinator)
    end = log.log_end_offset
    await stage.wait(lambda: log.log_end_offset > end, "the coordinator aborts the transaction")
    early = await actor.end(commit=True, once=True)
    expect("a commit while the abort is stored", early, ErrorCode.CONCURRENT_TRANSACTIONS)
    for fetch in fetches:
        fetch.release()
    expect("a commit after the timeout", await actor.end(commit=True), ErrorCode.INVALID_PRODUCER_EPOCH)


async def _fail_over_while_completing(stage: Stage) -> None:
    """The coordinator moves before or after the markers are written, and the answers to some commits are lost.

    Its successor completes the transaction, and knows which epoch or which id the producer continues with.
    """
    actor = Actor(stage, "w", is_new=True)
    await actor.init()
    state = stage.transactions_of(actor.transactional_id)
    ids = {actor.identity.producer_id}
    for is_answered, is_held in COMMITS:
        home = await stage.coordinator(actor.transactional_id)
        tp = await stage.partition_away_from(home)
        await actor.write(tp)
        markers = stage.detain(home.host, WriteTxnMarkersRequest) if is_held else None
        if is_answered:
            await actor.commit()
        else:
            stage.lose_answer(actor.host, EndTxnRequest)
            expect("a commit without an answer", await actor.end(commit=True, once=True), None)
            stage.keep_answers(actor.host, EndTxnRequest)
        if markers is not None:
            await stage.detained(markers)
        else:
            await stage.completed(home, actor.transactional_id)
        await stage.lead(state, next(node for node in stage.nodes if node is not home))
        if not is_answered:
            expect("the repeated commit", await actor.end(commit=True), ErrorCode.NONE)
        if markers is not None:
            markers.release()
        ids.add(actor.identity.producer_id)
    require(len(ids) > 2, "too few producer ids were used up")


async def _lose_decision(stage: Stage) -> None:
    """Two coordinators in turn have a decision that the third one never learns of: the abort of the third one counts.

    The second one must not send a marker before the third broker has the decision.
    """
    actor, heir = Actor(stage, "w"), Actor(stage, "w", host="w.2")
    await stage.coordinator(actor.transactional_id)
    state = stage.transactions_of(actor.transactional_id)
    third = stage.controller
    first, second = (node for node in stage.nodes if node is not third)
    await stage.move(state, first, second, third)
    early, late = stage.tps[:2]
    await stage.move(early, second, third)
    await stage.lead(late, third)
    await stage.wait(lambda: _log(third, state).high_watermark == _log(first, state).log_end_offset, "it is replicated")
    await actor.init()
    await actor.write(early, late)
    fetch = stage.detain(third.host, FetchRequest, first)
    await stage.detained(fetch)
    committing = asyncio.ensure_future(actor.end(commit=True, once=True))
    decided = _log(first, state).log_end_offset + 1
    await stage.wait(lambda: _log(second, state).log_end_offset == decided, "the second broker has the decision")
    stage.detain(third.host, LeaderAndIsrRequest, third)
    stage.detain(second.host, WriteTxnMarkersRequest, third)
    first.kill()
    expect("a commit that is not replicated", await committing, None)
    await stage.wait(lambda: stage.is_led_by_other(state, first), "the second broker is the coordinator")
    await asyncio.sleep(MARKERS_S)
    require(_log(third, state).log_end_offset < decided, "the third broker has the decision")
    second.kill()
    await stage.wait(lambda: _leads(third, state), "the third broker is the coordinator")
    first.start()
    second.start()
    await heir.init()
    await heir.write(early, late)
    await heir.commit()
    await stage.move(early, third, first, second)


async def _succeed_with_few_followers(stage: Stage) -> None:
    """A coordinator acts once its only follower has its log, although the high watermark needs a third replica."""
    actor = Actor(stage, "w")
    await stage.coordinator(actor.transactional_id)
    state = stage.transactions_of(actor.transactional_id)
    third = stage.controller
    first, second = (node for node in stage.nodes if node is not third)
    await stage.move(state, first, second, third)
    await actor.init()
    await actor.write(stage.tps[0])
    fetch = stage.detain(third.host, FetchRequest, first)
    await stage.detained(fetch)
    committing = asyncio.ensure_future(actor.end(commit=True, once=True))
    decided = _log(first, state).log_end_offset + 1
    await stage.wait(lambda: _log(second, state).log_end_offset == decided, "the second broker has the decision")
    first.kill()
    expect("a commit that is not replicated", await committing, None)
    await stage.wait(lambda: _leads(second, state), "the second broker is the coordinator")
    await stage.wait(lambda: _log(third, state).log_end_offset == decided, "the third broker has the decision")
    await stage.wait(lambda: _knows(second, actor), "the coordinator has loaded", MARKERS_S)
    require(_log(second, state).high_watermark < decided, "the high watermark has moved")
    first.start()
    await actor.commit()


def _knows(node: SimNode, actor: Actor) -> bool:
    return node.broker is not None and node.broker.transactions.describe(actor.transactional_id).value is not None


def _leads(node: SimNode, tp: TopicPartition) -> bool:
    return node.broker is not None and node.broker.replicas.partitions[tp].is_leader


async def _mark_during_question(stage: Stage) -> None:
    """A producer continues before its commit is complete. The marker arrives while the leader verifies the next one."""
    actor = Actor(stage, "w", is_new=True)
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    await actor.write(tp)
    markers = stage.detain(coordinator.host, WriteTxnMarkersRequest)
    await actor.commit()
    await stage.detained(markers)
    question = stage.detain((await stage.leader(tp)).host, AddPartitionsToTxnRequest, coordinator)
    sending = asyncio.ensure_future(actor.produce(tp))
    await stage.detained(question)
    markers.release()
    await stage.completed(coordinator, actor.transactional_id)
    question.release()
    expect("a batch whose question a marker met", await sending, ErrorCode.NONE)
    await actor.commit()


async def _join_questions(stage: Stage) -> None:
    """A client sends one request per partition. Their verifications wait for another one, and each gets its answer."""
    actor, other = Actor(stage, "w"), Actor(stage, "v")
    await actor.init()
    await other.init()
    coordinator = stage.nodes[0]
    for each in (actor, other):
        await stage.lead(stage.transactions_of(each.transactional_id), coordinator)
    leader, tps = await _led_together(stage, coordinator)
    await actor.add(*tps)
    await other.add(tps[0])
    question = stage.detain(leader.host, AddPartitionsToTxnRequest, coordinator)
    first = asyncio.ensure_future(other.produce(tps[0], once=True))
    await stage.detained(question)
    batches = [actor.prepare(tp) for tp in tps]
    await actor.connect(leader, on="data")
    sending = [asyncio.ensure_future(actor.deliver(batch, once=True)) for batch in batches]
    await asyncio.sleep(0.1)
    question.release()
    for answer in (first, *sending):
        expect("a batch whose question was joined", await answer, ErrorCode.NONE)
    await actor.commit()
    await other.commit()


async def _led_together(stage: Stage, coordinator: SimNode) -> tuple[SimNode, list[TopicPartition]]:
    """Two partitions of one leader, which is not this broker."""
    for node in stage.nodes:
        if node is not coordinator:
            led = [tp for tp in stage.tps if await stage.leader(tp) is node]
            if len(led) > 1:
                return node, led[:2]
    raise AssertionError("each other broker leads at most one partition")


async def _lose_question(stage: Stage) -> None:
    """A verification does not reach the coordinator: after a while the batch is refused, and can be sent again."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    leader = (await stage.leader(tp)).broker
    assert leader is not None
    producers = leader.replicas.transactional_producers
    await actor.add(tp)
    question = stage.detain((await stage.leader(tp)).host, AddPartitionsToTxnRequest, coordinator)
    batch = actor.prepare(tp)
    sending = asyncio.ensure_future(actor.deliver(batch, once=True))
    await stage.detained(question)
    expect("a batch whose question is lost", await sending, None)
    require(producers.waiting_bytes > 0, "the batch does not wait for the coordinator")
    await stage.wait(lambda: producers.waiting_bytes == 0, "the leader gives the coordinator up", ANSWER_S)
    expect("the same batch", await actor.deliver(batch), ErrorCode.NONE)
    await actor.commit()


AIMS_OF_RACES: Final[dict[str, Aim]] = {
    "timeout during an end": Aim(_time_out_during_end),
    "end during a timeout": Aim(_end_during_timeout),
    "marker during a question": Aim(_mark_during_question, REPAIRED),
    "failover while completing": Aim(_fail_over_while_completing, REPAIRED, max_epoch=3),
    "decision that a follower lacks": Aim(_lose_decision),
    "successor with one follower": Aim(_succeed_with_few_followers, _ALL_IN_SYNC),
    "joined questions": Aim(_join_questions),
    "lost question": Aim(_lose_question),
}
