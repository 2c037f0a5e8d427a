"""Aimed scenarios of late requests of old clients (decision 0031) and of the verification by leaders (KIP-890)."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.coordinator.transaction.transaction_metadata import TransactionState
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.network import Detention, is_request
from klamm.sim.transactions.aimed_actor import DATA, Actor
from klamm.sim.transactions.aimed_stage import REPAIRED, Aim, Stage
from klamm.sim.violation import require

SHORT_S: Final = 0.1
GROUP: Final = "readers"


async def _late_end(stage: Stage) -> None:
    """A commit that was repeated arrives during the next transaction, which is aborted."""
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    late = stage.detain(actor.host, EndTxnRequest)
    expect("a commit that is late", await actor.end(commit=True, once=True), None)
    expect("the repeated commit", await actor.end(commit=True), ErrorCode.NONE)
    await actor.write(stage.tps[0])
    late.release()
    await asyncio.sleep(SHORT_S)
    await actor.abort()


async def _late_end_after_return(stage: Stage) -> None:
    """The same, but the coordinator has moved away and back: it does not know which connections acted."""
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    late = stage.detain(actor.host, EndTxnRequest)
    expect("a commit that is late", await actor.end(commit=True, once=True), None)
    expect("the repeated commit", await actor.end(commit=True), ErrorCode.NONE)
    state, home = stage.transactions_of(actor.transactional_id), await stage.coordinator(actor.transactional_id)
    await stage.lead(state, next(node for node in stage.nodes if node is not home))
    await actor.write(stage.tps[0])
    await stage.lead(state, home)
    late.release()
    await asyncio.sleep(SHORT_S)
    await actor.abort(on="third")


async def _late_end_after_restart(stage: Stage) -> None:
    """Meanwhile the coordinator's broker has restarted: it knows neither connections nor their order.

    One late commit was sent to its first process, another one to its second process before that coordinates again.
    """
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    state, home = stage.transactions_of(actor.transactional_id), await stage.coordinator(actor.transactional_id)
    late = [stage.detain(actor.host, EndTxnRequest)]
    expect("a commit that is late", await actor.end(commit=True, once=True), None)
    home.kill()
    await stage.wait(lambda: stage.is_led_by_other(state, home), "the coordinator has a successor")
    home.start()
    await stage.wait(lambda: home.is_ready, "the broker answers again")
    late.append(stage.detain(actor.host, EndTxnRequest, home))
    expect("a commit that is late, to the second process", await actor.ask_to_commit(home), None)
    require(late[1].target == home.host, "the second commit is not on its way")
    expect("the repeated commit", await actor.end(commit=True), ErrorCode.NONE)
    await actor.write(stage.tps[0])
    await stage.lead(state, home)
    for each in late:
        each.release()
    await asyncio.sleep(SHORT_S)
    await actor.abort(on="third")


async def _late_partitions(stage: Stage) -> None:
    """AddPartitionsToTxn that was repeated arrives after an abort, or during the next transaction."""
    tp, other = stage.tps[:2]
    for name in ("w", "v"):
        actor = Actor(stage, name)
        await actor.init(on="first")
        late = stage.detain(actor.host, AddPartitionsToTxnRequest)
        sending = asyncio.ensure_future(actor.ask_to_add(other, on="first"))
        await stage.detained(late)
        await actor.write(tp, other)
        if name == "w":
            await actor.abort()
            await _reached(actor, TransactionState.COMPLETE_ABORT)
            await _release(late, sending)
            await _check_transaction(actor, TransactionState.COMPLETE_ABORT)
        else:
            await actor.commit()
            await actor.write(tp)
            await _release(late, sending)
            await _check_transaction(actor, TransactionState.ONGOING, tp)
            await actor.commit()


async def _late_groups(stage: Stage) -> None:
    """The same for AddOffsetsToTxn."""
    tp = stage.tps[0]
    await stage.group_coordinator(GROUP)
    for name, offset in (("w", 5), ("v", 7)):
        actor = Actor(stage, name)
        await actor.init(on="first")
        late = stage.detain(actor.host, AddOffsetsToTxnRequest)
        sending = asyncio.ensure_future(actor.ask_to_add_offsets(GROUP, on="first"))
        await stage.detained(late)
        await actor.add_offsets(GROUP)
        expect("offsets", await actor.commit_offset(GROUP, tp, offset), ErrorCode.NONE)
        if name == "w":
            await actor.abort()
            await _reached(actor, TransactionState.COMPLETE_ABORT)
            await _release(late, sending)
            await _check_transaction(actor, TransactionState.COMPLETE_ABORT)
            await _check_offset(actor, tp, -1)
        else:
            await actor.commit()
            await actor.write(tp)
            await _release(late, sending)
            await _check_transaction(actor, TransactionState.ONGOING, tp)
            await actor.commit()
            await _check_offset(actor, tp, offset)


async def _release(late: Detention, sending: asyncio.Future[ErrorCode | None]) -> None:
    """The late request arrives while its client still waits: the broker closes the connection."""
    require(not sending.done(), "the client of the late request has given it up already")
    late.release()
    expect("a late request", await sending, None)


async def _late_initialisation(stage: Stage) -> None:
    """A repeated InitProducerId without an epoch arrives during a later transaction, of either protocol.

    It acts like that of another process: the transaction is aborted, and its producer is fenced. No record is lost.
    """
    for name, is_new in (("w", False), ("v", True)):
        actor, tps = Actor(stage, name, is_new=is_new), stage.tps[:2]
        late = stage.detain(actor.host, InitProducerIdRequest)
        expect("an initialisation that is late", await actor.init(once=True), None)
        expect("the repeated initialisation", await actor.init(), ErrorCode.NONE)
        await actor.write(*tps)
        await actor.commit()
        await actor.write(*tps)
        late.release()
        await _reached(actor, TransactionState.EMPTY)
        fenced = ErrorCode.PRODUCER_FENCED if is_new else ErrorCode.INVALID_PRODUCER_EPOCH
        expect("a commit after the late initialisation", await actor.end(commit=True, once=True), fenced)
        expect("another initialisation", await actor.init(), ErrorCode.NONE)
        await actor.write(*tps)
        await actor.commit()


async def _reached(actor: Actor, state: TransactionState) -> None:
    """Wait until the coordinator has stored this state of the transaction."""
    broker = (await actor.stage.coordinator(actor.transactional_id)).broker
    assert broker is not None

    def is_reached() -> bool:
        value = broker.transactions.describe(actor.transactional_id).value
        return value is not None and value.state is state

    await actor.stage.wait(is_reached, f"the transaction of {actor.host} is {state.title}")


async def _check_transaction(actor: Actor, state: TransactionState, *tps: TopicPartition) -> None:
    """The coordinator has exactly these partitions in the transaction."""
    broker = (await actor.stage.coordinator(actor.transactional_id)).broker
    assert broker is not None
    value = broker.transactions.describe(actor.transactional_id).value
    assert value is not None
    found = f"{value.state.title} with {sorted(value.partitions)}"
    expected = f"{state.title} with {sorted(tps)}"
    require(found == expected, f"the transaction of {actor.host} is {found}, expected: {expected}")


async def _older_connection(stage: Stage) -> None:
    """A batch on an older connection is not appended, and the connection is closed."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    await actor.add(tp)
    for connection in ("first", "second"):
        expect(f"a batch on the {connection} connection", await actor.produce(tp, on=connection), ErrorCode.NONE)
    prepared = actor.prepare(tp)
    expect("a batch on the older connection", await actor.deliver(prepared, on="first", once=True), None)
    expect("the same batch on the younger one", await actor.deliver(prepared, on="second"), ErrorCode.NONE)
    await actor.commit()


async def _late_batch(stage: Stage) -> None:
    """A batch of an aborted transaction arrives during the next one, before any other batch."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    await actor.write(tp)
    late = stage.detain(actor.host, ProduceRequest)
    sending = asyncio.ensure_future(actor.produce(tp, on="first", once=True))
    await stage.detained(late)
    await actor.abort()
    await actor.add(tp)
    late.release()
    expect("a batch of an aborted transaction", await sending, None)
    await actor.commit()


async def _late_batch_after_return(stage: Stage) -> None:
    """The same, but another broker led the partition during the abort: followers remember it too."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    await actor.write(tp)
    home = await stage.leader(tp)
    late = stage.detain(actor.host, ProduceRequest)
    sending = asyncio.ensure_future(actor.produce(tp, on="first", once=True))
    await stage.detained(late)
    other = next(node for node in stage.nodes if node is not home)
    await stage.lead(tp, other)
    await actor.abort()
    assert home.broker is not None
    log = home.broker.logs.logs[tp]
    await stage.wait(lambda: log.last_stable_offset == 2, "the follower knows of the abort")
    await stage.lead(tp, home)
    await actor.add(tp)
    late.release()
    expect("a batch of an aborted transaction", await sending, None)
    await actor.commit()


async def _keep_connection(stage: Stage) -> None:
    """A client that takes a new epoch after a batch of unknown fate keeps its connection after an abort."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    leader = await stage.leader(tp)
    name = ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.6.0")
    await actor.ask(leader, name, 3, on=DATA)
    await actor.write(tp)
    await actor.abort()
    await actor.add(tp)
    expect("a batch after an abort", await actor.produce(tp, once=True), ErrorCode.NONE)
    await actor.commit()


async def _late_offsets(stage: Stage) -> None:
    """Offsets of a committed transaction arrive again during the next one, after newer offsets."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    await actor.add_offsets(GROUP)
    late = stage.detain(actor.host, TxnOffsetCommitRequest)
    expect("offsets that are late", await actor.commit_offset(GROUP, tp, 5, on="first", once=True), None)
    expect("the repeated offsets", await actor.commit_offset(GROUP, tp, 5), ErrorCode.NONE)
    await actor.commit()
    await actor.add_offsets(GROUP)
    expect("the next offsets", await actor.commit_offset(GROUP, tp, 9), ErrorCode.NONE)
    late.release()
    await asyncio.sleep(SHORT_S)
    await actor.commit()
    await _check_offset(actor, tp, 9)


async def _late_offsets_after_return(stage: Stage) -> None:
    """Meanwhile the group's coordinator has moved away and back: it does not know which connections acted."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    await actor.add_offsets(GROUP)
    late = stage.detain(actor.host, TxnOffsetCommitRequest)
    expect("offsets that are late", await actor.commit_offset(GROUP, tp, 5, once=True), None)
    partition, home = stage.offsets_of(GROUP), await stage.group_coordinator(GROUP)
    await stage.lead(partition, next(node for node in stage.nodes if node is not home))
    expect("the repeated offsets", await actor.commit_offset(GROUP, tp, 5), ErrorCode.NONE)
    await actor.commit()
    await actor.add_offsets(GROUP)
    expect("the next offsets", await actor.commit_offset(GROUP, tp, 9), ErrorCode.NONE)
    await stage.lead(partition, home)
    late.release()
    await asyncio.sleep(SHORT_S)
    await actor.commit()
    await _check_offset(actor, tp, 9)


async def _late_offsets_after_abort(stage: Stage) -> None:
    """Offsets of an aborted transaction arrive during the next one, before any other offsets."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    await actor.add_offsets(GROUP)
    late = stage.detain(actor.host, TxnOffsetCommitRequest)
    expect("offsets that are late", await actor.commit_offset(GROUP, tp, 5, once=True), None)
    await actor.abort()
    await actor.add_offsets(GROUP)
    late.release()
    await asyncio.sleep(SHORT_S)
    await actor.commit()
    await _check_offset(actor, tp, -1)


async def _check_offset(actor: Actor, tp: TopicPartition, expected: int) -> None:
    found = await actor.committed_offset(GROUP, tp)
    require(found == expected, f"the group has committed {found} of {tp}, expected: {expected}")


async def _unknown_partition(stage: Stage) -> None:
    """A batch for a partition that is not in the transaction would begin one that nobody ends."""
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    refused = await actor.produce(stage.tps[1], once=True)
    expect("a batch for another partition", refused, ErrorCode.INVALID_TXN_STATE)
    await actor.abort()


async def _decided_transaction(stage: Stage) -> None:
    """A batch for a partition of a transaction that is decided already would join it after the decision."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    await actor.write(stage.tps[0])
    await actor.add(stage.tps[1])
    late = actor.prepare(stage.tps[1])
    markers = [stage.detain(coordinator.host, WriteTxnMarkersRequest, node) for node in stage.nodes]
    await actor.abort()
    refused = await actor.deliver(late, once=True)
    expect("a batch of a decided transaction", refused, ErrorCode.NOT_ENOUGH_REPLICAS)
    for commit in (False, True):
        refused = await actor.end(commit=commit, once=True)
        expect("an end before the markers", refused, ErrorCode.CONCURRENT_TRANSACTIONS)
    for marker in markers:
        marker.release()
    await actor.init()


async def _outdated_verification(stage: Stage) -> None:
    """The coordinator confirms a transaction that is aborted before its answer arrives."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    leader = await stage.leader(tp)
    await actor.add(tp)
    asked = is_request(AddPartitionsToTxnRequest.KEY)
    stage.cluster.network.delay_answer(leader.host, coordinator.host, asked, stage.now_s + 0.6)
    sending = asyncio.ensure_future(actor.produce(tp, once=True))
    await asyncio.sleep(SHORT_S)
    await actor.abort()
    expect("a batch whose transaction has ended", await sending, ErrorCode.INVALID_TXN_STATE)
    await _close_while_asked(stage, actor, tp)


async def _close_while_asked(stage: Stage, actor: Actor, tp: TopicPartition) -> None:
    """The client closes the connection of a batch before the coordinator has confirmed its transaction."""
    leader = (await stage.leader(tp)).broker
    assert leader is not None
    log, producers = leader.logs.logs[tp], leader.replicas.transactional_producers
    coordinator = await stage.coordinator(actor.transactional_id)
    await actor.init()
    await actor.add(tp)
    end = log.log_end_offset
    question = stage.detain((await stage.leader(tp)).host, AddPartitionsToTxnRequest, coordinator)
    sending = asyncio.ensure_future(actor.produce(tp, on="closed", once=True))
    await stage.detained(question)
    actor.close(on="closed")
    expect("a batch whose connection is closed", await sending, None)
    await asyncio.sleep(SHORT_S)
    require(producers.waiting_bytes > 0, "the batch does not wait for the coordinator")
    question.release()
    await stage.wait(lambda: producers.waiting_bytes == 0, "the coordinator has confirmed the transaction")
    require(log.log_end_offset == end, f"a batch whose connection is closed was appended to {tp}")
    await actor.abort()


async def _order_of_batches(stage: Stage) -> None:
    """A batch does not overtake an earlier one whose request waits for the coordinator."""
    actor = Actor(stage, "w")
    await actor.init()
    first, second = await _same_leader(stage)
    await actor.write(first)
    await actor.add(second)
    requests = [actor.prepare(first, second), actor.prepare(first)]
    sending = [asyncio.ensure_future(actor.deliver(each, once=True)) for each in requests]
    for task in sending:
        expect("one of two batches in order", await task, ErrorCode.NONE)
    await actor.commit()


async def _first_sequence(stage: Stage) -> None:
    """If the first batch of a transaction could not be verified, the second one waits for it."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    leader = await stage.leader(tp)
    await actor.add(tp)
    await actor.connect(leader, on=DATA)
    stage.cluster.network.lose_answer(leader.host, coordinator.host, is_request(AddPartitionsToTxnRequest.KEY))
    batches = [actor.prepare(tp), actor.prepare(tp)]
    sending = [asyncio.ensure_future(actor.deliver(each, once=True)) for each in batches]
    expect("the first batch", await sending[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    expect("the second batch", await sending[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for each in batches:
        expect("a repeated batch", await actor.deliver(each), ErrorCode.NONE)
    await actor.commit()


async def _same_leader(stage: Stage) -> tuple[TopicPartition, TopicPartition]:
    """Two partitions with one leader."""
    leaders = {tp: await stage.leader(tp) for tp in stage.tps}
    pairs = [(a, b) for a in stage.tps for b in stage.tps if a < b and leaders[a] is leaders[b]]
    return pairs[0]


AIMS_OF_LATE_REQUESTS: Final[dict[str, Aim]] = {
    "late end": Aim(_late_end),
    "late end after a return": Aim(_late_end_after_return),
    "late end after a restart": Aim(_late_end_after_restart),
    "late partitions": Aim(_late_partitions),
    "late groups": Aim(_late_groups),
    "late initialisation": Aim(_late_initialisation, REPAIRED),
    "older connection": Aim(_older_connection),
    "late batch": Aim(_late_batch),
    "late batch after a return": Aim(_late_batch_after_return),
    "batch after an abort": Aim(_keep_connection),
    "late offsets": Aim(_late_offsets),
    "late offsets after a return": Aim(_late_offsets_after_return),
    "late offsets after an abort": Aim(_late_offsets_after_abort),
    "partition outside of the transaction": Aim(_unknown_partition),
    "batch of a decided transaction": Aim(_decided_transaction),
    "outdated verification": Aim(_outdated_verification),
    "order of batches": Aim(_order_of_batches),
    "first sequence": Aim(_first_sequence),
}
