"""Bugs that aimed scenarios catch, one per rule of transactions. Each names its scenario.

Those of late requests and of the verification by leaders are in `aimed_late_mutants`, those of groups, logs, versions
and compaction in `aimed_log_mutants`, those of single requests in `aimed_request_mutants`, those of the limits of a
cluster in `aimed_limit_mutants`, those of paused coordinators in `aimed_pause_mutants`, those of races in
`aimed_race_mutants`.
"""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant, aimed
from klamm.sim.transactions.aimed_late_mutants import OF_LATE_REQUESTS
from klamm.sim.transactions.aimed_limit_mutants import OF_LIMITS
from klamm.sim.transactions.aimed_log_mutants import OF_COMPACTION, OF_GROUPS_AND_LOGS
from klamm.sim.transactions.aimed_pause_mutants import OF_PAUSES
from klamm.sim.transactions.aimed_race_mutants import OF_RACES
from klamm.sim.transactions.aimed_request_mutants import OF_REQUESTS, OF_WAITS

_A: Final = "klamm.apis."
_C: Final = "klamm.coordinator."
_T: Final = "klamm.coordinator.transaction."
_R: Final = "klamm.replica."
_L: Final = "klamm.log."


_OF_ENDS: Final = {
    "a_repeated_end_is_refused": aimed(
        "repeated end", _T + "end_rules", "    if txn.state is request.completed:\n", "    if False:\n"
    ),
    "an_abort_after_a_lost_commit_succeeds": aimed(
        "repeated end",
        _T + "end_rules",
        "    return txn.state is TransactionState.EMPTY or (",
        "    return True or (",
    ),
    "an_abort_after_a_known_commit_is_refused": aimed(
        "repeated end",
        _T + "end_rules",
        "(request.origin is not None and request.origin == txn.answered_on)",
        "False",
    ),
    "an_abort_with_nothing_open_is_refused": aimed(
        "repeated end",
        _T + "end_rules",
        "    if not request.commit and _knows_outcome(txn, request):\n",
        "    if False:\n",
    ),
    "a_repeated_end_with_a_bump_is_fenced": aimed(
        "repeated end with a bump",
        _T + "end_rules",
        "        return producer.producer_epoch + 1 == value.producer_epoch\n",
        "        return False\n",
    ),
    "a_repeated_end_has_any_outcome": aimed(
        "repeated end with a bump",
        _T + "end_rules",
        "        return ErrorCode.NONE if txn.state is request.completed else ErrorCode.INVALID_TXN_STATE\n",
        "        return ErrorCode.NONE\n",
    ),
    "kafka_18401_an_empty_transaction_is_committed": aimed(
        "repeated end with a bump",
        _T + "end_rules",
        "    if is_empty and request.commit:\n        return ErrorCode.INVALID_TXN_STATE\n",
        "    if is_empty and request.commit:\n        return ErrorCode.NONE\n",
    ),
    "kafka_18401_an_empty_abort_keeps_the_epoch": aimed(
        "repeated end with a bump",
        _T + "end_rules",
        "    if is_empty and request.commit:\n",
        "    if is_empty and not request.commit:\n        return ErrorCode.NONE\n    if is_empty and request.commit:\n",
    ),
    "partitions_are_not_added_by_leaders": aimed(
        "repeated end with a bump",
        _R + "transaction_verification",
        "verify_only=not self._append.version.bumps_epoch,",
        "verify_only=True,",
    ),
    "kafka_18660_the_next_epoch_is_fenced_while_completing": aimed(
        "next transaction while completing",
        _T + "end_rules",
        "is_next = producer == value.identity or producer == (value.next_producer_id, 0)",
        "is_next = producer == (value.next_producer_id, 0)",
    ),
    "kafka_18660_the_next_id_is_fenced_while_completing": aimed(
        "next transaction while completing",
        _T + "end_rules",
        "is_next = producer == value.identity or producer == (value.next_producer_id, 0)",
        "is_next = producer == value.identity",
    ),
    "kafka_18660_the_next_id_is_unknown_while_completing": aimed(
        "next transaction while completing",
        _T + "transaction_rules",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    value = txn.value\n    error = check_producer(txn, producer)\n",
        "    value = txn.value\n    error = check_producer(txn, producer)\n    if error is ErrorCode.NONE and "
        "(txn.pending is not None or txn.state.is_prepared):\n        error = ErrorCode.CONCURRENT_TRANSACTIONS\n",
    ),
    "a_completion_keeps_the_used_up_id": aimed(
        "next transaction while completing",
        _T + "transaction_rules",
        "            producer_id=value.producer_id if next_id == NO_PRODUCER_ID else next_id,\n",
        "            producer_id=value.producer_id,\n",
    ),
    "a_repeated_recovery_is_fenced": aimed(
        "recovery",
        _T + "transaction_rules",
        "    if expected.producer_epoch == value.last_producer_epoch and value.producer_epoch < txn.max_epoch:\n",
        "    if False:\n",
    ),
    "a_deposed_producer_recovers": aimed(
        "recovery",
        _T + "transaction_rules",
        "    return ErrorCode.PRODUCER_FENCED\n\n\ndef fence",
        "    return bumped, value.producer_epoch\n\n\ndef fence",
    ),
    "a_producer_of_another_id_recovers": aimed(
        "recovery",
        _T + "transaction_rules",
        "    if expected is not None and not _may_continue(txn, expected):\n",
        "    if False:\n",
    ),
    "a_late_recovery_aborts_a_transaction": aimed(
        "late recovery",
        _T + "transaction_rules",
        "    return value.state is TransactionState.ONGOING or not value.client_version.bumps_epoch\n",
        "    return value.state is not TransactionState.ONGOING and not value.client_version.bumps_epoch\n",
    ),
    "a_late_recovery_hides_a_commit": aimed(
        "late recovery",
        _T + "transaction_rules",
        "    return value.state is TransactionState.ONGOING or not value.client_version.bumps_epoch\n",
        "    return value.state is TransactionState.ONGOING\n",
    ),
    "timeouts_are_not_limited": aimed(
        "recovery",
        _T + "transaction_coordinator",
        "        if not 0 < timeout_ms <= self.config.max_timeout_ms:\n",
        "        if not 0 < timeout_ms:\n",
    ),
    "kafka_19367_a_take_over_bumps_twice": aimed(
        "take-over",
        _T + "transaction_rules",
        "            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),\n"
        "            last_producer_epoch=value.producer_epoch if bumps else NO_PRODUCER_EPOCH,\n",
        "            producer_epoch=min(value.producer_epoch + (2 if bumps else 1), txn.max_epoch),\n"
        "            last_producer_epoch=value.producer_epoch if bumps else NO_PRODUCER_EPOCH,\n",
    ),
    "kafka_20090_a_stored_last_epoch_overflows": aimed(
        "stored last epoch",
        _T + "transaction_rules",
        "            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),\n"
        "            last_producer_epoch=value.producer_epoch if bumps else NO_PRODUCER_EPOCH,\n",
        "            producer_epoch=value.producer_epoch + 1,\n"
        "            last_producer_epoch=value.producer_epoch if bumps else NO_PRODUCER_EPOCH,\n",
    ),
    "kafka_20090_a_marker_of_the_last_epoch_is_refused": aimed(
        "stored last epoch",
        _T + "transaction_rules",
        "client_version=server_version if value.producer_epoch < txn.max_epoch else TransactionVersion.TV_0,",
        "client_version=server_version,",
    ),
    "idle_transactional_ids_do_not_expire": aimed(
        "idle transactional id",
        _T + "transaction_rules",
        "    return txn.pending is None and value.state.may_expire and",
        "    return False and txn.pending is None and value.state.may_expire and",
    ),
    "an_expired_producer_does_not_recover": aimed(
        "idle transactional id",
        _T + "transaction_rules",
        "        value.producer_epoch == NO_PRODUCER_EPOCH\n        or expected",
        "        False\n        or expected",
    ),
    "producers_of_open_transactions_expire": aimed(
        "silent producer",
        _L + "producer_state",
        "        return entry.current_txn_first_offset is None and idle_ms >=",
        "        return idle_ms >=",
    ),
    "silent_producers_do_not_expire": aimed(
        "silent producer",
        _L + "producer_state",
        "        return entry.current_txn_first_offset is None and idle_ms >=",
        "        return False and idle_ms >=",
    ),
}
_OF_MORE_ENDS: Final = {
    "end_while_completing_is_an_empty_success": aimed(
        "batch of a decided transaction",
        _T + "end_rules",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n",
        "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.NONE\n",
    ),
    "timeouts_do_not_abort": aimed(
        "timeout",
        _T + "transaction_coordinator",
        "        if self._next_abort_ms <= now_ms:\n",
        "        if False:\n",
    ),
    "timeouts_keep_the_epoch": aimed(
        "timeout",
        _T + "transaction_rules",
        (
            "            state=TransactionState.PREPARE_ABORT,\n"
            "            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),\n"
        ),
        ("            state=TransactionState.PREPARE_ABORT,\n            producer_epoch=value.producer_epoch,\n"),
    ),
    "a_successor_does_not_complete": aimed(
        "marker of a deposed coordinator",
        _T + "transaction_completions",
        "            if txn.state.is_prepared and txn.pending is None:\n",
        "            if False:\n",
    ),
    "the_epoch_is_not_raised_at_an_end": aimed(
        "repeated end with a bump",
        _T + "end_rules",
        "            producer_epoch=min(value.producer_epoch + 1, txn.max_epoch),\n",
        "            producer_epoch=value.producer_epoch,\n",
    ),
    "an_end_returns_the_epoch_before": aimed(
        "repeated end with a bump",
        _T + "transaction_coordinator",
        "EndTxnResult(ErrorCode.NONE, *end_rules.next_identity(value))",
        "EndTxnResult(ErrorCode.NONE, value.producer_id, value.last_producer_epoch)",
    ),
    "the_last_epoch_is_given_to_producers": aimed(
        "next transaction while completing",
        _T + "transaction_metadata",
        "return producer_epoch >= self.max_epoch - 1",
        "return producer_epoch >= self.max_epoch",
    ),
    "an_end_returns_the_used_up_id": aimed(
        "next transaction while completing",
        _T + "end_rules",
        "    if value.next_producer_id != NO_PRODUCER_ID:\n",
        "    if False:\n",
    ),
    "a_commit_that_uses_up_the_epochs_aborts": Mutant(
        _T + "end_rules",
        ("            state=request.prepared,\n            producer_epoch=min("),
        (
            "            state=TransactionState.PREPARE_ABORT if is_exhausted else "
            "request.prepared,\n"
            "            producer_epoch=min("
        ),
        reports="lost write",
        seeds=1,
        aim="next transaction while completing",
    ),
}
_OF_MARKERS: Final = {
    "unanswered_markers_are_not_repeated": aimed(
        "lost answers of markers",
        _T + "transaction_markers",
        "        for completion, partitions in batch.entries.values():\n            for tp in partitions:\n"
        "                self._retries",
        "        for completion, partitions in ():\n            for tp in partitions:\n                self._retries",
    ),
    "kafka_19999_a_repeated_marker_is_refused": aimed(
        "lost answers of markers with a bump",
        _L + "producer_state",
        "    if entry.current_txn_first_offset is None:\n        return None\n    return Refusal(\n"
        '        ErrorCode.INVALID_PRODUCER_EPOCH,\n        f"a marker',
        '    return Refusal(\n        ErrorCode.INVALID_PRODUCER_EPOCH,\n        f"a marker',
    ),
    "refused_markers_are_not_repeated": aimed(
        "marker to a former leader",
        _T + "transaction_markers",
        "                    self._on_error(completion, tp, error, batch.broker_id)\n",
        "                    pass\n",
    ),
    "markers_wait_for_deleted_partitions": aimed(
        "marker of a deleted partition",
        _T + "transaction_markers",
        "            if where is Destination.DELETED:\n",
        "            if False:\n",
    ),
    "an_unstored_completion_is_not_repeated": aimed(
        "unstored completion",
        _T + "transaction_completions",
        "            self._retries.append((at_ms, completion))\n",
        "            pass\n",
    ),
    "kafka_16352_markers_of_an_earlier_term_count": aimed(
        "markers of an earlier term",
        _T + "transaction_markers",
        '        """Have all markers of a transaction written."""\n',
        "        name = completion.txn.transactional_id\n"
        "        if any(name == it.txn.transactional_id for it in (*self._retries, *self._unknown)):\n"
        "            return\n",
    ),
    "markers_of_deposed_coordinators_are_written": aimed(
        "marker of a deposed coordinator",
        _L + "producer_state",
        "    if marker is None or marker.coordinator_epoch >= entry.coordinator_epoch:\n",
        "    if True:\n",
    ),
    "late_markers_are_written": aimed(
        "late marker",
        _R + "transactional_producers",
        "        if term == known and connection < youngest:\n",
        "        if False:\n",
    ),
    "late_markers_are_written_after_a_return": aimed(
        "late marker after a return",
        _R + "partition",
        "        if not 0 < connection <= self.led_after or log is None or not log.is_open:\n",
        "        if True:\n",
    ),
    "kafka_19446_late_markers_of_the_next_epoch_are_written": aimed(
        "late marker with a bump",
        _L + "producer_state",
        "    if entry is None or not version.bumps_epoch or batch.producer_epoch != entry.producer_epoch:\n",
        "    if True:\n",
    ),
    "kip_1228_markers_have_no_version": aimed(
        "late marker of a forgotten producer",
        _T + "marker_sender",
        "transaction_version=completion.value.client_version,",
        "transaction_version=0,",
    ),
    "kip_1228_the_version_of_a_marker_is_ignored": aimed(
        "late marker of a forgotten producer",
        _A + "write_txn_markers",
        "    return TransactionVersion(min(max(marker.transaction_version, TransactionVersion.TV_0), newest))\n",
        "    return min(TransactionVersion.TV_0, newest)\n",
    ),
    "kip_1228_the_log_ignores_the_version_of_a_marker": aimed(
        "late marker with a bump after a return",
        _L + "producer_state",
        "            return refusal or _check_marker_epoch(batch, entry, check.version)\n",
        "            return refusal\n",
    ),
    "decisions_are_answered_before_they_are_replicated": aimed(
        "lonely decision",
        _C + "broker_adapters",
        "self._append_records(-1, True, AppendOrigin.COORDINATOR, {tp: batch}, timeout_ms)",
        "self._append_records(1, True, AppendOrigin.COORDINATOR, {tp: batch}, timeout_ms)",
    ),
}
AIMED_MUTANTS: Final[dict[str, Mutant]] = {
    **_OF_ENDS,
    **_OF_MORE_ENDS,
    **_OF_MARKERS,
    **OF_LATE_REQUESTS,
    **OF_GROUPS_AND_LOGS,
    **OF_COMPACTION,
    **OF_REQUESTS,
    **OF_LIMITS,
    **OF_PAUSES,
    **OF_RACES,
    **OF_WAITS,
}
