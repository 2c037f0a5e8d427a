"""Makes a state of ZooKeeper that is older than the brokers' logs safe to start from.

The logs contain producer ids that would be allocated again, so that new records look like duplicates, and leader epochs
that would be used twice. A lost change raises such a number by one step at most, so each is raised by the number of
lost changes. Sessions end: their brokers are stopped.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from klamm.model import PRODUCER_IDS_PER_BLOCK, LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.nodes import Znode
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.model.znodes import (
    ProducerIdBlock,
    ZnodeFormatError,
    decode_controller_epoch,
    decode_partition_state,
    decode_producer_id_block,
    encode_controller_epoch,
    encode_partition_state,
    encode_producer_id_block,
)

MAX_EPOCH: Final = 0x7FFFFFFF - 1
_STATE: Final = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state$")


def advance(tree: ZnodeTree, lost_changes: int, now_ms: int) -> None:
    """End all sessions, and raise epochs and producer ids beyond those that the lost changes may have used."""
    for session_id in tuple(tree.sessions):
        tree.close_session(session_id, now_ms)
    if not lost_changes:
        return
    for path, node in tree.nodes.items():
        with suppress(ZnodeFormatError):  # invalid data stays: the brokers report it
            changed = _changed(tree, path, node, lost_changes)
            if changed is None:
                continue
            node.data = changed
            node.version += 1
            node.mzxid, node.mtime = tree.last_zxid, now_ms


def _changed(tree: ZnodeTree, path: str, node: Znode, by: int) -> bytes | None:
    """Return the new data of this znode, which may be below a chroot; None for other znodes."""
    if path.endswith(paths.PRODUCER_ID_BLOCK):
        epoch = tree.nodes.get(path.removesuffix(paths.PRODUCER_ID_BLOCK) + paths.CONTROLLER_EPOCH)
        return _raised_block(node, by, epoch_czxid=None if epoch is None else epoch.czxid)
    if node.data is None:
        return None
    if path.endswith(paths.CONTROLLER_EPOCH):
        return encode_controller_epoch(_raised(decode_controller_epoch(node.data), by))
    found = _STATE.search(path)
    return None if found is None else _raise_state(TopicPartition(found[1], int(found[2])), node.data, by)


def _raise_state(tp: TopicPartition, data: bytes, by: int) -> bytes:
    state = decode_partition_state(tp, data, 0)
    it = state.leader_and_isr
    epoch = _raised(it.leader_epoch, by)
    raised = LeaderAndIsr(it.leader, epoch, it.isr, it.partition_epoch, it.leader_recovery_state)
    return encode_partition_state(LeaderIsrAndControllerEpoch(raised, state.controller_epoch, state.former_isr))


def _raised_block(node: Znode, by: int, epoch_czxid: int | None) -> bytes:
    """Raise the last block. Each lost change may have allocated one, also if there was none before."""
    block = decode_producer_id_block(node.data, node.version, czxid=node.czxid, epoch_czxid=epoch_czxid)
    if block is None:
        block = ProducerIdBlock(-1, -PRODUCER_IDS_PER_BLOCK, -1)
    step = by * (block.block_end - block.block_start + 1)
    return encode_producer_id_block(ProducerIdBlock(block.broker_id, block.block_start + step, block.block_end + step))


def _raised(epoch: int, by: int) -> int:
    return min(epoch + by, MAX_EPOCH) if epoch >= 0 else epoch
