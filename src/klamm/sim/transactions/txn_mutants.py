"""Bugs for level 2 with transactions, one per rule: each must be caught by the checkers of transactions.

Those of logs, readers and groups are in `txn_log_mutants`, those that need a certain course in `aimed_mutants`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from klamm.sim.mutant import Mutant
from klamm.sim.transactions.aimed_mutants import AIMED_MUTANTS
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
        first=1,
        anomalies=("lost write", "torn transaction"),
    ),
    "next_transaction_begins_before_the_markers": Mutant(
        _T + "transaction_rules",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    value = txn.value\n    error = check_producer(txn, producer)\n",
        "    if txn.pending is not None:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    value = txn.value\n    error = check_producer(txn, producer)\n",
        also=(("    is_open = value.state is TransactionState.ONGOING\n", "    is_open = value.state is not None\n"),),
        first=8,
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
    "open_transactional_ids_expire": Mutant(
        _T + "transaction_metadata",
        "        return self in _IDLE\n",
        "        return True\n",
        first=5,
        also=(("    TransactionState.DEAD: _IDLE,\n", "    TransactionState.DEAD: frozenset(TransactionState),\n"),),
    ),
    "two_processes_share_an_epoch": Mutant(
        _T + "transaction_rules",
        "    bumped = value.producer_epoch + 1\n",
        "    bumped = max(value.producer_epoch, 0)\n",
        first=4,
        anomalies=("dirty write (G0)",),
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
                    "                answer(txn, InitProducerIdResult(self._from_memory(partition, decision)))\n"
                ),
                (
                    "            elif decision is ErrorCode.NONE:\n"
                    "                result.complete(InitProducerIdResult(ErrorCode.NONE, "
                    "txn.value.producer_id, txn.value.producer_epoch))\n"
                    "            elif isinstance(decision, ErrorCode):\n"
                    "                answer(txn, InitProducerIdResult(self._from_memory(partition, decision)))\n"
                ),
            ),
        ),
    ),
    "a_growing_transaction_forgets_partitions": Mutant(
        _T + "transaction_rules",
        "**(value.partitions if is_open else NO_PARTITIONS)",
        "**NO_PARTITIONS",
    ),
    # --- readers
    "open_transactions_are_readable": Mutant(
        _R + "partition_reader",
        "    return log.high_watermark if isolation is _HIGH_WATERMARK else log.last_stable_offset\n",
        "    return log.high_watermark\n",
    ),
    "aborted_transactions_are_not_listed": Mutant(
        _R + "partition_reader", "    wants_aborted = isolation is _TXN_COMMITTED\n", "    wants_aborted = False\n"
    ),
    # --- groups
    "pending_offsets_count_at_once": Mutant(
        _C + "transactional_offsets",
        "        if marker is None:\n            self.add(append.producer_id, tp, entry)\n",
        "        if marker is None:\n            commit(tp, entry)\n",
        reports="copies and offsets disagree",
    ),
    "aborted_offsets_are_committed": Mutant(
        _C + "transactional_offsets",
        "self._take(producer_id, tp, entry) and marker.commit:",
        "self._take(producer_id, tp, entry):",
    ),
    # --- late requests (decision 0031): random faults meet this rule too
    "late_requests_act_in_the_next_transaction": replace(
        AIMED_MUTANTS["late_requests_reach_the_coordinator"],
        aim="",
        seeds=60,
        first=680,
        anomalies=("aborted read (G1a)", "cyclic information flow (G1c)"),
    ),
    **LOG_MUTANTS,
    **AIMED_MUTANTS,
}
