"""Bugs in races that aimed scenarios catch. Each names its scenario."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant, aimed

_T: Final = "klamm.coordinator.transaction."
_QUESTIONS: Final = "klamm.server.add_partitions_to_txn_manager"
_SEVERAL_AT_ONCE: Final = (
    Mutant(
        _T + "transaction_metadata",
        '        assert self.pending is None, f"{self.transactional_id} is in transition to {self.pending}"\n',
        "",
    ),
    Mutant(
        _T + "transaction_state_manager", '            assert txn.pending is value, "one transition at a time"\n', ""
    ),
)
"""Otherwise an assertion would stop the mutants, and not a rule."""

OF_RACES: Final = {
    "a_timeout_interrupts_an_end": aimed(
        "timeout during an end",
        _T + "transaction_rules",
        "        and txn.pending is None\n        and value.start_timestamp_ms",
        "        and value.start_timestamp_ms",
        ("    assert value.state is TransactionState.ONGOING and txn.pending is None\n", ""),
        beside=_SEVERAL_AT_ONCE,
    ),
    "an_end_interrupts_a_timeout": aimed(
        "end during a timeout",
        _T + "end_rules",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n",
        "    if txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n",
        beside=_SEVERAL_AT_ONCE,
    ),
    "the_next_id_is_not_stored": aimed(
        "failover while completing",
        _T + "transaction_records",
        "    if value.next_producer_id != NO_PRODUCER_ID:\n",
        "    if False:\n",
    ),
    "the_version_of_the_client_is_not_stored": aimed(
        "failover while completing", _T + "transaction_records", "    if value.client_version:\n", "    if False:\n"
    ),
    "the_previous_id_is_not_stored": aimed(
        "failover while completing",
        _T + "transaction_records",
        "    if value.previous_producer_id not in (NO_PRODUCER_ID, value.producer_id):\n",
        "    if False:\n",
    ),
    "a_successor_acts_before_its_followers_know": aimed(
        "decision that a follower lacks",
        _T + "transaction_state_manager",
        "        self._finish_when_replicated(partition, self._finish(partition, on_loaded, started))\n",
        "        self._scheduler.spawn(self._finish(partition, on_loaded, started))\n",
    ),
    "a_follower_below_the_minimum_wakes_nobody": aimed(
        "successor with one follower",
        "klamm.replica.fetch_path",
        "    if replicas.produce_purgatory.size and len(partition.isr) < partition.effective_min_isr:\n",
        "    if False:\n",
    ),
    "a_late_question_refuses_a_batch": aimed(
        "marker during a question",
        "klamm.replica.transaction_verification",
        "(is_concurrent or self._is_outdated(errors))",
        "is_concurrent",
    ),
    "a_question_replaces_the_one_that_waits": aimed(
        "joined questions", _QUESTIONS, "        if question is None:\n", "        if True:\n"
    ),
    "leaders_wait_for_lost_questions": aimed(
        "lost question",
        _QUESTIONS,
        "asyncio.timeout(TRANSACTION_VERIFICATION.request_ms / 1000)",
        "asyncio.timeout(None)",
    ),
}
