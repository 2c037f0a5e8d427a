"""Aimed scenarios of epochs and of the ends of transactions: repeated ends, recovery, overflow, expiry."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.errors import ErrorCode
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import REPAIRED, Aim, Stage
from klamm.sim.violation import require

MAX_TIMEOUT_MS: Final = 900_000
EXPIRATION_MS: Final = 400
SHORT_S: Final = 0.1
"""Enough for a request to take effect."""


async def _repeat_end(stage: Stage) -> None:
    """The answer to a commit is lost. A repeated commit succeeds, but an abort must not."""
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    stage.lose_answer(actor.host, EndTxnRequest)
    expect("a commit without an answer", await actor.end(commit=True, once=True), None)
    stage.keep_answers(actor.host, EndTxnRequest)
    expect("the repeated commit", await actor.end(commit=True, on="second"), ErrorCode.NONE)
    refused = await actor.end(commit=False, on="third")
    expect("an abort that may mean the committed transaction", refused, ErrorCode.INVALID_TXN_STATE)
    await actor.init()
    expect("an abort with nothing open", await actor.end(commit=False), ErrorCode.NONE)
    await actor.write(stage.tps[0])
    await actor.commit()
    expect("an abort after the answer to the commit", await actor.end(commit=False), ErrorCode.NONE)


async def _repeat_bumped_end(stage: Stage) -> None:
    """The same for the repaired protocol; the end of an empty transaction (KAFKA-18401)."""
    actor = Actor(stage, "w", is_new=True)
    await actor.init()
    await actor.write(stage.tps[0])
    stage.lose_answer(actor.host, EndTxnRequest)
    expect("a commit without an answer", await actor.end(commit=True, once=True), None)
    stage.keep_answers(actor.host, EndTxnRequest)
    refused = await actor.end(commit=False, on="second")
    expect("an abort in the epoch of the committed transaction", refused, ErrorCode.INVALID_TXN_STATE)
    expect("the repeated commit", await actor.end(commit=True, on="second"), ErrorCode.NONE)
    refused = await actor.end(commit=True)
    expect("the commit of an empty transaction", refused, ErrorCode.INVALID_TXN_STATE)
    expect("the abort of an empty transaction", await actor.end(commit=False), ErrorCode.NONE)
    await actor.write(stage.tps[0])
    await actor.commit()


async def _continue_while_completing(stage: Stage) -> None:
    """A producer continues in its next epoch, or with its next id, before the markers are written (KAFKA-18660)."""
    actor = Actor(stage, "w", is_new=True)
    await actor.init()
    ids = {actor.identity.producer_id}
    for _ in range(3):
        await actor.write(stage.tps[0])
        coordinator = await stage.coordinator(actor.transactional_id)
        markers = stage.detain(coordinator.host, WriteTxnMarkersRequest)
        await actor.commit()
        await stage.detained(markers)
        ids.add(actor.identity.producer_id)
        early = await actor.end(commit=False, once=True)
        expect("an end before the markers", early, ErrorCode.CONCURRENT_TRANSACTIONS)
        prepared = actor.prepare(stage.tps[0])
        early = await actor.deliver(prepared, once=True)
        expect("a batch before the markers", early, ErrorCode.CONCURRENT_TRANSACTIONS)
        markers.release()
        expect("the same batch after them", await actor.deliver(prepared), ErrorCode.NONE)
        await actor.abort()
    require(len(ids) > 1, "no producer id was used up")


async def _recover(stage: Stage) -> None:
    """A producer recovers (KIP-360), also if the answer is lost, but not after another one was initialised."""
    first, second = Actor(stage, "w", host="w.1"), Actor(stage, "w", host="w.2")
    await first.init()
    before = first.identity
    stage.lose_answer(first.host, InitProducerIdRequest)
    expect("a recovery without an answer", await first.init(recovers=True, once=True), None)
    stage.keep_answers(first.host, InitProducerIdRequest)
    expect("the repeated recovery", await first.init(recovers=True, on="second"), ErrorCode.NONE)
    epoch = first.identity.producer_epoch
    require(epoch == before.producer_epoch + 1, f"a repeated recovery gave epoch {epoch} after {before}")
    await second.init()
    refused = await first.init(recovers=True, on="third")
    expect("the recovery of a deposed producer", refused, ErrorCode.PRODUCER_FENCED)
    while second.identity.producer_id == first.identity.producer_id:
        await second.init()
    while second.identity.producer_epoch < first.identity.producer_epoch:
        await second.init()
    refused = await first.init(recovers=True, on="third")
    expect("the recovery of a producer with another id", refused, ErrorCode.PRODUCER_FENCED)
    refused = await second.init(timeout_ms=MAX_TIMEOUT_MS + 1)
    expect("a timeout that is too long", refused, ErrorCode.INVALID_TRANSACTION_TIMEOUT)


async def _recover_late(stage: Stage) -> None:
    """A recovery that was repeated arrives during the next transaction, or after its commit, whose answer is lost.

    It must not abort the transaction, and must not make the coordinator forget that it was committed.
    """
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    for is_open in (True, False):
        late = stage.detain(actor.host, InitProducerIdRequest)
        expect("a recovery that is late", await actor.init(recovers=True, once=True), None)
        expect("the repeated recovery", await actor.init(recovers=True), ErrorCode.NONE)
        await actor.write(tp)
        if is_open:
            late.release()
            await asyncio.sleep(SHORT_S)
            await actor.commit()
            continue
        stage.lose_answer(actor.host, EndTxnRequest)
        expect("a commit without an answer", await actor.end(commit=True, once=True), None)
        stage.keep_answers(actor.host, EndTxnRequest)
        await stage.completed(await stage.coordinator(actor.transactional_id), actor.transactional_id)
        late.release()
        await asyncio.sleep(SHORT_S)
        refused = await actor.end(commit=False, on="third")
        expect("an abort that may mean the committed transaction", refused, ErrorCode.INVALID_TXN_STATE)
        expect("the repeated commit", await actor.end(commit=True, on="third"), ErrorCode.NONE)


async def _take_over(stage: Stage) -> None:
    """A new producer aborts the open transaction: the abort and the new producer each bump the epoch (KAFKA-19367)."""
    first, second = Actor(stage, "w", is_new=True, host="w.1"), Actor(stage, "w", is_new=True, host="w.2")
    await first.init()
    await first.write(stage.tps[0])
    await second.init()
    expected = first.identity._replace(producer_epoch=first.identity.producer_epoch + 2)
    require(second.identity == expected, f"the second producer is {second.identity}, expected: {expected}")
    await second.write(stage.tps[0])
    await second.commit()


async def _abort_in_last_epoch(stage: Stage) -> None:
    """A coordinator that allowed more epochs has stored the last one (KAFKA-20090). The transaction times out."""
    actor = Actor(stage, "w", is_new=True, timeout_ms=2_000)
    while actor.identity.producer_epoch < stage.cluster.max_producer_epoch - 1:
        await actor.init()
    await actor.write(stage.tps[0])
    stage.cluster.max_producer_epoch -= 1
    await stage.restart(*stage.nodes)
    successor = Actor(stage, "w", is_new=True, host="w.2")
    await asyncio.sleep(3.0)
    await successor.init()
    require(successor.identity.producer_id != actor.identity.producer_id, f"{successor.identity} has a used up id")
    await successor.write(stage.tps[0])
    await successor.commit()


async def _time_out(stage: Stage) -> None:
    """A transaction is open for too long: its coordinator aborts it in another epoch, and its producer is fenced."""
    actor, other, tp = Actor(stage, "w", timeout_ms=500), Actor(stage, "v"), stage.tps[0]
    await actor.init()
    await actor.write(tp)
    leader = await stage.leader(tp)
    assert leader.broker is not None
    log = leader.broker.logs.logs[tp]
    await stage.wait(lambda: log.last_stable_offset == 2, "the transaction is aborted", longest_s=2.0)
    fenced = await actor.end(commit=True)
    expect("a commit after the timeout", fenced, ErrorCode.INVALID_PRODUCER_EPOCH)
    await other.init()
    await other.write(tp)
    await other.commit()


async def _expire(stage: Stage) -> None:
    """An idle transactional id is forgotten; its producer recovers. An open transaction does not expire."""
    idle, busy = Actor(stage, "idle"), Actor(stage, "busy")
    await busy.init()
    await busy.write(stage.tps[0])
    await idle.init()
    await asyncio.sleep(1.5)
    request = DescribeTransactionsRequest(transactional_ids=["idle"])
    described = await stage.ask(await stage.coordinator("idle"), request, 0)
    code = ErrorCode(described.transaction_states[0].error_code)
    expect("the description of an expired transactional id", code, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    expect("the recovery of its producer", await idle.init(recovers=True), ErrorCode.NONE)
    await idle.write(stage.tps[1])
    await idle.commit()
    await busy.commit()


async def _outlive_producer_state(stage: Stage) -> None:
    """A log forgets silent producers, but never one with an open transaction."""
    actor, silent, tp = Actor(stage, "w"), Actor(stage, "v"), stage.tps[0]
    await silent.init()
    await silent.write(tp)
    await silent.commit()
    await actor.init()
    await actor.write(tp)
    await asyncio.sleep(2.5)
    for node in stage.nodes:
        assert node.broker is not None
        known = list(node.broker.logs.logs[tp].producers.entries)
        expected = [actor.identity.producer_id]
        require(known == expected, f"{tp} of broker {node.id} knows the producers {known}, expected: {expected}")
    await actor.commit()


AIMS_OF_ENDS: Final[dict[str, Aim]] = {
    "repeated end": Aim(_repeat_end),
    "repeated end with a bump": Aim(_repeat_bumped_end, REPAIRED),
    "next transaction while completing": Aim(_continue_while_completing, REPAIRED, max_epoch=3),
    "recovery": Aim(_recover, max_epoch=4),
    "late recovery": Aim(_recover_late),
    "take-over": Aim(_take_over, REPAIRED),
    "stored last epoch": Aim(_abort_in_last_epoch, REPAIRED, max_epoch=5),
    "timeout": Aim(_time_out),
    "idle transactional id": Aim(
        _expire,
        {
            "transactional.id.expiration.ms": EXPIRATION_MS,
            "transaction.remove.expired.transaction.cleanup.interval.ms": 250,
        },
    ),
    "silent producer": Aim(
        _outlive_producer_state,
        {"producer.id.expiration.ms": 500, "producer.id.expiration.check.interval.ms": 300},
    ),
}
