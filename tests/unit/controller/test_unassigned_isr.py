"""Replicas of moves that were replaced or cancelled do not stay in an ISR: they would count as copies, and no leader
notices that they lag."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.controller.requests import LeaderAndIsrRequest, UpdateMetadataRequest
from klamm.model import LEADER_DURING_DELETE, ReplicaAssignment, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import WriteOp
from klamm.zk.model.znodes import decode_partition_state, encode_partition_state, encode_partitions
from tests.unit.controller.core import Core

TP = TopicPartition("T", 0)
STATE = paths.partition_state_path(*TP)


def state(core: Core) -> tuple[int, tuple[int, ...]]:
    led = decode_partition_state(TP, core.tree.nodes[STATE].data, 0).leader_and_isr
    return led.leader, led.isr


def leader_writes(core: Core, *isr: int) -> None:
    """As a leader does that knows nothing of AlterPartition, or did before the replica was taken away."""
    written = decode_partition_state(TP, core.tree.nodes[STATE].data, 0)
    led = replace(written.leader_and_isr, isr=isr)
    core.tool_writes(STATE, encode_partition_state(replace(written, leader_and_isr=led)))


def test_a_leader_that_takes_in_a_dropped_replica_while_another_is_elected_for_the_move() -> None:
    """Leader 1 goes; its last write contains the replica that the new move no longer wants."""
    core = Core("protocol 2.7-IV1", "brokers 1 2 3", "controller 0", "create T 1,2", "reassign T-0 2,3")

    def late_write(ops: tuple[WriteOp, ...]) -> None:
        if any(op.path == STATE for op in ops):
            core.before_multi = lambda _: None
            leader_writes(core, 1, 2, 3)

    core.before_multi = late_write
    core.run("reassign T-0 2")
    assert core.controller is not None
    assert core.controller.context.topics.assignment(TP) == ReplicaAssignment((2,))
    assert state(core) == (2, (2,))
    core.run("dies 2")
    core.run("starts 2")
    assert state(core) == (2, (2,))


@pytest.mark.parametrize("protocol", ["2.7-IV1", "3.9-IV0"])
def test_the_next_controller_removes_members_that_its_predecessor_could_not(protocol: str) -> None:
    """According to the topic znode the move was cancelled. No broker knows, and the leader had added the replica."""
    core = Core(f"protocol {protocol}", "brokers 1 2 3", "controller 0", "create T 1")
    leader_writes(core, 1, 3)
    core.run("controller-fails-over-to 4")
    assert state(core) == (1, (1,))
    core.run("dies 1")
    core.run("starts 1")
    assert state(core) == (1, (1,))


def test_a_leader_that_is_not_assigned_hands_over_when_the_controller_changes() -> None:
    core = Core("brokers 1 2 3", "controller 0", "create T 1,2")
    written = decode_partition_state(TP, core.tree.nodes[STATE].data, 0)
    led = replace(written.leader_and_isr, leader=3, isr=(3, 2))
    core.tool_writes(STATE, encode_partition_state(replace(written, leader_and_isr=led)))
    core.run("controller-fails-over-to 4")
    assert state(core) == (2, (2,))


@pytest.mark.parametrize("isr", [(3,), (3, 1)], ids=["alone", "with one that is dead"])
def test_a_leader_that_is_not_assigned_stays_while_no_other_can_lead(isr: tuple[int, ...]) -> None:
    """A new leader epoch would make its broker take the only good copy for a stray and delete it."""
    core = Core("brokers 1 2 3", "controller 0", "create T 1,2")
    written = decode_partition_state(TP, core.tree.nodes[STATE].data, 0)
    led = replace(written.leader_and_isr, leader=3, isr=isr)
    core.tool_writes(STATE, encode_partition_state(replace(written, leader_and_isr=led)))
    if len(isr) > 1:
        core.run("dies 1")
    core.run("controller-fails-over-to 4")
    assert state(core) == (3, (3,))
    now = decode_partition_state(TP, core.tree.nodes[STATE].data, 0).leader_and_isr
    assert now.leader_epoch == led.leader_epoch + len(isr) - 1  # one more where somebody left the ISR


def test_a_leader_without_notice_lets_the_replica_in_after_the_failover() -> None:
    core = Core("protocol 2.7-IV1", "brokers 1 2 3", "controller 0", "create T 1,2")
    leader_writes(core, 1, 2, 3)
    core.sent.clear()
    core.tool_writes(paths.isr_change_path("isr_change_0000000001"), encode_partitions([TP]))
    core.drain()
    assert state(core) == (1, (1, 2))
    reported = [broker for broker, request in core.sent if isinstance(request, LeaderAndIsrRequest)]
    assert reported == [1, 2]


def test_a_note_of_a_topic_in_deletion_elects_no_leader() -> None:
    """Its replicas are being stopped: a broker that receives an ISR would host the partition again."""
    core = Core("protocol 2.7-IV1", "brokers 1 2 3", "controller 0", "create T 1,2", "dies 2", "delete T")
    assert core.controller is not None and core.controller.context.deletions.is_queued("T")
    leader_writes(core, 1, 3)
    written = core.tree.nodes[STATE].data
    core.sent.clear()
    note = paths.isr_change_path("isr_change_0000000001")
    core.tool_writes(note, encode_partitions([TP]))
    core.drain()
    assert core.tree.nodes[STATE].data == written
    assert {type(request) for _, request in core.sent} == {UpdateMetadataRequest}
    reported = [each.leader for _, request in core.sent for each in request.body.partitions]  # type: ignore[union-attr]
    assert reported and set(reported) == {LEADER_DURING_DELETE}
    assert note not in core.tree.nodes
