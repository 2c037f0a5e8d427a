"""Aimed scenarios of partition states that somebody else writes, restores, or deletes in ZooKeeper.

A leader ignores the states of a leader epoch that it has. It must still be able to change its ISR.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition import AlterPartitionRequest
from klamm.sim.aimed.cluster_stage import ClusterAim, ClusterStage
from klamm.sim.cluster import SimNode
from klamm.sim.violation import require
from klamm.sim.zk_server import HOST
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, Delete, SetData
from klamm.zk.model.znodes import decode_partition_state, encode_partition_state

_CUT_S: Final = 8.0
"""Longer than the allowed lag of a follower."""
_LONG_S: Final = 60.0
"""Longer than the whole scenario: only a change of the ISR lets the leader continue."""
_SETTLED_S: Final = 4.0
"""Longer than an election with all of its requests."""
_AT_LAST_S: Final = 20.0


async def _forge_state(stage: ClusterStage) -> None:
    """Somebody writes a partition's state and restores it. The ISR can change afterwards."""
    tp = await stage.partition_away_from(stage.controller)
    await stage.write(tp)
    leader = await stage.leader(tp)
    (follower,) = (node for node in stage.followers(leader) if node is not stage.controller)
    path = paths.partition_state_path(*tp)
    for is_restored in (False, True):
        await stage.in_sync(follower)
        zookeeper = stage.cluster.zookeeper
        before = zookeeper.tree.nodes[path].data
        stage.cluster.note(f"aimed: {path} is forged")
        zookeeper.operate(SetData(path, _other_isr(tp, before)))
        if is_restored:
            zookeeper.operate(SetData(path, before))
        stage.cut(leader, follower, _CUT_S)
        await stage.try_write(leader, tp)
        await stage.wait(lambda: len(stage.isr(tp)) == 2 and follower.id not in stage.isr(tp), "the ISR shrinks")
        await stage.write(tp)


async def _forge_state_before_failover(stage: ClusterStage) -> None:
    """The same, and the next controller reads what was written. The leader knows another version of its state."""
    tp = await stage.partition_away_from(stage.controller)
    path = paths.partition_state_path(*tp)
    zookeeper = stage.cluster.zookeeper
    for is_restored in (True, False):
        await stage.write(tp)
        leader = await stage.leader(tp)
        before = zookeeper.tree.nodes[path].data
        stage.cluster.note(f"aimed: {path} is forged, and the controller is deposed")
        zookeeper.operate(SetData(path, _other_isr(tp, before)))
        if is_restored:
            zookeeper.operate(SetData(path, before))
        zookeeper.operate(Delete(paths.CONTROLLER))
        await stage.wait(lambda: paths.CONTROLLER in zookeeper.tree.nodes, "there is a controller again")
        await asyncio.sleep(_SETTLED_S)
        follower = next(node for node in stage.followers(leader) if node is not stage.controller)
        stage.cut(leader, follower, _CUT_S)
        await stage.try_write(leader, tp)
        await stage.wait(lambda gone=follower.id: gone not in stage.isr(tp), "the ISR shrinks")  # type: ignore[misc]
        await stage.write(tp)
        await stage.in_sync(follower)


async def _forge_state_before_death(stage: ClusterStage) -> None:
    """Somebody writes an ISR without a follower that dies then. The leader continues without it."""
    tp = await stage.partition_away_from(stage.controller)
    await stage.write(tp)
    leader = await stage.leader(tp)
    follower = next(node for node in stage.followers(leader) if node is not stage.controller)
    path = paths.partition_state_path(*tp)
    stage.cluster.note(f"aimed: {path} is forged, and broker {follower.id} dies")
    zookeeper = stage.cluster.zookeeper
    zookeeper.operate(SetData(path, _other_isr(tp, zookeeper.tree.nodes[path].data)))
    follower.kill()
    await stage.wait(lambda: not stage.is_registered(follower), "the broker has no session")
    await stage.try_write(leader, tp)
    await stage.wait(lambda: len(stage.isr(tp)) == 2, "the leader has a live follower in its ISR")
    await stage.write(tp)
    follower.start()
    await stage.in_sync(follower)


async def _forge_leader(stage: ClusterStage) -> None:
    """Somebody writes another leader. That state is neither adopted nor overwritten, until it is restored."""
    tp = await stage.partition_away_from(stage.controller)
    await stage.write(tp)
    leader = await stage.leader(tp)
    follower = next(node for node in stage.followers(leader) if node is not stage.controller)
    path, zookeeper = paths.partition_state_path(*tp), stage.cluster.zookeeper
    before = zookeeper.tree.nodes[path].data
    forged = _with(tp, before, leader=follower.id, leader_epoch=7, isr=(follower.id,))
    stage.cluster.note(f"aimed: {path} names another leader")
    stage.cluster.checkers.edited.add(tp)
    zookeeper.operate(SetData(path, forged))
    stage.cut(leader, follower, _LONG_S)
    await stage.try_write(leader, tp)
    await asyncio.sleep(_SETTLED_S)
    require(zookeeper.tree.nodes[path].data == forged, f"{path} with a foreign leader was overwritten")
    zookeeper.operate(SetData(path, before))
    await _write_at_last(stage, tp)


async def _create_state_again(stage: ClusterStage, *, is_deposed: bool) -> None:
    """Somebody deletes a state and restores it: its version is lower than the leader's."""
    tp = await stage.partition_away_from(stage.controller)
    path, zookeeper = paths.partition_state_path(*tp), stage.cluster.zookeeper
    leader = await stage.leader(tp)
    await _lose_follower(stage, tp, leader)  # The state has two more versions.
    before = zookeeper.tree.nodes[path].data
    stage.cluster.note(f"aimed: {path} is deleted and restored")
    stage.cluster.checkers.edited.add(tp)
    zookeeper.operate(Delete(path), Create(path, before or b""))
    if is_deposed:
        await _depose(stage)
    await _lose_follower(stage, tp, leader)


async def _restore_older_state(stage: ClusterStage) -> None:
    """Somebody restores a state with a lower leader epoch, and then another controller is elected."""
    tp = await stage.partition_away_from(stage.controller)
    before = stage.cluster.zookeeper.tree.nodes[paths.partition_state_path(*tp)].data
    leader = await stage.leader(tp)
    await _raise_leader_epoch(stage, tp)
    await _restore(stage, tp, before)
    await _depose(stage)
    await _lose_follower(stage, tp, leader)


async def _restore_older_state_before_death(stage: ClusterStage) -> None:
    """The same, and the next controller removes a dead follower: its leader epoch is the one that the leader has."""
    tp = await stage.partition_away_from(stage.controller)
    before = stage.cluster.zookeeper.tree.nodes[paths.partition_state_path(*tp)].data
    follower = await _raise_leader_epoch(stage, tp)
    leader = await stage.leader(tp)
    stage.cluster.note(f"aimed: broker {follower.id} dies, and the controller is deposed")
    follower.kill()
    await stage.wait(lambda: not stage.is_registered(follower), "the broker has no session")
    await stage.wait(lambda: follower.id not in stage.isr(tp), "the ISR is without the dead broker")
    await _restore(stage, tp, _with(tp, before, leader_epoch=_leader_epoch(leader, tp) - 1))
    await _depose(stage)
    require(_epoch_in_zookeeper(stage, tp) == _leader_epoch(leader, tp), "the leader epochs are not the same")
    follower.start()
    await stage.in_sync(follower)


async def _renew_without_zookeeper(stage: ClusterStage) -> None:
    """The controller answers a leader, and loses ZooKeeper before it can write. The next one renews the leader."""
    znodes, operate = stage.cluster.zookeeper.tree.nodes, stage.cluster.zookeeper.operate
    before = {}
    for tp in stage.tps:
        await stage.write(tp)
        path = paths.partition_state_path(*tp)
        before[tp] = znodes[path].data
        operate(SetData(path, _other_isr(tp, before[tp])))
    await _depose(stage)
    controller = stage.controller
    tp = await stage.partition_away_from(controller)
    for other in stage.tps:
        if other != tp:
            operate(SetData(paths.partition_state_path(*other), before[other]))
    leader = await stage.leader(tp)
    follower = next(node for node in stage.followers(leader) if node is not controller)
    asked = stage.detain(leader.host, AlterPartitionRequest, controller)
    stage.cut(leader, follower, _LONG_S)
    await stage.try_write(leader, tp)
    await stage.detained(asked)
    stage.cluster.note(f"aimed: {controller.host} loses ZooKeeper")
    for source, target in ((controller.host, HOST), (HOST, controller.host)):
        stage.cluster.network.cut(source, target, stage.now_s + _CUT_S)
    asked.release()
    await _write_at_last(stage, tp)


async def _depose(stage: ClusterStage) -> None:
    zookeeper = stage.cluster.zookeeper
    stage.cluster.note("aimed: the controller is deposed")
    zookeeper.operate(Delete(paths.CONTROLLER))
    await stage.wait(lambda: paths.CONTROLLER in zookeeper.tree.nodes, "there is a controller again")
    await asyncio.sleep(_SETTLED_S)


async def _lose_follower(stage: ClusterStage, tp: TopicPartition, leader: SimNode) -> None:
    """Cut a follower from its leader. Records are acknowledged without it, and then it is in sync again."""
    follower = next(node for node in stage.followers(leader) if node is not stage.controller)
    stage.cut(leader, follower, _CUT_S)
    await stage.try_write(leader, tp)
    await stage.wait(lambda: follower.id not in stage.isr(tp), "the ISR shrinks")
    await _write_at_last(stage, tp)
    await stage.in_sync(follower)


async def _write_at_last(stage: ClusterStage, tp: TopicPartition) -> None:
    """Append records until one is acknowledged."""
    until_s = stage.now_s + _AT_LAST_S
    while (code := await stage.try_write(await stage.leader(tp), tp)) is not ErrorCode.NONE:
        require(stage.now_s < until_s, f"{tp} takes no records after {_AT_LAST_S:g} s: {code.name}")


async def _raise_leader_epoch(stage: ClusterStage, tp: TopicPartition) -> SimNode:
    """Restart a follower that is not the controller: the controller takes leader epochs. Return it."""
    leader = await stage.leader(tp)
    follower = next(node for node in stage.followers(leader) if node is not stage.controller)
    epoch = _leader_epoch(leader, tp)
    await stage.restart(follower)
    await stage.in_sync(follower)
    require(await stage.leader(tp) is leader and _leader_epoch(leader, tp) > epoch, f"{tp} has no new leader epoch")
    return follower


async def _restore(stage: ClusterStage, tp: TopicPartition, state: bytes | None) -> None:
    path = paths.partition_state_path(*tp)
    stage.cluster.note(f"aimed: {path} has an older state")
    stage.cluster.checkers.edited.add(tp)
    stage.cluster.zookeeper.operate(SetData(path, state or b""))


def _leader_epoch(leader: SimNode, tp: TopicPartition) -> int:
    assert leader.broker is not None
    return leader.broker.replicas.partitions[tp].leader_epoch


def _epoch_in_zookeeper(stage: ClusterStage, tp: TopicPartition) -> int:
    data = stage.cluster.zookeeper.tree.nodes[paths.partition_state_path(*tp)].data
    return decode_partition_state(tp, data, 0).leader_and_isr.leader_epoch


def _other_isr(tp: TopicPartition, data: bytes | None) -> bytes:
    return _with(tp, data, isr=(decode_partition_state(tp, data, 0).leader_and_isr.leader,))


def _with(tp: TopicPartition, data: bytes | None, **fields: Any) -> bytes:
    """Return the state with other fields."""
    state = decode_partition_state(tp, data, 0)
    return encode_partition_state(replace(state, leader_and_isr=replace(state.leader_and_isr, **fields)))


AIMS_OF_STATES: Final[dict[str, ClusterAim]] = {
    "forged leader": ClusterAim(_forge_leader),
    "forged partition state": ClusterAim(_forge_state),
    "forged partition state before a death": ClusterAim(_forge_state_before_death),
    "forged partition state before a failover": ClusterAim(_forge_state_before_failover),
    "older partition state": ClusterAim(_restore_older_state),
    "older partition state before a death": ClusterAim(_restore_older_state_before_death),
    "partition state created again": ClusterAim(partial(_create_state_again, is_deposed=False)),
    "partition state created again before a failover": ClusterAim(partial(_create_state_again, is_deposed=True)),
    "renewal without ZooKeeper": ClusterAim(_renew_without_zookeeper),
}
