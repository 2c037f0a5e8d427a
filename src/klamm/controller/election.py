"""Leader selection: pure functions of an assignment, the last known state and who is online.

Every strategy walks the assignment in order, so that the preferred replica wins whenever it may. A new state always
costs one leader epoch. None means that no replica may lead.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from enum import Enum
from typing import Final

from klamm.frozen import dataclass
from klamm.model import INITIAL_LEADER_EPOCH, LeaderAndIsr, LeaderRecoveryState, ReplicaAssignment

INITIAL: Final = "initial"
"""What the control log calls the first choice of a leader, which follows no strategy."""


class ElectionStrategy(Enum):
    OFFLINE = "offline"
    OFFLINE_UNCLEAN = "offline, unclean allowed"
    REASSIGN = "reassign"
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled shutdown"


@dataclass(frozen=True, slots=True)
class Election:
    """The outcome: the state to write, who is told by LeaderAndIsr, and whether records may have been lost."""

    leader_and_isr: LeaderAndIsr
    recipients: tuple[int, ...]
    unclean: bool = False


def initial_leader_and_isr(replicas: tuple[int, ...], online: Container[int]) -> LeaderAndIsr | None:
    """The first state of a partition: all replicas that are online are in sync, the first of them leads."""
    isr = tuple(r for r in replicas if r in online)
    return LeaderAndIsr(isr[0], INITIAL_LEADER_EPOCH, isr) if isr else None


def elect_offline(
    assignment: ReplicaAssignment,
    state: LeaderAndIsr,
    online: Container[int],
    *,
    allow_unclean: bool,
    mark_recovering: bool = False,
) -> Election | None:
    """A new leader for a partition that lost its own: from the ISR, or any online replica if unclean.

    One that is only being added leads when there is no other: it may have copied nothing yet, and where its leadership
    completes the move the others' logs are deleted.
    """
    recipients = tuple([r for r in assignment.replicas if r in online])
    for leader in recipients:
        if leader in state.isr:
            isr = tuple([r for r in state.isr if r in online])
            return Election(state.with_leader(leader, isr), recipients)
    if not (allow_unclean and recipients):
        return None
    unclean = next((r for r in recipients if r not in assignment.adding_replicas), recipients[0])
    elected = state.with_leader(unclean, (unclean,))
    if mark_recovering:
        elected = replace(elected, leader_recovery_state=LeaderRecoveryState.RECOVERING)
    return Election(elected, recipients, unclean=True)


def elect_for_reassignment(
    assignment: ReplicaAssignment, state: LeaderAndIsr, online: Container[int]
) -> Election | None:
    target = assignment.target_replicas
    leader = next((r for r in target if r in online and r in state.isr), None)
    return None if leader is None else Election(state.with_leader(leader, state.isr), target)


def elect_preferred(assignment: ReplicaAssignment, state: LeaderAndIsr, online: Container[int]) -> Election | None:
    preferred = assignment.replicas[0]
    if preferred not in online or preferred not in state.isr:
        return None
    return Election(state.with_leader(preferred, state.isr), assignment.replicas)


def elect_for_controlled_shutdown(
    assignment: ReplicaAssignment,
    state: LeaderAndIsr,
    online_or_shutting_down: Container[int],
    shutting_down: Container[int],
) -> Election | None:
    """Leadership leaves the brokers that are shutting down, and they leave the ISR; they are told like the others."""
    recipients = tuple(r for r in assignment.replicas if r in online_or_shutting_down)
    leader = next((r for r in recipients if r in state.isr and r not in shutting_down), None)
    if leader is None:
        return None
    isr = tuple(r for r in state.isr if r not in shutting_down)
    return Election(state.with_leader(leader, isr), recipients)


def remove_from_isr(state: LeaderAndIsr, replica: int) -> LeaderAndIsr | None:
    """The state without `replica`: the last member stays, so that the ISR is never empty. None: nothing to change."""
    if replica not in state.isr:
        return None
    leader = -1 if state.leader == replica else state.leader
    isr = state.isr if state.isr == (replica,) else tuple(r for r in state.isr if r != replica)
    return state.with_leader(leader, isr)
