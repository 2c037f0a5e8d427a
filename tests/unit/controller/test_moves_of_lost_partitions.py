"""Reassignments of partitions whose records are lost: an unclean election decides who leads, and may end the move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.controller.effects import Steps, ZkRead
from klamm.controller.events import (
    ControllerEvent,
    ElectionType,
    ReplicaLeaderElection,
    TopicUncleanLeaderElectionEnable,
)
from klamm.model import ReplicaAssignment, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import WriteOp
from klamm.zk.model.znodes import decode_partition_state, encode_config, encode_partition_state
from tests.unit.controller.core import Core

TP = TopicPartition("T", 0)


def allow_unclean(core: Core) -> None:
    config = encode_config({"unclean.leader.election.enable": "true"})
    core.tool_writes(paths.config_entity_path("topics", "T"), config)


def state(core: Core) -> tuple[int, tuple[int, ...]]:
    assert core.controller is not None
    led = core.controller.context.states.leadership[TP].leader_and_isr
    return led.leader, led.isr


def is_moved_to(core: Core, *replicas: int) -> bool:
    assert core.controller is not None
    ctx = core.controller.context
    return ctx.topics.assignment(TP) == ReplicaAssignment(replicas) and TP not in ctx.topics.reassigning


def test_a_replica_that_is_added_to_a_lost_partition_leads_it() -> None:
    core = Core("brokers 1 2 3", "controller 0", "create T 1")
    allow_unclean(core)
    core.run("dies 1")
    assert state(core) == (-1, (1,))
    core.run("reassign T-0 2,3")
    assert state(core) == (2, (2,))
    core.run("isr T-0 2,3")
    assert is_moved_to(core, 2, 3)


def test_a_replica_that_has_records_leads_before_one_that_is_added() -> None:
    """The added one may have none, and with it as the leader the move would end and the others be deleted."""
    core = Core("brokers 1 2 3", "controller 0", "create T 1,2", "isr T-0 1", "reassign T-0 3")
    allow_unclean(core)
    core.run("dies 1")
    assert core.controller is not None
    assert state(core) == (2, (2,))
    assert TP in core.controller.context.topics.reassigning and not core.controller.context.deletions.strays
    core.run("isr T-0 2,3")
    assert is_moved_to(core, 3)


def test_records_are_not_lost_where_they_must_not_be() -> None:
    core = Core("brokers 1 2 3", "controller 0", "create T 1", "dies 1", "reassign T-0 2,3")
    assert state(core) == (-1, (1,))
    core.run("starts 1")
    assert state(core) == (1, (1,))


@pytest.mark.parametrize("how", ["a leader dies", "an operator asks", "the topic is configured"])
def test_an_unclean_election_ends_a_move_whose_target_it_puts_in_sync(how: str) -> None:
    core = Core("brokers 1 2 3", "controller 0", "create T 1", "reassign T-0 2")
    if how == "a leader dies":
        allow_unclean(core)
    core.run("dies 1")
    if how == "an operator asks":
        core.ask(ReplicaLeaderElection((TP,), ElectionType.UNCLEAN))
    elif how == "the topic is configured":
        allow_unclean(core)
        core.queue.append(TopicUncleanLeaderElectionEnable("T"))
        core.drain()
    assert state(core) == (2, (2,))
    assert is_moved_to(core, 2)


def test_a_replica_that_its_leader_takes_in_while_its_move_is_cancelled_does_not_stay_in_the_isr() -> None:
    """Before AlterPartition leaders write the ISR themselves: here just when the controller has dropped the replica."""
    core = Core("protocol 2.7-IV1", "brokers 1 2 3", "controller 0", "create T 1", "reassign T-0 1,2")
    path = paths.partition_state_path(*TP)
    written = decode_partition_state(TP, core.tree.nodes[path].data, 0)
    joined = replace(written, leader_and_isr=replace(written.leader_and_isr, isr=(1, 2)))

    def leader_writes(ops: tuple[WriteOp, ...]) -> None:
        if any(op.path == path for op in ops):
            core.before_multi = lambda _: None
            core.tool_writes(path, encode_partition_state(joined))

    core.before_multi = leader_writes
    core.run("cancel T-0")
    assert state(core) == (1, (1,))
    assert is_moved_to(core, 1)


class CountingCore(Core):
    """Counts how often ZooKeeper is asked, however much at a time."""

    reads = 0

    def drive(self, event: ControllerEvent, steps: Steps[None]) -> None:
        super().drive(event, self._counted(steps))

    def _counted(self, steps: Steps[None]) -> Steps[None]:
        value: object = None
        error: Exception | None = None
        while True:
            try:
                effect = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration:
                return
            self.reads += isinstance(effect, ZkRead)
            value = error = None
            try:
                value = yield effect
            except Exception as failed:
                error = failed


@pytest.mark.parametrize("how", ["dies 1", "elect"])
def test_moves_that_continue_cost_no_round_trips_of_their_own(how: str) -> None:
    asked = []
    for count in (2, 20):
        core = CountingCore("brokers 1 2 3", "controller 0", "create T" + " 1,2" * count)
        tps = [TopicPartition("T", p) for p in range(count)]
        for tp in tps:
            core.run(f"reassign {tp} 2,3")
        assert core.controller is not None
        core.reads = 0
        if how == "elect":
            core.ask(ReplicaLeaderElection(tuple(tps), ElectionType.PREFERRED))
        else:
            core.run(how)
        assert {led.leader_and_isr.leader for led in core.controller.context.states.leadership.values()} == {2}
        assert len(core.controller.context.topics.reassigning) == count
        asked.append(core.reads)
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("how", "protocol"),
    [("bounces 3", "3.9"), ("controller-fails-over-to 4", "3.9"), ("controller-fails-over-to 4", "2.7-IV1")],
)
def test_moves_that_are_resumed_are_read_and_written_together(how: str, protocol: str) -> None:
    asked = []
    for count in (2, 20):
        core = CountingCore(f"protocol {protocol}", "brokers 1 2 3", "controller 0", "create T" + " 1,2" * count)
        for p in range(count):
            core.run(f"reassign T-{p} 2,3")
        core.reads, core.multis = 0, []
        core.run(how)
        assert core.controller is not None
        assert len(core.controller.context.topics.reassigning) == count
        asked.append((core.reads, len(core.multis)))
    assert asked[0] == asked[1]
