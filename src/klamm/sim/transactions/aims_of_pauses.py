"""Aimed scenarios of coordinators that were paused and do not know their successors (decision 0042)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from itertools import count, islice
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.cluster import SETTINGS, SimNode
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import REPAIRED, Aim, Stage
from klamm.sim.violation import require
from klamm.zk.model import paths

GROUP: Final = "copiers"
CUT_S: Final = 4.0
"""The end of the followers' connections arrives late."""
SHORT_S: Final = 0.05
SESSION_MS: Final = int(str(SETTINGS["zookeeper.session.timeout.ms"]))
PING_MS: Final = SESSION_MS // 3
ASKED: Final = (None, ErrorCode.NOT_COORDINATOR)
"""The answers of a coordinator that may have a successor: none, or that the client should look for another one."""


async def _depose(stage: Stage, home: SimNode, tp: TopicPartition, *, first: Coroutine[Any, Any, Any] | None) -> None:
    """Pause the leader of a partition until another broker leads it.

    Fetches of its followers wait in its sockets meanwhile. The request `first` waits there too, before them.
    """
    others = [node for node in stage.nodes if node is not home]
    fetches = [stage.detain(other.host, FetchRequest, home) for other in others]
    for fetch in fetches:
        await stage.detained(fetch)
    stage.pause(home)
    if first is not None:
        stage.cluster.loop.create_task(first)
        await asyncio.sleep(SHORT_S)
    for fetch in fetches:
        fetch.release()
    _cut_off(stage, home)
    await _succeeded(stage, home, tp)


def _cut_off(stage: Stage, home: SimNode) -> None:
    for other in stage.nodes:
        if other is not home:
            stage.cluster.network.cut(other.host, home.host, stage.now_s + CUT_S)


async def _succeeded(stage: Stage, home: SimNode, tp: TopicPartition) -> None:
    others = [node for node in stage.nodes if node is not home]
    await stage.wait(lambda: stage.is_led_by_other(tp, home), "the coordinator has a successor")
    await stage.wait(lambda: all(_knows_other(node, tp, home) for node in others), "all know the successor")


def _knows_other(node: SimNode, tp: TopicPartition, former: SimNode) -> bool:
    state = None if node.broker is None else node.broker.metadata.snapshot.partition(*tp)
    return state is not None and state.leader != former.id


async def _commit_first(stage: Stage, actor: Actor) -> tuple[SimNode, TopicPartition]:
    """Complete a transaction; return its coordinator and a partition of another leader.

    The coordinator is not the controller.
    """
    await stage.coordinator(actor.transactional_id)
    state = stage.transactions_of(actor.transactional_id)
    if await stage.leader(state) is stage.controller:
        await stage.lead(state, next(node for node in stage.nodes if node is not stage.controller))
    await actor.init()
    home = await stage.leader(state)
    tp = await stage.partition_away_from(home)
    await actor.write(tp)
    await actor.commit()
    await stage.completed(home, actor.transactional_id)
    return home, tp


async def _ask_deposed(stage: Stage, *, is_new: bool) -> None:
    """A coordinator that was paused for longer than its session does not answer EndTxn from memory.

    It knows the last transaction, and another coordinator has the present one. Its success would be a lost write, and
    its INVALID_TXN_STATE is fatal for the client.
    """
    actor = Actor(stage, "w", is_new=is_new)
    home, tp = await _commit_first(stage, actor)
    await _depose(stage, home, stage.transactions_of(actor.transactional_id), first=None)
    await actor.write(tp)
    await _resume_and_commit(stage, actor, home)


async def _resume_and_commit(stage: Stage, actor: Actor, home: SimNode) -> None:
    asking = asyncio.ensure_future(actor.ask_to_commit(home))
    await asyncio.sleep(SHORT_S)
    stage.resume(home)
    expect("the commit at a deposed coordinator", await asking, *ASKED)
    await actor.commit()


async def _ask_after_short_session(stage: Stage) -> None:
    """A broker is paused just before its next ping, and all followers have just followed it.

    Its session ends, and it has a successor, long before the timeout of a session has passed since the pause.
    """
    actor, busy = Actor(stage, "w"), Actor(stage, "v")
    home, tp = await _commit_first(stage, actor)
    await busy.init()
    await stage.lead(stage.transactions_of(busy.transactional_id), home)
    await stage.wait(lambda: _left_ms(stage, home) < SESSION_MS - PING_MS * 0.7, "the next ping is due soon")
    for _ in range(2):
        await busy.init()
    paused_s = stage.now_s
    stage.pause(home)
    _cut_off(stage, home)
    await _succeeded(stage, home, stage.transactions_of(actor.transactional_id))
    await actor.write(tp)
    past_ms = (stage.now_s + SHORT_S - paused_s) * 1000
    require(past_ms < SESSION_MS, f"the successor was there only after {past_ms:.0f} ms")
    await _resume_and_commit(stage, actor, home)


def _left_ms(stage: Stage, node: SimNode) -> float:
    """How long the session of the broker lives without another ping."""
    tree = stage.cluster.zookeeper.tree
    session = tree.sessions[tree.nodes[paths.broker_path(node.id)].ephemeral_owner]
    return session.deadline_ms - stage.cluster.zookeeper.now_ms


async def _be_elected_late(stage: Stage) -> None:
    """A LeaderAndIsr waits in the socket of a paused broker, which has a successor when it reads that it leads."""
    actor = Actor(stage, "w")
    former, _ = await _commit_first(stage, actor)
    state = stage.transactions_of(actor.transactional_id)
    home = next(node for node in stage.nodes if node not in (former, stage.controller))
    tp = await stage.partition_away_from(home)
    await stage.prefer(state, home)
    await stage.wait(lambda: _prefers(home, state), "the broker is the preferred leader")
    await stage.wait(lambda: _knows_replicated(home, state), "the broker need not wait for its followers")
    await asyncio.sleep(SHORT_S)  # The controller has its answers: it sends the election at once.
    stage.pause(home)
    expect("the election of a paused broker", await stage.elect(state), ErrorCode.NONE)
    await asyncio.sleep(SHORT_S)
    _cut_off(stage, home)
    await _succeeded(stage, home, state)
    await actor.write(tp)
    stage.resume(home)
    await _expect_no_answer(stage, actor, home, state)
    await actor.commit()


def _prefers(node: SimNode, tp: TopicPartition) -> bool:
    state = None if node.broker is None else node.broker.metadata.snapshot.partition(*tp)
    return state is not None and state.replicas[0] == node.id


def _knows_replicated(node: SimNode, tp: TopicPartition) -> bool:
    """Whether the broker knows that all in-sync replicas have its whole log."""
    log = None if node.broker is None else node.broker.logs.logs[tp]
    return log is not None and log.high_watermark == log.log_end_offset


async def _expect_no_answer(stage: Stage, actor: Actor, home: SimNode, state: TopicPartition) -> None:
    """Ask a broker that believes that it leads until it knows better."""
    assert home.broker is not None
    partition = home.broker.replicas.partitions[state]
    await stage.wait(lambda: partition.is_leader, "the deposed broker believes that it leads")
    asked = 0
    while partition.is_leader:
        answer = await actor.ask_to_commit(home)
        expect("the commit at a deposed coordinator", answer, *ASKED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        asked += answer is ErrorCode.NOT_COORDINATOR
    require(asked > 0, "the deposed coordinator was not asked in time")


async def _ask_deposed_for_more(stage: Stage, *, writes_first: bool) -> None:
    """A deposed coordinator does not verify, add or describe from memory, and fences and forgets no producer.

    It appends a record that nobody follows, before or after it receives the fetches that have waited.
    """
    writer, idle, new, busy = (Actor(stage, name) for name in _same_partition(stage, 4))
    for actor in (idle, busy):
        await actor.init()
    home, tp = await _commit_first(stage, writer)
    state = stage.transactions_of(writer.transactional_id)
    await writer.write(tp)
    appends = _try(busy.ask(home, _initialisation(busy), 4))
    await _depose(stage, home, state, first=appends if writes_first else None)
    if not writes_first:
        stage.cluster.loop.create_task(appends)
        await asyncio.sleep(SHORT_S)
    await writer.abort()
    await idle.init()
    await new.init()
    await new.write(tp)
    asking = {
        "the verification": _try(stage.ask(home, _verification(writer, tp), 4)),
        "AddPartitionsToTxn": _try(writer.ask(home, _addition(writer, tp), 0, on="again")),
        "a recovery": _try(idle.ask(home, _initialisation(idle), 4, on="again")),
        "EndTxn": new.ask_to_commit(home),
        "DescribeTransactions": _description(stage, home, writer),
    }
    tasks = {what: asyncio.ensure_future(each) for what, each in asking.items()}
    await asyncio.sleep(SHORT_S)
    stage.resume(home)
    for what, task in tasks.items():
        expect(f"{what} of a deposed coordinator", await task, *ASKED)
    await new.commit()


def _same_partition(stage: Stage, number: int) -> list[str]:
    """Transactional ids with the same coordinator."""
    names = (f"w{index}" for index in count())
    wanted = stage.transactions_of("w0")
    return list(islice((name for name in names if stage.transactions_of(name) == wanted), number))


async def _try(asking: Coroutine[Any, Any, Any]) -> ErrorCode | None:
    """Return the first error of a response; None if there is no answer."""
    try:
        response = await asking
    except OSError:
        return None
    if hasattr(response, "producer_epoch"):
        return ErrorCode(response.error_code)
    topics = [topic for result in response.results_by_transaction for topic in result.topic_results]
    topics += response.results_by_topic_v3_and_below
    return ErrorCode(topics[0].results_by_partition[0].partition_error_code)


async def _description(stage: Stage, node: SimNode, actor: Actor) -> ErrorCode | None:
    request = DescribeTransactionsRequest(transactional_ids=[actor.transactional_id])
    try:
        response = await stage.ask(node, request, 0)
    except OSError:
        return None
    return ErrorCode(response.transaction_states[0].error_code)


def _initialisation(actor: Actor) -> InitProducerIdRequest:
    """The request of a producer that recovers (KIP-360)."""
    return InitProducerIdRequest(
        transactional_id=actor.transactional_id,
        transaction_timeout_ms=actor.timeout_ms,
        producer_id=actor.identity.producer_id,
        producer_epoch=actor.identity.producer_epoch,
    )


def _addition(actor: Actor, tp: TopicPartition) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=actor.transactional_id,
        v3_and_below_producer_id=actor.identity.producer_id,
        v3_and_below_producer_epoch=actor.identity.producer_epoch,
        v3_and_below_topics=[_topic(tp)],
    )


def _verification(actor: Actor, tp: TopicPartition) -> AddPartitionsToTxnRequest:
    """The verification request of a partition leader (KIP-890)."""
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=actor.transactional_id,
        producer_id=actor.identity.producer_id,
        producer_epoch=actor.identity.producer_epoch,
        verify_only=True,
        topics=[_topic(tp)],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def _topic(tp: TopicPartition) -> AddPartitionsToTxnTopic:
    return AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])


async def _deposed_group_coordinator(stage: Stage, *, clock_moves_ms: int = 0) -> None:
    """A group coordinator that was paused for longer than its session does not answer with old offsets.

    Meanwhile another coordinator commits newer offsets. The request for offsets waits in a socket until it resumes.
    """
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    home = await stage.group_coordinator(GROUP)
    other = next(node for node in stage.nodes if node is not home)
    await stage.lead(stage.transactions_of(actor.transactional_id), other)
    await actor.add_offsets(GROUP)
    expect("the offsets", await actor.commit_offset(GROUP, tp, 5), ErrorCode.NONE)
    await actor.commit()
    require(await actor.committed_offset(GROUP, tp) == 5, "the first offset is not committed")
    home.clock.offset_ms += clock_moves_ms
    await _depose(stage, home, stage.offsets_of(GROUP), first=None)
    await actor.add_offsets(GROUP)
    expect("the next offsets", await actor.commit_offset(GROUP, tp, 9), ErrorCode.NONE)
    await actor.commit()
    require(await actor.committed_offset(GROUP, tp) == 9, "the second offset is not committed")
    asking = asyncio.ensure_future(actor.stable_offset(GROUP, tp, of=home))
    await asyncio.sleep(SHORT_S)
    stage.resume(home)
    code, found = await asking
    is_refused = code is not ErrorCode.NONE
    require(is_refused or found == 9, f"a deposed coordinator answered {found} after 9 was committed")


AIMS_OF_PAUSES: Final[dict[str, Aim]] = {
    "paused transaction coordinator": Aim(partial(_ask_deposed, is_new=False)),
    "paused transaction coordinator with a bump": Aim(partial(_ask_deposed, is_new=True), REPAIRED),
    "pause before a ping": Aim(_ask_after_short_session),
    "late election": Aim(_be_elected_late),
    "more requests after a pause": Aim(partial(_ask_deposed_for_more, writes_first=False)),
    "more requests after a pause and a write": Aim(partial(_ask_deposed_for_more, writes_first=True)),
    "paused group coordinator": Aim(_deposed_group_coordinator),
    "paused group coordinator whose clock went back": Aim(partial(_deposed_group_coordinator, clock_moves_ms=-600_000)),
}
