"""Aimed scenarios at the limits of a cluster: few brokers, transactions that stay open, the last producer ids."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from klamm.controller.config import BLOCK_SIZE
from klamm.controller.producer_ids import MAX_PRODUCER_ID
from klamm.errors import ErrorCode
from klamm.log.producer_state import LATE_TRANSACTION_BUFFER_MS
from klamm.metrics import Gauge
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.replica.transaction_watch import INTERVAL_MS
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.cluster import SimNode
from klamm.sim.loop import EPOCH_MS
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import TRANSACTION_KEY, Aim, Stage
from klamm.sim.violation import require
from klamm.zk.model import paths
from klamm.zk.model.ops import SetData
from klamm.zk.model.znodes import ProducerIdBlock, encode_producer_id_block

MAX_TIMEOUT_MS: Final = 60_000
COUNTED_S: Final = 1.5 * INTERVAL_MS / 1000
"""Within this time every broker has counted its late transactions again."""


async def _use_two_brokers(stage: Stage) -> None:
    """The first transaction begins while two brokers live. One of them is enough to coordinate (decision 0029)."""
    first, second, third = stage.nodes
    third.kill()
    await stage.wait(lambda: all(_alive(node) == 2 for node in (first, second)), "the brokers know of two")
    found = await _find_coordinator(stage, first)
    expect("FindCoordinator in a cluster of two", found, ErrorCode.NONE)
    assert first.broker is not None
    tp = stage.transactions_of("w")
    partition = first.broker.metadata.snapshot.partition(*tp)
    assert partition is not None
    require(len(partition.replicas) == 2, f"{tp} has the replicas {partition.replicas}, expected: two")
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    await actor.commit()
    await actor.init()  # The markers are written: alone, no broker may append to a topic with a min ISR of 2.
    second.kill()
    await actor.init()


async def _need_three_brokers(stage: Stage) -> None:
    """The operator has set the number of replicas: there is no coordinator before there are as many brokers."""
    first, second, third = stage.nodes
    third.kill()
    await stage.wait(lambda: all(_alive(node) == 2 for node in (first, second)), "the brokers know of two")
    found = await _find_coordinator(stage, first)
    require(found is not ErrorCode.NONE, "FindCoordinator found a coordinator in a cluster of two")
    third.start()
    await stage.wait(lambda: third.is_ready and all(_alive(node) == 3 for node in stage.nodes), "all know of three")
    expect("FindCoordinator in a cluster of three", await _find_coordinator(stage, first), ErrorCode.NONE)


def _alive(node: SimNode) -> int:
    return 0 if node.broker is None else len(node.broker.metadata.snapshot.brokers)


async def _find_coordinator(stage: Stage, node: SimNode) -> ErrorCode:
    """The topic is created by the first request: the next ones find it."""
    for _ in range(40):
        response: Any = await stage.ask(node, FindCoordinatorRequest(key="w", key_type=TRANSACTION_KEY), 3)
        if response.error_code == ErrorCode.NONE:
            break
        await asyncio.sleep(0.05)
    return ErrorCode(response.error_code)


async def _stay_open(stage: Stage) -> None:
    """A transaction is open for longer than any timeout allows: the leader's gauge reports it until it ends."""
    actor, tp = Actor(stage, "w"), stage.tps[0]
    await actor.init()
    await actor.add(tp)
    leader = await stage.leader(tp)
    written_ms = EPOCH_MS - MAX_TIMEOUT_MS - LATE_TRANSACTION_BUFFER_MS
    code = await actor.deliver(actor.prepare(tp, timestamp_ms=written_ms))
    expect("an old record", code, ErrorCode.NONE)
    await stage.wait(lambda: _late(leader) == 1, "the leader reports a late transaction", COUNTED_S)
    await asyncio.sleep(COUNTED_S)
    others = [_late(node) for node in stage.nodes if node is not leader]
    require(others == [0, 0], f"the followers report {others} partitions with late transactions, expected: 0")
    await actor.commit()
    await stage.wait(lambda: _late(leader) == 0, "the leader reports no late transaction", COUNTED_S)


def _late(node: SimNode) -> object:
    assert node.broker is not None
    gauge = node.broker.metrics.find("kafka.server", "ReplicaManager", "PartitionsWithLateTransactionsCount")
    assert isinstance(gauge, Gauge)
    return gauge.value


async def _use_last_ids(stage: Stage) -> None:
    """The last block of producer ids is given to one broker. New producers of others are refused, and none wraps."""
    one, other = stage.nodes[:2]
    mine, theirs = Actor(stage, "w"), Actor(stage, "v")
    await stage.coordinator(mine.transactional_id)
    await stage.lead(stage.transactions_of(mine.transactional_id), one)
    await stage.lead(stage.transactions_of(theirs.transactional_id), other)
    before = ProducerIdBlock(0, 0, MAX_PRODUCER_ID - BLOCK_SIZE - 1)
    write = SetData(paths.PRODUCER_ID_BLOCK, encode_producer_id_block(before))
    require(stage.cluster.zookeeper.operate(write), "the operator cannot write the last block")
    ids: set[int] = set()
    while len(ids) < 2:
        await mine.init()
        ids.add(mine.identity.producer_id)
        await mine.write(stage.tps[0])
        await mine.commit()
    first = before.block_end + 1
    require(ids == {first, first + 1}, f"the ids are {sorted(ids)}, expected: {first} and the next one")
    for _ in range(3):
        refused = await theirs.init(once=True)
        expect("a producer without an id", refused, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    await mine.write(stage.tps[0])
    await mine.commit()


AIMS_OF_LIMITS: Final[dict[str, Aim]] = {
    "cluster of two": Aim(
        _use_two_brokers, without=("transaction.state.log.replication.factor", "transaction.state.log.min.isr")
    ),
    "replicas that are set": Aim(_need_three_brokers),
    "late transaction": Aim(_stay_open, {"transaction.max.timeout.ms": MAX_TIMEOUT_MS}),
    "last producer ids": Aim(_use_last_ids, max_epoch=3),
}
