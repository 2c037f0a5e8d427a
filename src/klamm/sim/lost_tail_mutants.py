"""Mutants of the rules for replicas that may have lost their tail."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant

_C: Final = "klamm.controller."
LOST_TAIL_MUTANTS: Final[dict[str, Mutant]] = {
    "suspect_is_elected": Mutant(
        _C + "election",
        "if leader in state.isr and leader not in suspects:",
        "if leader in state.isr:",
        also=(("if r in online and r not in suspects]", "if r in online]"),),
        first=2,
    ),
    "suspect_stays_in_the_isr": Mutant(
        _C + "election", "if r in online and r not in suspects]", "if r in online]", 60, first=234
    ),
    "suspect_is_elected_as_preferred": Mutant(
        _C + "partition_state_machine",
        "return elect_preferred(assignment, state, able)",
        "return elect_preferred(assignment, state, online)",
        300,
        first=19,
    ),
    "shortest_log_is_elected": Mutant(
        _C + "election", "longest = max(known.values())", "longest = min(known.values())"
    ),
    "epochs_of_logs_not_compared": Mutant(
        _C + "election",
        "longest = max(known.values())",
        "longest = max(known.values(), key=lambda end: end.offset)",
        600,
        first=79,
    ),
    "only_members_are_compared": Mutant(
        _C + "election",
        "is LeaderRecoveryState.RECOVERING else recipients",
        "is LeaderRecoveryState.RECOVERING else members",
        300,
        first=3,
    ),
    "missing_members_not_waited_for": Mutant(
        _C + "lost_tails", "if tp not in waits or tp.topic in hurried)", "if True)", 300, first=111
    ),
    "wait_for_missing_members_never_ends": Mutant(
        _C + "lost_tails", "if hold.deadline_s <= now_s)", "if False)", 300, first=169
    ),
    "isr_shrinks_when_nobody_can_lead": Mutant(
        _C + "election",
        "last = (staying or assigned[-1:]) if is_deleted else assigned",
        "last = staying or assigned[-1:]",
        300,
        first=2,
    ),
    "unclean_shutdown_not_reported": Mutant(
        _C + "failover", "unclean_shutdown=config.unclean_shutdown", "unclean_shutdown=False", first=2
    ),
    "unclean_shutdown_overlooked_by_a_new_controller": Mutant(
        _C + "failover", "        if registered.unclean_shutdown:\n", "        if False:\n", 300, first=10
    ),
    "unclean_shutdown_overlooked_at_a_return": Mutant(
        _C + "broker_changes", "        if now[broker].unclean_shutdown:\n", "        if False:\n", 300, first=2
    ),
    "unclean_shutdown_taken_back_too_early": Mutant(
        _C + "lost_tails", "if not suspects.partitions.get(b)]", "if True]", 600
    ),
    "former_members_forgotten_by_a_new_controller": Mutant(
        _C + "failover", "        former_members.adopt(ctx, mzxids, settled_zxid)\n", "", 300, first=51
    ),
    "former_members_not_listed_without_a_leader": Mutant(
        _C + "store",
        "or ctx.deletions.is_queued(tp.topic) else former\n",
        "or ctx.deletions.is_queued(tp.topic) else ()\n",
        300,
        first=165,
    ),
    "leaders_settled_before_they_answer": Mutant(
        _C + "former_members",
        "    if not suspects.unsettled or any(_is_awaited(ctx, tp) for tp in suspects.left):\n",
        "    if not suspects.unsettled:\n",
        300,
        first=137,
    ),
    "log_end_reported_while_leading": Mutant(
        "klamm.sim.broker_model",
        "elif mine is not None and mine.leader_epoch >= epoch:",
        "elif mine is not None:",
        300,
        first=108,
    ),
    "stopped_cleanly_with_a_lost_tail": Mutant(
        "klamm.sim.world",
        "is_clean = not node.was_unclean or node.broker.is_tail_settled",
        "is_clean = True",
        600,
        first=68,
    ),
}
