"""Bugs for level 2 with transactions, one per rule: each must be caught by the checkers of transactions.

Those of logs, readers and groups are in `txn_log_mutants`.
"""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant
from klamm.sim.transactions.txn_log_mutants import LOG_MUTANTS

_T: Final = "klamm.coordinator.transaction."
_C: Final = "klamm.coordinator."
_R: Final = "klamm.replica."
_L: Final = "klamm.log."
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
    "an_initialised_producer_leaves_its_transaction_open": Mutant(
        _T + "transaction_rules",
        ("    if value.state is TransactionState.ONGOING:\n        return fence("),
        ("    if False:\n        return fence("),
        beside=(
            Mutant(
                _T + "transaction_metadata",
                "    TransactionState.EMPTY: _IDLE,\n",
                "    TransactionState.EMPTY: _IDLE | {TransactionState.ONGOING},\n",
            ),
        ),
    ),
    "timeouts_do_not_abort": Mutant(
        _T + "transaction_coordinator",
        "        if self._next_abort_ms <= now_ms:\n",
        "        if False:\n",
        first=5,
    ),
    "timeouts_keep_the_epoch": Mutant(
        _T + "transaction_rules",
        (
            "            state=TransactionState.PREPARE_ABORT,\n"
            "            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),\n"
        ),
        ("            state=TransactionState.PREPARE_ABORT,\n            producer_epoch=value.producer_epoch,\n"),
        first=5,
    ),
    "open_transactional_ids_expire": Mutant(
        _T + "transaction_metadata",
        "        return self in _IDLE\n",
        "        return True\n",
        first=5,
        also=(("    TransactionState.DEAD: _IDLE,\n", "    TransactionState.DEAD: frozenset(TransactionState),\n"),),
    ),
    "a_successor_does_not_complete": Mutant(
        _T + "transaction_completions",
        "            if txn.state.is_prepared and txn.pending is None:\n",
        "            if False:\n",
        first=2,
    ),
    "two_processes_share_an_epoch": Mutant(
        _T + "transaction_rules",
        "    bumped = value.producer_epoch + 1\n",
        "    bumped = max(value.producer_epoch, 0)\n",
        also=(
            (
                ("    if value.state is TransactionState.ONGOING:\n        return fence("),
                (
                    "    if value.state is TransactionState.ONGOING:\n"
                    "        return ErrorCode.NONE\n"
                    "    if False:\n"
                    "        return fence("
                ),
            ),
        ),
        beside=(
            Mutant(
                _L + "producer_state",
                "        return entry.find_duplicate(batch) if entry is not None else None\n",
                "        return None\n",
                also=(
                    (
                        "        if origin is AppendOrigin.CLIENT and (refusal := _check_sequence(",
                        "        if False and (refusal := _check_sequence(",
                    ),
                ),
            ),
            Mutant(
                _T + "transaction_coordinator",
                (
                    "            elif isinstance(decision, ErrorCode):\n"
                    "                result.complete(InitProducerIdResult(decision))\n"
                ),
                (
                    "            elif decision is ErrorCode.NONE:\n"
                    "                result.complete(InitProducerIdResult(ErrorCode.NONE, "
                    "txn.value.producer_id, txn.value.producer_epoch))\n"
                    "            elif isinstance(decision, ErrorCode):\n"
                    "                result.complete(InitProducerIdResult(decision))\n"
                ),
            ),
        ),
    ),
    "the_epoch_is_not_raised_at_an_end": Mutant(
        _T + "end_rules",
        "            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),\n",
        "            producer_epoch=value.producer_epoch,\n",
        first=1,
    ),
    "an_end_returns_the_epoch_before": Mutant(
        _T + "transaction_coordinator",
        "return EndTxnResult(ErrorCode.NONE, *end_rules.next_identity(value))",
        "return EndTxnResult(ErrorCode.NONE, value.producer_id, value.last_producer_epoch)",
        first=1,
    ),
    "the_last_epoch_is_given_to_producers": Mutant(
        _T + "transaction_metadata",
        "return producer_epoch >= self.max_epoch - 1",
        "return producer_epoch >= self.max_epoch",
        first=1,
    ),
    "an_end_returns_the_used_up_id": Mutant(
        _T + "end_rules",
        "    if value.next_producer_id != NO_PRODUCER_ID:\n",
        "    if False:\n",
        first=2,
    ),
    "a_commit_that_uses_up_the_epochs_aborts": Mutant(
        _T + "end_rules",
        ("            state=request.prepared,\n            producer_epoch=min("),
        (
            "            state=TransactionState.PREPARE_ABORT if is_exhausted else "
            "request.prepared,\n"
            "            producer_epoch=min("
        ),
        first=4,
        reports="lost write",
    ),
    "a_growing_transaction_forgets_partitions": Mutant(
        _T + "transaction_rules",
        "**(value.partitions if is_open else NO_PARTITIONS)",
        "**NO_PARTITIONS",
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
        first=48,
    ),
    "late_markers_are_written": Mutant(
        _R + "transactional_producers",
        "        if term == known and connection < youngest:\n",
        "        if False:\n",
        first=54,
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
    **LOG_MUTANTS,
}
