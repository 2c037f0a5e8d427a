"""Aimed scenarios of compaction: it respects open and aborted transactions, markers and producers."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.model import TopicPartition
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.cluster import SimNode
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import Aim, Stage
from klamm.sim.transactions.txn_scenario import COMPACTION
from klamm.sim.violation import require

GROUP: Final = "copiers"
OFTEN: Final = 12
"""Records that fill some segments."""
KEY: Final = b"key"
SOON: Final = {**COMPACTION, "log.cleaner.delete.retention.ms": 300}
"""Tombstones and markers are removed soon."""
EXPIRING: Final = {
    **COMPACTION,
    "transactional.id.expiration.ms": 400,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 250,
}


async def _compact_offsets(stage: Stage) -> None:
    """The log of a group's offsets is compacted while a transaction is open, after its abort, and once more."""
    actor, other, busy = Actor(stage, "c"), Actor(stage, "d"), Actor(stage, "e")
    tp = stage.tps[0]
    for each in (actor, other, busy):
        await each.init()
    await _commit_offset(actor, tp, 5)
    await other.add_offsets(GROUP)
    expect("offsets of an open transaction", await other.commit_offset(GROUP, tp, 9), ErrorCode.NONE)
    await _fill(busy, stage.tps[1])
    await other.abort()
    await _check_offset(actor, tp, 5)
    for _ in range(2):
        await _fill(busy, stage.tps[1])
        await stage.wait(lambda: _compacted_to(stage, stage.offsets_of(GROUP)) > 4, "the offsets are compacted")
        await _check_offset(actor, tp, 5)


async def _commit_offset(actor: Actor, tp: TopicPartition, offset: int) -> None:
    await actor.add_offsets(GROUP)
    expect("the offsets", await actor.commit_offset(GROUP, tp, offset), ErrorCode.NONE)
    await actor.commit()


async def _fill(actor: Actor, tp: TopicPartition) -> None:
    """Write enough for further segments, and give the cleaner time for two passes."""
    for offset in range(OFTEN):
        await _commit_offset(actor, tp, offset)
    await asyncio.sleep(1.0)


async def _check_offset(actor: Actor, tp: TopicPartition, expected: int) -> None:
    """Ask another coordinator, which knows only the content of the log."""
    stage = actor.stage
    home = await stage.group_coordinator(GROUP)
    await stage.lead(stage.offsets_of(GROUP), next(node for node in stage.nodes if node is not home))
    found = await actor.committed_offset(GROUP, tp)
    require(found == expected, f"the group has committed {found} of {tp}, expected: {expected}")


def _compacted_to(stage: Stage, tp: TopicPartition) -> int:
    return min(_log(node, tp).cleaner_offset for node in stage.nodes)


def _log(node: SimNode, tp: TopicPartition) -> Log:
    assert node.broker is not None
    return node.broker.logs.logs[tp]


async def _compact_topic(stage: Stage) -> None:
    """No record of a producer is left, but a new replica still knows its last batch and recognises its duplicate."""
    first, second = Actor(stage, "v"), Actor(stage, "w")
    tp = await stage.create_topic("compacted", 1)
    home = await stage.leader(tp)
    await first.init()
    await second.init()
    await first.add(tp)
    batch = first.prepare(tp, key=KEY)
    expect("a batch", await first.deliver(batch), ErrorCode.NONE)
    await first.commit()
    for _ in range(OFTEN):
        await second.write(tp, key=KEY)
    await second.commit()
    await stage.wait(lambda: _log(home, tp).cleaner_offset > 2, "the log is compacted")
    target = next(node for node in stage.nodes if node is not home)
    await stage.move(tp, target)
    end = _log(target, tp).log_end_offset
    await first.add(tp)
    expect("the same batch", await first.deliver(batch), ErrorCode.NONE)
    require(_log(target, tp).log_end_offset == end, "a batch was appended twice")
    await first.abort()


async def _miss_tombstone(stage: Stage) -> None:
    """A transactional id expires while a replica is away. The others keep its tombstone until it is back."""
    idle = Actor(stage, "idle")
    await idle.init()
    state, home = stage.transactions_of(idle.transactional_id), stage.controller
    await stage.lead(state, home)
    away = next(node for node in stage.nodes if node is not home)
    away.kill()
    await stage.wait(lambda: not stage.is_registered(away), "the session of the replica has ended")
    log, tp = _log(home, state), await stage.partition_away_from(away)
    end = log.log_end_offset
    for number in range(4 * OFTEN):
        other = Actor(stage, f"other.{number}")
        await other.init()
        await other.write(tp)
        await other.commit()
    await stage.wait(lambda: log.cleaner_offset > end + OFTEN, "the tombstone is in a segment that was compacted")
    await asyncio.sleep(1.0)


AIMS_OF_COMPACTION: Final[dict[str, Aim]] = {
    "compacted offsets": Aim(_compact_offsets, SOON),
    "compacted topic": Aim(_compact_topic, {**SOON, "log.cleanup.policy": "compact", "log.segment.bytes": 500}),
    "replica that was away": Aim(_miss_tombstone, EXPIRING),
}
