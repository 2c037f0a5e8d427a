"""Partition states that somebody else writes: their leaders can still change the ISR, and nobody is believed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from klamm.controller.events import AlterPartition, AlterPartitionItem
from klamm.controller.replies import AlterPartitionResults
from klamm.controller.requests import LeaderAndIsrRequest
from klamm.errors import ErrorCode
from klamm.model import LeaderAndIsr, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.znodes import decode_partition_state, encode_controller_epoch, encode_partition_state
from tests.unit.controller.core import Core

TP = TopicPartition("t", 0)
PATH = paths.partition_state_path("t", 0)


def cached(core: Core) -> LeaderAndIsr:
    assert core.controller is not None
    return core.controller.context.states.leadership[TP].leader_and_isr


def stored(core: Core) -> LeaderAndIsr:
    return decode_partition_state(TP, core.tree.nodes[PATH].data, 0).leader_and_isr


def forge(core: Core, **fields: Any) -> None:
    assert core.controller is not None
    state = core.controller.context.states.leadership[TP]
    forged = replace(state, leader_and_isr=replace(state.leader_and_isr, **fields))
    core.tool_writes(PATH, encode_partition_state(forged))


def ask(core: Core, *isr: int, known: LeaderAndIsr | None = None) -> ErrorCode:
    """Let the leader ask for this ISR. It knows this version of its state, or the controller's."""
    assert core.controller is not None
    core.sent.clear()
    known = known or cached(core)
    item = AlterPartitionItem(0, known.leader_epoch, isr, known.partition_epoch, topic="t")
    epoch = core.controller.context.brokers.live_or_shutting_down[known.leader].epoch
    reply = core.ask(AlterPartition(known.leader, epoch, (item,)))
    assert isinstance(reply, AlterPartitionResults)
    return reply.partitions[0].error


def renewals(core: Core) -> list[tuple[int, int, tuple[int, ...]]]:
    """The states of the partition that the leader has received: leader, leader epoch and ISR."""
    requests = [request for broker, request in core.sent if broker == 1 and isinstance(request, LeaderAndIsrRequest)]
    states = [state.leader_and_isr for request in requests for state in request.partitions]
    return [(state.leader, state.leader_epoch, state.isr) for state in states]


def complaints(core: Core) -> list[str]:
    return [line for line in core.lines if "cannot change until the znode holds" in line]


def started() -> tuple[Core, LeaderAndIsr]:
    """A partition, and the state that its leader knows."""
    core = Core("brokers 2 3", "controller 1", "create t 1,2,3")
    return core, cached(core)


def test_a_foreign_isr_is_replaced() -> None:
    """It is not believed, and its version does not freeze the partition."""
    core, _ = started()
    forge(core, isr=(1, 99))
    assert ask(core, 1, 2) is ErrorCode.NONE
    assert cached(core).isr == (1, 2) == stored(core).isr


def test_a_state_with_a_foreign_leader_is_neither_adopted_nor_overwritten() -> None:
    core, before = started()
    forge(core, leader=2, leader_epoch=7, isr=(2,))
    for _ in range(2):
        assert ask(core, 1, 2) is ErrorCode.UNKNOWN_SERVER_ERROR  # The leader asks again.
        assert core.sent == [], "nothing has changed, and the leader asks again soon"
    assert cached(core).isr == (1, 2, 3) and stored(core).leader == 2
    forge(core, leader=before.leader, leader_epoch=before.leader_epoch, isr=before.isr)
    assert ask(core, 1, 2) is ErrorCode.NONE
    assert stored(core).isr == (1, 2)


def test_a_foreign_state_is_logged_once_until_the_controller_has_written_the_state() -> None:
    core, before = started()
    forge(core, leader=2, leader_epoch=7, isr=(2,))
    ask(core, 1, 2)
    assert len(complaints(core)) == 1
    ask(core, 1, 2)
    assert complaints(core) == []
    forge(core, leader=before.leader, leader_epoch=before.leader_epoch, isr=before.isr)
    core.run("bounces 2")
    assert stored(core).isr == (1, 3), "the controller has written it"
    forge(core, leader=2, leader_epoch=9, isr=(2,))
    ask(core, 1)
    assert len(complaints(core)) == 1, "somebody has changed it again"


def test_a_state_that_was_forged_before_a_failover_does_not_freeze_the_isr() -> None:
    """The leader knows another version, and ignores all states of its leader epoch."""
    core, known = started()
    forge(core)
    core.run("controller-fails-over-to 1")
    check_renewed_at_the_second_request(core, known)
    assert ask(core, 1, 2, 3) is ErrorCode.NONE


def check_renewed_at_the_second_request(
    core: Core, known: LeaderAndIsr, answer: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
) -> None:
    """The leader asks until it has received a new leader epoch, the only one that it does not ignore."""
    assert ask(core, 1, 2, known=known) is answer
    assert core.sent == [], "it may have been late in the network"
    assert ask(core, 1, 2, known=known) is answer
    assert renewals(core) == [(1, known.leader_epoch + 1, cached(core).isr)]
    assert stored(core).leader_epoch == known.leader_epoch + 1
    assert ask(core, 1, 2, known=known) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_forged_isr_without_a_follower_that_dies_does_not_freeze_the_isr() -> None:
    """The controller does not write the state, because the follower is not in the ISR that it reads."""
    core, known = started()
    forge(core, isr=(1,))
    core.run("dies 3")
    assert cached(core).isr == (1,)
    check_renewed_at_the_second_request(core, known)
    assert ask(core, 1, 2) is ErrorCode.NONE


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_state_that_was_deleted_and_restored_does_not_freeze_the_isr(*, fails_over: bool) -> None:
    """Its version is lower than the leader's, which takes it for older."""
    core, _ = started()
    assert ask(core, 1, 2) is ErrorCode.NONE and ask(core, 1, 2, 3) is ErrorCode.NONE
    known, data = cached(core), core.tree.nodes[PATH].data
    assert data is not None
    core.tool_deletes(PATH)
    core.tool_writes(PATH, data)
    if fails_over:
        core.run("controller-fails-over-to 1")
        check_renewed_at_the_second_request(core, known, ErrorCode.NOT_CONTROLLER)  # It repeats this one, too.
    else:
        assert ask(core, 1, 2) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert renewals(core) == [(1, 1, (1, 2))]
    assert ask(core, 1, 2, 3) is ErrorCode.NONE


def test_an_older_state_that_was_restored_before_a_failover_does_not_freeze_the_isr() -> None:
    """Its leader epoch is lower than the leader's, which ignores it, and the next one as well."""
    core, old = started()
    core.run("bounces 2")
    assert ask(core, 1, 2, 3) is ErrorCode.NONE
    known = cached(core)
    assert known.leader_epoch == old.leader_epoch + 1
    forge(core, leader_epoch=old.leader_epoch, isr=old.isr)
    core.run("controller-fails-over-to 1")
    assert cached(core).leader_epoch == old.leader_epoch
    check_renewed_at_the_second_request(core, known, ErrorCode.NOT_CONTROLLER)
    assert ask(core, 1, 2, 3) is ErrorCode.NONE


def test_an_older_state_that_reaches_the_epoch_of_its_leader_does_not_freeze_the_isr() -> None:
    """The new controller removes a dead member. This takes the next leader epoch, which the leader already has."""
    core, old = started()
    core.run("bounces 2")
    assert ask(core, 1, 2, 3) is ErrorCode.NONE
    known = cached(core)
    forge(core, leader_epoch=old.leader_epoch, isr=old.isr)
    die_unnoticed(core, 3)
    core.run("controller-fails-over-to 1")
    assert (cached(core).leader_epoch, cached(core).isr) == (known.leader_epoch, (1, 2))
    assert ask(core, 1, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR and core.sent == []
    assert ask(core, 1, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert renewals(core) == [(1, known.leader_epoch + 1, (1,))]


def die_unnoticed(core: Core, broker: int) -> None:
    """End the session of a broker. The next controller is the first that notices."""
    core.controller = None
    core.run(f"dies {broker}")


def test_members_of_a_renewed_isr_are_those_of_both_sides() -> None:
    """The leader does not know that the controller has removed 3, nor the controller that the leader removes 2."""
    core, known = started()
    forge(core, isr=(1, 2))
    core.run("controller-fails-over-to 1")
    for _ in range(2):
        assert ask(core, 1, 3, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert renewals(core) == [(1, 1, (1,))] and stored(core).isr == (1,)


def test_a_late_request_of_a_leader_changes_nothing() -> None:
    core, known = started()
    assert ask(core, 1, 2) is ErrorCode.NONE
    before = cached(core)
    assert ask(core, 1, 3, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert cached(core) == before and core.sent == []
    assert ask(core, 1, 2, 3) is ErrorCode.NONE
    assert ask(core, 1, 3, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert core.sent == [], "the leader has asked with the right version since"


def test_a_broker_that_does_not_lead_is_not_renewed() -> None:
    core, known = started()
    claim = replace(known, leader=2, leader_epoch=known.leader_epoch + 3)
    for _ in range(3):
        assert ask(core, 2, known=claim) is ErrorCode.NOT_CONTROLLER
        assert core.sent == [] and cached(core) == known


@pytest.mark.parametrize("happens", ["another controller", "another leader", "no znode"])
def test_a_renewal_that_fails_is_repeated(happens: str) -> None:
    """A leader that had to wait for it would never ask again."""
    core, known = started()
    forge(core)
    core.run("controller-fails-over-to 1")
    good = stored(core)
    assert ask(core, 1, 2, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR
    spoil: dict[str, Callable[[], None]] = {
        "another controller": lambda: core.tool_writes(paths.CONTROLLER_EPOCH, encode_controller_epoch(50)),
        "another leader": lambda: forge(core, leader=2, leader_epoch=7, isr=(2,)),
        "no znode": lambda: core.tool_deletes(PATH),
    }
    spoil[happens]()
    assert ask(core, 1, 2, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR
    if happens == "another controller":
        assert renewals(core) == [(1, 0, known.isr)], "the next one has sent all states"
        check_renewed_at_the_second_request(core, known)
        return
    assert renewals(core) == []
    assert len(complaints(core)) == 1
    ask(core, 1, 2, known=known)
    assert complaints(core) == [] and renewals(core) == []
    forge(core, leader=good.leader, leader_epoch=good.leader_epoch, isr=good.isr)
    assert ask(core, 1, 2, known=known) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert renewals(core) == [(1, 1, (1, 2))]
