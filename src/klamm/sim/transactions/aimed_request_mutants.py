"""Bugs in the answers to single requests of transactions that aimed scenarios catch. Each names its scenario."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import aimed

_A: Final = "klamm.apis."
_L: Final = "klamm.log."
_T: Final = "klamm.coordinator.transaction."
_WHILE_COMPLETING: Final = (
    "    if txn.pending is not None or txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
    "    if txn.state is TransactionState.ONGOING:\n"
)

OF_REQUESTS: Final = {
    "an_end_while_completing_succeeds": aimed(
        "end while completing",
        _T + "end_rules",
        _WHILE_COMPLETING,
        "    if txn.pending is not None:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    if txn.state is request.prepared:\n        return ErrorCode.NONE\n"
        "    if txn.state.is_prepared:\n        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    if txn.state is TransactionState.ONGOING:\n",
    ),
    "an_abort_while_completing_is_fatal": aimed(
        "end while completing",
        _T + "end_rules",
        _WHILE_COMPLETING,
        "    if txn.pending is not None or txn.state is request.prepared:\n"
        "        return ErrorCode.CONCURRENT_TRANSACTIONS\n"
        "    if txn.state is TransactionState.ONGOING:\n",
    ),
    "clients_write_control_records": aimed(
        "control records of a client",
        _L + "validator",
        '    if batch.attributes & CONTROL_BIT:\n        return "clients cannot write control records"\n',
        "",
    ),
    "transactions_have_no_producer": aimed(
        "control records of a client",
        _L + "validator",
        '    return "a transactional batch needs a producer id" if batch.producer_id < 0 else None\n',
        "    return None\n",
    ),
    "operators_commit": aimed(
        "marker of an operator",
        _A + "write_txn_markers",
        "        is_abort = first is not None and not first.transaction_result and first.producer_id >= 0\n",
        "        is_abort = first is not None\n",
    ),
    "operators_raise_producer_epochs": aimed(
        "marker of an operator",
        _L + "producer_state",
        "    if entry is None or entry.current_txn_first_offset is None or batch.producer_epoch !=",
        "    if entry is None or entry.current_txn_first_offset is None or batch.producer_epoch <",
    ),
    "operators_depose_coordinators": aimed(
        "marker of an operator",
        _L + "producer_state",
        "    if marker is None or marker.coordinator_epoch <= max(entry.coordinator_epoch, 0):\n",
        "    if True:\n",
    ),
    "some_partitions_are_added": aimed(
        "missing partition",
        _A + "add_partitions_to_txn",
        "    if missing:\n        return (yield from _client_response(req, _not_attempted(missing)))\n",
        "",
    ),
    "answers_about_several_transactions_are_mixed_up": aimed(
        "several verifications",
        _A + "add_partitions_to_txn",
        "zip(transactions, errors, strict=True)",
        "zip(transactions, reversed(errors), strict=True)",
    ),
    "verification_adds_partitions": aimed(
        "several verifications",
        _A + "add_partitions_to_txn",
        "    if not transaction.verify_only:\n",
        "    if True:\n",
    ),
    "markers_are_answered_before_they_are_replicated": aimed(
        "lonely marker", _A + "write_txn_markers", "                _ALL_IN_SYNC,\n", "                1,\n"
    ),
    "followers_do_not_describe_producers": aimed(
        "described transaction",
        _A + "describe_producers",
        "    log = partition.log\n",
        "    log = partition.log if partition.is_leader else None\n",
    ),
    "open_transactions_have_no_start": aimed(
        "described transaction",
        _A + "describe_producers",
        "current_txn_start_offset=-1 if first_offset is None else first_offset,",
        "current_txn_start_offset=-1,",
    ),
    "listings_ignore_the_state": aimed(
        "described transaction",
        _T + "transaction_listing",
        "is_wanted = (not states or value.state in wanted) and",
        "is_wanted =",
    ),
    "transactions_are_found_like_groups": aimed(
        "coordinators of ids",
        _A + "find_coordinator",
        "topic, index = TRANSACTION_STATE_TOPIC, broker.transactions.partition_for(key)",
        "topic, index = TRANSACTION_STATE_TOPIC, broker.groups.partition_for(key)",
    ),
}

OF_WAITS: Final = {
    "requests_do_not_wait": aimed(
        "request that waits",
        _T + "transaction_coordinator",
        "        decide(may_wait=origin is not None)\n",
        "        decide(may_wait=False)\n",
    ),
    "requests_that_wait_are_forgotten": aimed(
        "request that waits",
        _T + "transaction_completions",
        "                self.waits.release(completion.txn)\n",
        "",
    ),
    "requests_wait_for_ever": aimed(
        "request that waits too long",
        _T + "transaction_waits",
        "self._deadlines[0][0] <= now_ms:",
        "self._deadlines[0][0] <= -1:",
    ),
    "given_up_requests_that_waited_act": aimed(
        "given-up request that waits",
        _T + "transaction_coordinator",
        """            found = self._admitted(transactional_id, producer, origin)
            if isinstance(found, ErrorCode):
                result.complete(found)
""",
        """            found = self._admitted(transactional_id, producer, origin if may_wait else None)
            if isinstance(found, ErrorCode):
                result.complete(found)
""",
    ),
    "new_producers_do_not_wait": aimed(
        "new producer that waits",
        _T + "transaction_coordinator",
        "        may_wait = origin is not None\n",
        "        may_wait = False\n",
    ),
}
