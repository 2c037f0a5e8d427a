"""Aimed scenarios of the control plane: forged control requests, and a broker whose event loop stalls."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH, TopicPartition
from klamm.sim.aimed.cluster_stage import ClusterAim, ClusterStage, expect
from klamm.sim.cluster import SimNode
from klamm.sim.forgery import (
    FOREIGN_HOST,
    ForgedHead,
    forge_leader_and_isr,
    forge_stop_replica,
    forge_update_metadata,
)
from klamm.sim.violation import require
from klamm.zk.client.loop_pulse import SHORTEST_LIMIT_S
from klamm.zk.model import paths
from klamm.zk.model.ops import Delete, SetData
from klamm.zk.model.znodes import (
    decode_controller_epoch,
    decode_partition_state,
    encode_controller_epoch,
    encode_partition_state,
)

_FAR: Final = 1_000_000
_CUT_S: Final = 8.0
"""Longer than the allowed lag of a follower."""
_SHORT_S: Final = SHORTEST_LIMIT_S / 2
_UNREADABLE_S: Final = 4.0
"""Longer than the pause between two attempts to read a znode that is unreadable."""
_LATE_S: Final = 2.0
"""Time between the limit of a stalled loop and the last moment at which others lead its partitions."""


async def _forge_broker_epochs(stage: ClusterStage) -> None:
    """A forger who knows the controller and its epoch, but not the broker epoch, is refused and changes nothing."""
    await stage.write(stage.tps[0])
    epoch = decode_controller_epoch(stage.cluster.zookeeper.tree.nodes[paths.CONTROLLER_EPOCH].data)
    for node in stage.nodes:
        assert node.broker is not None
        own = node.broker.broker_epoch
        for false in (own - 1, own + 1, own + _FAR, 0, UNKNOWN_BROKER_EPOCH):
            head = ForgedHead(stage.controller.id, epoch, false)
            for forge in (forge_update_metadata, forge_stop_replica, forge_leader_and_isr):
                request, version = forge(node, stage.tps[0], head)
                response = await stage.ask(node, request, version)
                what = f"{type(request).__name__} with broker epoch {false} instead of {own}"
                expect(what, ErrorCode(response.error_code), ErrorCode.STALE_BROKER_EPOCH)
                _check_unchanged(node, stage.tps[0], what)


def _check_unchanged(node: SimNode, tp: TopicPartition, what: str) -> None:
    assert node.broker is not None
    hosts = [
        endpoint.host for broker in node.broker.metadata.snapshot.brokers.values() for endpoint in broker.endpoints
    ]
    require(FOREIGN_HOST not in hosts, f"{what}: clients of broker {node.id} are sent to {FOREIGN_HOST}")
    hosted = node.broker.replicas.partitions.get(tp)
    require(hosted is not None and len(hosted.replicas) == 3, f"{what}: broker {node.id} has {tp} as {hosted}")


async def _stall_loop(stage: ClusterStage) -> None:
    """A broker whose loop stalls gives up its session at its limit, and not earlier. The others keep theirs."""
    tp = await stage.partition_away_from(stage.controller)
    node = await stage.leader(tp)
    await stage.write(tp)
    sessions = {each.id: _session(stage, each) for each in stage.nodes}
    for _ in range(3):
        stage.stall(node)
        await asyncio.sleep(_SHORT_S)
        stage.resume(node)
        await asyncio.sleep(1.0)
        require(_session(stage, node) == sessions[node.id], f"broker {node.id} gave up its session after {_SHORT_S} s")
    stage.stall(node)
    await stage.wait(
        lambda: not stage.is_registered(node), "the stalled broker has no session", SHORTEST_LIMIT_S + _LATE_S
    )
    await stage.wait(lambda: stage.is_led_by_other(tp, node), "another broker leads")
    await stage.write(tp)
    kept = {each.id: _session(stage, each) for each in stage.nodes if each is not node}
    del sessions[node.id]
    require(kept == sessions, f"brokers whose loops turn have the sessions {kept} instead of {sessions}")
    stage.resume(node)
    await stage.wait(lambda: stage.is_registered(node), "the broker is registered again")
    await stage.in_sync(node)


def _session(stage: ClusterStage, node: SimNode) -> int | None:
    znode = stage.cluster.zookeeper.tree.nodes.get(paths.broker_path(node.id))
    return None if znode is None else znode.ephemeral_owner


async def _spoil_controller_epoch(stage: ClusterStage) -> None:
    """No controller is elected while `/controller_epoch` is unreadable.

    Leaders serve, and brokers notice the repair.
    """
    zookeeper = stage.cluster.zookeeper
    last = decode_controller_epoch(zookeeper.tree.nodes[paths.CONTROLLER_EPOCH].data)
    stage.cluster.note("aimed: /controller_epoch is overwritten, and the controller is deposed")
    zookeeper.operate(SetData(paths.CONTROLLER_EPOCH, b"garbage"), Delete(paths.CONTROLLER))
    await asyncio.sleep(_UNREADABLE_S)
    for tp in stage.tps:
        await stage.write(tp)
    require(paths.CONTROLLER not in zookeeper.tree.nodes, "a controller was elected without a readable epoch")
    require(zookeeper.tree.nodes[paths.CONTROLLER_EPOCH].data == b"garbage", "a broker has replaced /controller_epoch")
    stage.cluster.note("aimed: /controller_epoch is repaired")
    zookeeper.operate(SetData(paths.CONTROLLER_EPOCH, encode_controller_epoch(last)))
    await stage.wait(lambda: paths.CONTROLLER in zookeeper.tree.nodes, "there is a controller again")
    epoch = decode_controller_epoch(zookeeper.tree.nodes[paths.CONTROLLER_EPOCH].data)
    require(epoch == last + 1, f"the controller after epoch {last} has epoch {epoch}")


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
        await asyncio.sleep(_UNREADABLE_S)
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


def _other_isr(tp: TopicPartition, data: bytes | None) -> bytes:
    state = decode_partition_state(tp, data, 0)
    leadership = replace(state.leader_and_isr, isr=(state.leader_and_isr.leader,))
    return encode_partition_state(replace(state, leader_and_isr=leadership))


AIMS_OF_CONTROL: Final[dict[str, ClusterAim]] = {
    "false broker epoch": ClusterAim(_forge_broker_epochs),
    "forged partition state": ClusterAim(_forge_state),
    "forged partition state before a death": ClusterAim(_forge_state_before_death),
    "forged partition state before a failover": ClusterAim(_forge_state_before_failover),
    "stalled loop": ClusterAim(_stall_loop),
    "unreadable controller epoch": ClusterAim(_spoil_controller_epoch),
}
