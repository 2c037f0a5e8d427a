"""Bugs for level 2 with transactions, one per rule: each must be caught by the checkers of transactions."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant

_T: Final = "klamm.coordinator.transaction."
_C: Final = "klamm.coordinator."
_R: Final = "klamm.replica."
TRANSACTION_MUTANTS: Final[dict[str, Mutant]] = {
    # --- the coordinator's rules
    "producers_are_not_fenced": Mutant(
        _T + "transaction_rules",
        "    if producer.producer_epoch != txn.value.producer_epoch:\n",
        "    if False:\n",
    ),
    "initialisation_does_not_raise_the_epoch": Mutant(
        _T + "transaction_rules",
        "    bumped = value.producer_epoch + 1\n",
        "    bumped = max(value.producer_epoch, 0)\n",
        first=2,
    ),
    "end_while_completing_is_an_empty_success": Mutant(
        _T + "end_rules",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.NONE\n",
        first=4,
    ),
    "next_transaction_begins_before_the_markers": Mutant(
        _T + "transaction_rules",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    value = txn.value\n    error = check_producer(txn, producer)\n",
        "    if txn.pending is not None:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    value = txn.value\n    error = check_producer(txn, producer)\n",
        also=(("    is_open = value.state is TransactionState.ONGOING\n", "    is_open = value.state is not None\n"),),
    ),
    # --- protection of the old protocol
    "late_requests_reach_the_coordinator": Mutant(
        _T + "connection_guard",
        "    if origin < oldest:\n",
        "    if False:\n",
        first=9,
    ),
    # --- leaders
    "late_batches_join_after_an_abort": Mutant(
        _R + "transaction_verification",
        "(not renews_epoch and _is_late(",
        "(origin is AppendOrigin.COORDINATOR and _is_late(",
        first=3,
    ),
    "late_markers_are_written": Mutant(
        _R + "transactional_producers",
        "        if term == known and connection < youngest:\n",
        "        if False:\n",
        first=24,
    ),
    # --- readers
    "open_transactions_are_readable": Mutant(
        _R + "partition_reader",
        "    return log.high_watermark if isolation is _HIGH_WATERMARK else log.last_stable_offset\n",
        "    return log.high_watermark\n",
    ),
    "aborted_transactions_are_not_told": Mutant(
        _R + "partition_reader", "    wants_aborted = isolation is _TXN_COMMITTED\n", "    wants_aborted = False\n"
    ),
    # --- groups
    "pending_offsets_count_at_once": Mutant(
        _C + "transactional_offsets",
        "        if marker is None:\n            self.add(append.producer_id, tp, entry)\n",
        "        if marker is None:\n            commit(tp, entry)\n",
    ),
    "aborted_offsets_are_committed": Mutant(
        _C + "transactional_offsets",
        "self._take(producer_id, tp, entry) and marker.commit:",
        "self._take(producer_id, tp, entry):",
        first=2,
    ),
}
