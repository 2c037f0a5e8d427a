"""Bugs in the protection from late requests (decision 0031) and in the verification by leaders (KIP-890) that aimed
scenarios catch. Each names its scenario."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant, aimed

_A: Final = "klamm.apis."
_C: Final = "klamm.coordinator."
_T: Final = "klamm.coordinator.transaction."
_R: Final = "klamm.replica."
_L: Final = "klamm.log."

OF_LATE_REQUESTS: Final = {
    "late_requests_reach_the_coordinator": aimed(
        "late end", _T + "connection_guard", "    if origin < oldest:\n", "    if False:\n"
    ),
    "a_returned_coordinator_trusts_all_connections": aimed(
        "late end after a return",
        _T + "connection_guard",
        "if txn.actor == producer else last_before_election + 1\n",
        "if txn.actor == producer else 0\n",
    ),
    "a_restarted_coordinator_trusts_all_connections": aimed(
        "late end after a restart",
        _T + "transaction_state_manager",
        "TransactionPartition(index, leader_epoch, self._last_connection())",
        "TransactionPartition(index, leader_epoch, 0)",
    ),
    "late_partitions_join_the_next_transaction": aimed(
        "late partitions", _A + "add_partitions_to_txn", "        origin=ctx.channel.order,\n", "        origin=None,\n"
    ),
    "late_groups_join_the_next_transaction": aimed(
        "late groups", _A + "add_offsets_to_txn", "        origin=ctx.channel.order,\n", "        origin=None,\n"
    ),
    "an_initialisation_commits_the_open_transaction": Mutant(
        _T + "transaction_rules",
        "            state=TransactionState.PREPARE_ABORT,\n",
        "            state=TransactionState.PREPARE_COMMIT,\n",
        reports="aborted read (G1a)",
        seeds=1,
        aim="late initialisation",
    ),
    "batches_on_older_connections_are_appended": aimed(
        "older connection",
        _R + "transactional_producers",
        "        if producer_epoch == epoch and connection < youngest:\n",
        "        if producer_epoch == epoch and connection < youngest and origin is AppendOrigin.COORDINATOR:\n",
    ),
    "offsets_on_older_connections_are_appended": aimed(
        "late offsets",
        _R + "transactional_producers",
        "        if producer_epoch == epoch and connection < youngest:\n",
        "        if producer_epoch == epoch and connection < youngest and origin is AppendOrigin.CLIENT:\n",
    ),
    "a_returned_group_coordinator_trusts_all_connections": aimed(
        "late offsets after a return",
        _C + "offsets_log",
        "        is_recent = self.connection is None or self.connection > last_before_election\n",
        "        is_recent = True\n",
    ),
    "late_batches_join_after_an_abort": aimed(
        "late batch",
        _R + "transaction_verification",
        "(not renews_epoch and _is_late(",
        "(origin is AppendOrigin.COORDINATOR and _is_late(",
    ),
    "followers_do_not_remember_aborts": aimed(
        "late batch after a return",
        _L + "appending",
        "            log.write(batch, (batch.view,), batch.size_bytes, batch.last_offset, now_ms)\n",
        "            log.write(batch, (batch.view,), batch.size_bytes, batch.last_offset, now_ms)\n"
        "            if batch.is_control:\n"
        "                log.producers.entries[batch.producer_id].aborted_after = 0\n",
    ),
    "clients_that_renew_their_epoch_connect_again": aimed(
        "batch after an abort",
        _R + "transaction_verification",
        "(not renews_epoch and _is_late(",
        "(_is_late(",
    ),
    "late_offsets_join_after_an_abort": aimed(
        "late offsets after an abort",
        _R + "transaction_verification",
        "(not renews_epoch and _is_late(",
        "(origin is AppendOrigin.CLIENT and not renews_epoch and _is_late(",
    ),
    "late_batches_join_after_a_truncation": aimed(
        "late batch after a truncation",
        _L + "producer_state",
        "max(entry.aborted_after, self.rebuilt_after)",
        "entry.aborted_after",
    ),
    "transactions_are_not_verified": aimed(
        "partition outside of the transaction",
        _R + "transaction_verification",
        "        is_needed = version.bumps_epoch or replicas.transactional_producers.config().is_enabled\n",
        "        is_needed = version.bumps_epoch\n",
    ),
    "coordinators_confirm_any_partition": aimed(
        "partition outside of the transaction",
        _T + "transaction_rules",
        "ErrorCode.NONE if tp in known else ErrorCode.TRANSACTION_ABORTABLE for tp in partitions",
        "ErrorCode.NONE for tp in partitions",
    ),
    "a_decided_transaction_confirms_its_partitions": aimed(
        "batch of a decided transaction",
        _T + "transaction_rules",
        "    if error is ErrorCode.NONE and txn.state.is_prepared:\n",
        "    if False:\n",
        (
            "    known = txn.value.partitions if txn.state is TransactionState.ONGOING else NO_PARTITIONS\n",
            "    known = txn.value.partitions\n",
        ),
    ),
    "an_answer_about_the_last_transaction_counts": aimed(
        "outdated verification",
        _L + "producer_state",
        "        if state is None or state.guard is not check.guard:\n",
        "        if state is None:\n            return None\n        if False:\n",
    ),
    "batches_of_closed_connections_are_appended": aimed(
        "outdated verification",
        _A + "produce",
        "    return ErrorCode.NETWORK_EXCEPTION if ctx.has_ended() else ErrorCode.NONE\n",
        "    return ErrorCode.NONE\n",
    ),
    "batches_overtake_each_other": aimed(
        "order of batches",
        _R + "transaction_verification",
        "    predecessors = producers_here.predecessors(producer_id, batches)\n",
        "    predecessors: list[Turn] = []\n",
    ),
    "a_transaction_begins_with_its_second_batch": aimed(
        "first sequence",
        _L + "producer_state",
        "    if sequence <= lowest_sequence:\n",
        "    if True:\n",
    ),
}
