"""A state that is older than the brokers' logs: sessions end, and no number is used twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from klamm.model import TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, SetData
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.model.znodes import (
    ProducerIdBlock,
    decode_controller_epoch,
    decode_partition_state,
    decode_producer_id_block,
    encode_producer_id_block,
)
from klamm.zk.server import rollback

TP = TopicPartition("orders", 3)
STATE = b'{"controller_epoch":4,"leader":1,"version":1,"leader_epoch":%d,"isr":[1,2]}'


def tree_with(nodes: Mapping[str, bytes | None]) -> ZnodeTree:
    tree = ZnodeTree()
    session = tree.create_session(1, 6_000, 0).id
    for path, data in nodes.items():
        parts = path.split("/")[1:]
        for depth in range(1, len(parts)):
            parent = "/" + "/".join(parts[:depth])
            if parent not in tree.nodes:
                tree.write(session, Create(parent, None), 0)
        tree.write(session, Create(path, data), 0)
    return tree


@pytest.mark.parametrize("chroot", ["", "/kafka/east"])
def test_numbers_continue_beyond_the_lost_changes(chroot: str) -> None:
    state, block = paths.partition_state_path(*TP), ProducerIdBlock(2, 1_000, 1_999)
    tree = tree_with(
        {
            chroot + state: STATE % 6,
            chroot + paths.CONTROLLER_EPOCH: b"9",
            chroot + paths.PRODUCER_ID_BLOCK: encode_producer_id_block(block),
            chroot + "/brokers/ids": b"",
        }
    )
    rollback.advance(tree, 50, 1_000)
    found = decode_partition_state(TP, tree.nodes[chroot + state].data, 0)
    assert (found.leader_and_isr.leader_epoch, found.leader_and_isr.isr, found.controller_epoch) == (56, (1, 2), 4)
    assert decode_controller_epoch(tree.nodes[chroot + paths.CONTROLLER_EPOCH].data) == 59
    raised = decode_producer_id_block(tree.nodes[chroot + paths.PRODUCER_ID_BLOCK].data)
    assert raised == ProducerIdBlock(2, 51_000, 51_999)
    assert tree.nodes[chroot + "/brokers/ids"].data == b""


def test_sessions_end_with_their_ephemeral_znodes() -> None:
    tree = tree_with({"/brokers/ids": b""})
    (session,) = tree.sessions
    tree.write(session, Create("/brokers/ids/1", b"{}", ephemeral=True), 0)
    rollback.advance(tree, 0, 1_000)
    assert not tree.sessions and "/brokers/ids/1" not in tree.nodes


@pytest.mark.parametrize("epoch", [0x7FFFFFFF - 1, 0x7FFFFFF0])
def test_an_epoch_stays_a_number_that_messages_can_carry(epoch: int) -> None:
    path = paths.partition_state_path(*TP)
    tree = tree_with({path: STATE % epoch})
    rollback.advance(tree, 1_000, 0)
    assert decode_partition_state(TP, tree.nodes[path].data, 0).leader_and_isr.leader_epoch == rollback.MAX_EPOCH


def test_garbage_and_empty_znodes_stay_as_they_are() -> None:
    nodes = {paths.CONTROLLER_EPOCH: b"banana", paths.PRODUCER_ID_BLOCK: b"[", paths.partition_state_path(*TP): b""}
    tree = tree_with(nodes)
    versions = {path: tree.nodes[path].version for path in nodes}
    rollback.advance(tree, 10, 0)
    assert {path: tree.nodes[path].data for path in nodes} == nodes
    assert {path: tree.nodes[path].version for path in nodes} == versions


@pytest.mark.parametrize("chroot", ["", "/kafka/east"])
@pytest.mark.parametrize("data", [b"", None])
def test_the_lost_changes_may_have_allocated_the_first_producer_ids(chroot: str, data: bytes | None) -> None:
    path = chroot + paths.PRODUCER_ID_BLOCK
    tree = tree_with({path: data, chroot + paths.CONTROLLER_EPOCH: b"1"})
    rollback.advance(tree, 0, 0)
    assert tree.nodes[path].data == data, "no change was lost"
    rollback.advance(tree, 3, 0)
    block = decode_producer_id_block(tree.nodes[path].data, tree.nodes[path].version)
    assert block is not None and (block.block_start, block.block_end) == (2_000, 2_999)


@pytest.mark.parametrize("was_created_again", [False, True])
def test_a_block_that_was_emptied_or_deleted_is_not_invented(was_created_again: bool) -> None:
    """The allocated ids are unknown: brokers give none until an operator restores the block."""
    path, epoch = paths.PRODUCER_ID_BLOCK, paths.CONTROLLER_EPOCH
    tree = tree_with({epoch: b"1", path: b""} if was_created_again else {path: b"", epoch: b"1"})
    if not was_created_again:
        tree.write(next(iter(tree.sessions)), SetData(path, b""), 0)
    version = tree.nodes[path].version
    rollback.advance(tree, 3, 0)
    assert (tree.nodes[path].data, tree.nodes[path].version) == (b"", version)
