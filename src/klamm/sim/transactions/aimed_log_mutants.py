"""Bugs in groups, logs, versions and compaction that aimed scenarios catch. Each names its scenario."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import aimed

_A: Final = "klamm.apis."
_C: Final = "klamm.coordinator."
_T: Final = "klamm.coordinator.transaction."
_R: Final = "klamm.replica."
_L: Final = "klamm.log."


OF_GROUPS_AND_LOGS: Final = {
    "members_are_not_fenced": aimed(
        "member of an earlier generation",
        _C + "membership",
        "        return ErrorCode.NONE\n    return validate_member_and_generation(group, member_id, group_instance_id, "
        "generation_id)\n",
        "        return ErrorCode.NONE\n    return ErrorCode.NONE\n",
    ),
    "unstable_offsets_are_returned": aimed(
        "unstable offset",
        _C + "group_coordinator",
        "            if require_stable and offsets.is_unstable(tp)\n",
        "            if False\n",
    ),
    "added_offsets_are_not_in_the_transaction": aimed(
        "unstable offset", _A + "add_offsets_to_txn", "        [partition],\n", "        [],\n"
    ),
    "markers_do_not_end_offsets": aimed(
        "unstable offset", _A + "write_txn_markers", "    if not offsets:\n", "    if True:\n"
    ),
    "pending_offsets_are_not_loaded": aimed(
        "unstable offset",
        _C + "offsets_loader",
        "            offsets.transactional.add(batch.producer_id, tp, entry)\n",
        "            pass\n",
    ),
    "a_loading_coordinator_knows_no_transactions": aimed(
        "loading coordinators",
        _T + "transaction_state_manager",
        "        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition.is_loading else partition\n",
        "        return partition\n",
    ),
    "a_loading_coordinator_knows_no_offsets": aimed(
        "loading coordinators",
        _C + "group_metadata_manager",
        "        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition.is_loading else ErrorCode.NONE\n",
        "        return ErrorCode.NONE\n",
    ),
    "a_deposed_group_coordinator_returns_offsets": aimed(
        "paused group coordinator",
        _C + "group_coordinator",
        "        if require_stable and not self._manager.is_confirmed(group_id):\n",
        "        if False:\n",
    ),
    "the_arrival_of_a_fetch_confirms_the_leader": aimed(
        "paused group coordinator",
        _R + "remote_replica",
        "return self._confirmed_ms if session is None else max(self._confirmed_ms, session.previous_fetch_ms)",
        "return self._confirmed_ms if session is None else max(self._confirmed_ms, session.last_fetch_ms)",
    ),
    "an_unreplicated_end_is_stable": aimed(
        "unreplicated end",
        _L + "producer_state",
        "        if not self._unreplicated_txns:\n            return ongoing\n",
        "        if True:\n            return ongoing\n",
    ),
    "aborts_are_listed_by_their_end": aimed(
        "overlapping aborts",
        _L + "local_log",
        "        return tuple(sorted(found, key=_first_offset))\n",
        "        return tuple(found)\n",
    ),
    "aborts_are_listed_for_all_readers": aimed(
        "overlapping aborts",
        _R + "partition_reader",
        "    wants_aborted = isolation is _TXN_COMMITTED\n",
        "    wants_aborted = True\n",
    ),
    "recovery_forgets_aborted_transactions": aimed(
        "recovered logs",
        _L + "producer_rebuild",
        "        if aborted is not None and rewrite:\n",
        "        if False:\n",
    ),
    "recovery_forgets_open_transactions": aimed(
        "recovered logs",
        _L + "producer_rebuild",
        "        aborted = producers.update(batch) if batch.producer_id >= 0 else None\n",
        "        aborted = producers.update(batch) if batch.producer_id >= 0 and batch.is_control else None\n",
    ),
    "an_unknown_broker_keeps_the_level": aimed(
        "broker that joins",
        _T + "transaction_feature",
        "        is_repaired = bool(live_brokers) and not self.unknown(live_brokers)\n",
        "        is_repaired = bool(live_brokers)\n",
    ),
    "clients_keep_a_level_that_was_turned_off": aimed(
        "broker that joins",
        _A + "end_txn",
        "        return not finalized.version.bumps_epoch\n",
        "        return False\n",
    ),
    "clients_do_not_learn_of_a_raised_level": aimed(
        "broker that joins",
        _A + "end_txn",
        "    return ctx.api_version == 4 and finalized.version.bumps_epoch and is_before_change\n",
        "    return False\n",
    ),
    "clients_of_the_old_protocol_connect_for_every_transaction": aimed(
        "broker that joins",
        _A + "end_txn",
        "    return ctx.api_version == 4 and finalized.version.bumps_epoch and is_before_change\n",
        "    return ctx.api_version == 4 and finalized.version.bumps_epoch\n",
    ),
    "a_broker_that_left_stays_capable": aimed(
        "broker that joins",
        _T + "transaction_feature",
        "            del self._capable[broker_id]\n        is_repaired",
        "            pass\n        is_repaired",
    ),
}
OF_COMPACTION: Final = {
    "open_transactions_are_compacted": aimed(
        "compacted offsets",
        _L + "cleaner",
        "    end = min(log.last_stable_offset, log.segments.active.base_offset)\n",
        "    end = log.segments.active.base_offset\n",
    ),
    "aborted_records_replace_others": aimed(
        "compacted offsets",
        _L + "compaction",
        "            elif batch.last_offset >= plan.first_dirty_offset and not tracker.is_aborted(batch):\n",
        "            elif batch.last_offset >= plan.first_dirty_offset:\n",
    ),
    "markers_go_before_their_records": aimed(
        "compacted offsets",
        _L + "compaction",
        "                self._committing.discard(producer_id)\n                return False\n",
        "                self._committing.discard(producer_id)\n                return True\n",
    ),
    "compaction_forgets_producers": aimed(
        "compacted topic",
        _L + "compaction",
        "    return _rebuild(batch, [], None) if _is_last_of_producer(batch, plan) else None\n",
        "    return None\n",
    ),
}
