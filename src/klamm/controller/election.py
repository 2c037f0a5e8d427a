"""Leader selection: pure functions of an assignment, the last known state and the online replicas.

Every strategy walks the assignment in order, so that the preferred replica wins whenever it may. A new state always
costs one leader epoch. None means that no replica may lead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from klamm.controller.suspects import NOTHING_TO_COMPARE, LogEnd
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import INITIAL_LEADER_EPOCH, NO_LEADER, LeaderAndIsr, LeaderRecoveryState, ReplicaAssignment

INITIAL: Final = "initial"
"""The control log's name for the first choice of a leader, which follows no strategy."""


class ElectionStrategy(Enum):
    OFFLINE = "offline"
    OFFLINE_UNCLEAN = "offline, unclean allowed"
    LONGEST_LOG = "longest log"
    REASSIGN = "reassign"
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled shutdown"


@lazy_dataclass(frozen=True, slots=True)
class Election:
    """The outcome: the state to write, the recipients of LeaderAndIsr, and whether records may have been lost."""

    leader_and_isr: LeaderAndIsr
    recipients: tuple[int, ...]
    unclean: bool = False


def initial_leader_and_isr(replicas: tuple[int, ...], online: Container[int]) -> LeaderAndIsr | None:
    """Return the first state of a partition: all online replicas are in sync, and the first one leads."""
    isr = tuple(r for r in replicas if r in online)
    return LeaderAndIsr(isr[0], INITIAL_LEADER_EPOCH, isr) if isr else None


def elect_offline(
    assignment: ReplicaAssignment,
    state: LeaderAndIsr,
    online: Container[int],
    *,
    allow_unclean: bool,
    mark_recovering: bool = False,
    suspects: Collection[int] = (),
) -> Election | None:
    """Elect a leader for a partition without one: from the ISR, or any online replica if unclean.

    `suspects` may have lost their tail: they do not lead, and leave the ISR when another replica leads. If the ISR
    consists of suspects only, no replica leads: see `elect_longest_log`.

    An added replica leads only if there is no other: it may have copied nothing yet, and if its leadership completes
    the move, the other logs are deleted.
    """
    recipients = tuple([r for r in assignment.replicas if r in online])
    for leader in recipients:
        if leader in state.isr and leader not in suspects:
            isr = tuple([r for r in state.isr if r in online and r not in suspects])
            return Election(state.with_leader(leader, isr), recipients)
    is_held = any(r in suspects for r in recipients if r in state.isr)
    if is_held or not (allow_unclean and recipients):
        return None
    unclean = next((r for r in recipients if r not in assignment.adding_replicas), recipients[0])
    elected = state.with_leader(unclean, (unclean,))
    if mark_recovering:
        elected = replace(elected, leader_recovery_state=LeaderRecoveryState.RECOVERING)
    return Election(elected, recipients, unclean=True)


def elect_longest_log(
    assignment: ReplicaAssignment,
    state: LeaderAndIsr,
    online: Container[int],
    log_ends: Mapping[int, LogEnd | None],
) -> Election | None:
    """All online ISR members may have lost their tail: elect the longest log of the newest epoch, alone in the ISR.

    A replica outside the ISR leads only if its log is longer than those of all members that are online: then it has
    everything that they still have. If no member has answered yet, Kafka's rule applies: the first online one leads. A
    log end of None means an unusable log. During recovery from an unclean election, other replicas may have discarded
    records of newer epochs and are not compared.
    """
    recipients = tuple([r for r in assignment.replicas if r in online])
    members = [r for r in recipients if r in state.isr and log_ends.get(r, NOTHING_TO_COMPARE) is not None]
    if not members:
        return None
    compared = members if state.leader_recovery_state is LeaderRecoveryState.RECOVERING else recipients
    known = {r: end for r in compared if (end := log_ends.get(r)) is not None}
    if not any(r in known for r in members):
        return Election(state.with_leader(members[0], (members[0],)), recipients)
    longest = max(known.values())
    best = [r for r in recipients if known.get(r) == longest]
    leader = next((r for r in best if r in state.isr), best[0])
    return Election(state.with_leader(leader, (leader,)), recipients, unclean=leader not in state.isr)


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
    """Take leadership and ISR membership from brokers that shut down; they receive LeaderAndIsr like the others."""
    recipients = tuple(r for r in assignment.replicas if r in online_or_shutting_down)
    leader = next((r for r in recipients if r in state.isr and r not in shutting_down), None)
    if leader is None:
        return None
    isr = tuple(r for r in state.isr if r not in shutting_down)
    return Election(state.with_leader(leader, isr), recipients)


def remove_from_isr(
    state: LeaderAndIsr,
    leaving: Container[int],
    can_lead: Callable[[int], bool],
    *,
    outside: Collection[int] = (),
    is_deleted: bool = False,
) -> LeaderAndIsr | None:
    """Return the state without the `leaving` replicas; None if nothing changes.

    If no remaining replica can lead, nothing is committed until one can: then all members remain, because each of them
    has everything. A topic that is being deleted keeps its last member, as in Kafka. Replicas `outside` the assignment
    are always removed, unless no other replica is left.
    """
    assigned = tuple([r for r in state.isr if r not in outside]) or state.isr[-1:] if outside else state.isr
    staying = tuple([r for r in assigned if r not in leaving])
    last = (staying or assigned[-1:]) if is_deleted else assigned
    isr = staying if any(map(can_lead, staying)) else last
    leader = NO_LEADER if state.leader in leaving or state.leader not in isr else state.leader
    return None if (leader, isr) == (state.leader, state.isr) else state.with_leader(leader, isr)
