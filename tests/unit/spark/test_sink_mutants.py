"""The rules of an exactly-once sink (decision 0033), one mutant each: a test of `test_sink_state` must fail with it.

The simulator does not run Spark. These rules are pure functions, so their own tests take its place.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.sim.mutant import Mutant
from klamm.sim.patching import patched
from tests.unit.spark import test_sink_state as rules

Check = Callable[[], None]
MODULE = "klamm.spark.sink.sink_state"
MUTANTS: dict[str, tuple[str, str, Check]] = {
    "a_claim_keeps_the_generation": (
        "    return replace(state, generation=state.generation + 1)\n",
        "    return state\n",
        rules.test_a_driver_that_lost_its_claim_fails_loudly,
    ),
    "a_zombie_decides": (
        "    if state is None or generation != batch.generation:\n",
        "    if False:\n",
        rules.test_a_driver_that_lost_its_claim_fails_loudly,
    ),
    "runs_share_transactional_ids": (
        '    return f"{sink}.{generation}.{run}.{partition}.{attempt}"\n',
        '    return f"{sink}.{generation}.0.{partition}.{attempt}"\n',
        rules.test_ids_name_the_sink_the_generation_the_run_the_task_and_its_attempt,
    ),
    "ended_transactions_are_decided": (
        "            and found.state == ONGOING\n",
        "",
        rules.test_a_batch_is_not_decided_if_a_transaction_has_ended,
    ),
    "transactions_of_another_epoch_are_decided": (
        "(found.producer_id, found.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)",
        "found.producer_id == transaction.producer_id",
        rules.test_a_batch_is_not_decided_if_a_transaction_has_ended,
    ),
    "a_torn_batch_is_complete": (
        "    if all(result is Ended.DONE for result in results):\n",
        "    if any(result is Ended.DONE for result in results):\n",
        rules.test_a_decided_batch_is_completed_cancelled_or_torn,
    ),
    "a_batch_that_timed_out_counts": (
        "        return replace(state, batch=state.before, transactions=(), is_complete=True, offsets=None)\n",
        "        return replace(state, transactions=(), is_complete=True)\n",
        rules.test_a_decided_batch_is_completed_cancelled_or_torn,
    ),
    "a_repeated_batch_is_written_again": (
        "    if batch.batch == before:\n",
        "    if False:\n",
        rules.test_a_batch_is_decided_once_and_its_repetition_is_recognised,
    ),
    "an_older_checkpoint_continues": (
        "    if batch.batch < before:\n",
        "    if False:\n",
        rules.test_a_checkpoint_that_is_older_than_the_topic_is_refused,
    ),
    "an_older_checkpoint_starts": (
        "    if state is not None and state.query == query and state.batch > newest:\n",
        "    if False:\n",
        rules.test_a_checkpoint_that_lacks_a_batch_of_the_topic_is_refused_before_the_start,
    ),
    "other_offsets_are_the_same_batch": (
        "not state.offsets.is_same(batch.offsets)",
        "False",
        rules.test_a_checkpoint_that_is_older_than_the_topic_is_refused,
    ),
    "a_new_checkpoint_continues_the_former_one": (
        "    before = state.batch if state.query == batch.query else NO_BATCH\n",
        "    before = state.batch\n",
        rules.test_a_new_checkpoint_counts_its_batches_from_zero,
    ),
    "an_abort_undoes_a_decision": (
        "    return [transaction for transaction in transactions if transaction not in kept]\n",
        "    return list(transactions)\n",
        rules.test_an_abort_leaves_the_transactions_of_a_decision,
    ),
    "a_sweep_undoes_a_decision": (
        "int(match[1]) <= generation and each not in kept",
        "int(match[1]) <= generation",
        rules.test_only_ids_of_this_generation_and_earlier_ones_are_swept,
    ),
    "a_zombie_sweeps_its_successor": (
        "int(match[1]) <= generation and each not in kept",
        "each not in kept",
        rules.test_only_ids_of_this_generation_and_earlier_ones_are_swept,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    old, new, check = MUTANTS[name]
    check()
    with patched(Mutant(MODULE, old, new)), pytest.raises((Exception, pytest.fail.Exception)):
        check()
