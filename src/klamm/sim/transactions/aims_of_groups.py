"""Aimed scenarios of transactional offsets: fencing of members, stable offsets, coordinators that fail over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from klamm.broker import Broker
from klamm.errors import ErrorCode
from klamm.model import GROUP_METADATA_TOPIC, TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.sync_group import SyncGroupRequest
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import REPAIRED, Aim, Stage
from klamm.sim.violation import require

GROUP: Final = "copiers"


async def _join(actor: Actor, member_id: str) -> tuple[int, str]:
    """Join the group, with another subscription each time; return the generation and the member's id."""
    stage = actor.stage
    while True:
        node = await stage.group_coordinator(GROUP)
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=20_000,
            rebalance_timeout_ms=3_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=f"{stage.now_s}".encode())],
        )
        joined = await actor.ask(node, request, 4, on="group")
        member_id = joined.member_id
        if joined.error_code == ErrorCode.NONE:
            sync = SyncGroupRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=member_id, assignments=()
            )
            synced = await actor.ask(node, sync, 3, on="group")
            if synced.error_code == ErrorCode.NONE:
                return joined.generation_id, member_id
        await asyncio.sleep(0.05)


async def _fence_member(stage: Stage) -> None:
    """A producer commits offsets for a member whose generation has ended (KIP-447)."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    old = await _join(actor, "")
    new = await _join(actor, old[1])
    require(new[0] > old[0], f"the generation after {old} is {new}")
    await actor.add_offsets(GROUP)
    refused = await actor.commit_offset(GROUP, tp, 5, member=old)
    expect("offsets of an earlier generation", refused, ErrorCode.ILLEGAL_GENERATION)
    refused = await actor.commit_offset(GROUP, tp, 5, member=(new[0], "another"))
    expect("offsets of another member", refused, ErrorCode.UNKNOWN_MEMBER_ID)
    expect("offsets of the member", await actor.commit_offset(GROUP, tp, 7, member=new), ErrorCode.NONE)
    await actor.commit()
    found = await actor.committed_offset(GROUP, tp)
    require(found == 7, f"the group has committed {found}, expected: 7")


async def _rejoin_while_verifying(stage: Stage) -> None:
    """The generation of a member ends while the transaction of its offsets is being verified."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    home = await stage.group_coordinator(GROUP)
    coordinator = next(node for node in stage.nodes if node is not home)
    await stage.lead(stage.transactions_of(actor.transactional_id), coordinator)
    old = await _join(actor, "")
    await actor.add_offsets(GROUP)
    question = stage.detain(home.host, AddPartitionsToTxnRequest, coordinator)
    sending = asyncio.ensure_future(actor.commit_offset(GROUP, tp, 5, member=old))
    await stage.detained(question)
    new = await _join(actor, old[1])
    require(new[0] > old[0], f"the generation after {old} is {new}")
    question.release()
    expect("offsets of a generation that has ended", await sending, ErrorCode.ILLEGAL_GENERATION)
    await actor.abort()


async def _commit_outside(stage: Stage) -> None:
    """Offsets without AddOffsetsToTxn would stay pending for ever."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    refused = await actor.commit_offset(GROUP, tp, 5)
    expect("offsets outside of the transaction", refused, ErrorCode.INVALID_TXN_STATE)
    await actor.write(tp)
    await actor.commit()
    found = await actor.committed_offset(GROUP, tp)
    require(found == -1, f"the group has committed {found}, expected: nothing")


async def _commit_with_bump(stage: Stage) -> None:
    """Clients of the repaired protocol do not send AddOffsetsToTxn: TxnOffsetCommit v5 adds the offsets."""
    actor, tp = Actor(stage, "c", is_new=True), stage.tps[0]
    await actor.init()
    for offset in (5, 9):
        expect("the offsets", await actor.commit_offset(GROUP, tp, offset), ErrorCode.NONE)
        await actor.commit()
        found = await actor.committed_offset(GROUP, tp)
        require(found == offset, f"the group has committed {found}, expected: {offset}")


async def _wait_for_stable_offset(stage: Stage) -> None:
    """Offsets of an open transaction are unstable, also for a coordinator that has just loaded them."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    for offset in (3, 8):
        before = await actor.committed_offset(GROUP, tp)
        await actor.add_offsets(GROUP)
        expect("the offsets", await actor.commit_offset(GROUP, tp, offset), ErrorCode.NONE)
        code, _ = await actor.stable_offset(GROUP, tp)
        expect(f"the offset after {before}", code, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        home = await stage.group_coordinator(GROUP)
        await stage.lead(stage.offsets_of(GROUP), next(node for node in stage.nodes if node is not home))
        code = ErrorCode.NOT_COORDINATOR
        while code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            code, _ = await actor.stable_offset(GROUP, tp)
            await asyncio.sleep(0.02)
        expect("the loaded offset", code, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await actor.commit()
        found = await actor.committed_offset(GROUP, tp)
        require(found == offset, f"the group has committed {found}, expected: {offset}")


async def _load(stage: Stage) -> None:
    """Coordinators that have just been elected answer nothing before they have read their logs."""
    actor, tp = Actor(stage, "c"), stage.tps[0]
    await actor.init()
    await actor.add_offsets(GROUP)
    expect("the offsets", await actor.commit_offset(GROUP, tp, 5), ErrorCode.NONE)
    await actor.commit()
    answers: list[tuple[str, ErrorCode]] = []
    for partition in (stage.transactions_of(actor.transactional_id), stage.offsets_of(GROUP)):
        home = await stage.leader(partition)
        other = next(node for node in stage.nodes if node is not home)
        assert other.broker is not None
        _ask_when_elected(other.broker, actor.transactional_id, partition, answers)
        await stage.lead(partition, other)
    require(len(answers) >= 2, "no coordinator was asked while it was loading")
    for what, code in answers:
        expect(f"{what}, while its coordinator is loading", code, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    require(await actor.committed_offset(GROUP, tp) == 5, "the offset is lost")


def _ask_when_elected(
    broker: Broker, transactional_id: str, partition: TopicPartition, answers: list[tuple[str, ErrorCode]]
) -> None:
    def on_leadership(leaders: Sequence[tuple[TopicPartition, int]], _: object) -> None:
        if partition in dict(leaders):
            if partition.topic == GROUP_METADATA_TOPIC:
                found = broker.groups.committed_partitions(GROUP)
                answers.append(("the offsets", found if isinstance(found, ErrorCode) else ErrorCode.NONE))
            else:
                answers.append(("the transaction", broker.transactions.describe(transactional_id).error))

    broker.replicas.leadership_listeners.append(on_leadership)


AIMS_OF_GROUPS: Final[dict[str, Aim]] = {
    "member of an earlier generation": Aim(_fence_member),
    "generation that ends meanwhile": Aim(_rejoin_while_verifying),
    "offsets outside of the transaction": Aim(_commit_outside),
    "offsets with a bump": Aim(_commit_with_bump, REPAIRED),
    "unstable offset": Aim(_wait_for_stable_offset),
    "loading coordinators": Aim(_load),
}
