"""Aimed scenarios of the control plane: forged control requests, and a broker whose event loop stalls."""

from __future__ import annotations

import asyncio
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
from klamm.zk.model.znodes import decode_controller_epoch, encode_controller_epoch

_FAR: Final = 1_000_000
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


AIMS_OF_CONTROL: Final[dict[str, ClusterAim]] = {
    "false broker epoch": ClusterAim(_forge_broker_epochs),
    "stalled loop": ClusterAim(_stall_loop),
    "unreadable controller epoch": ClusterAim(_spoil_controller_epoch),
}
