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
    "members_are_checked_before_the_verification": aimed(
        "generation that ends meanwhile",
        _C + "group_coordinator",
        "        def admit() -> GroupMetadata | ErrorCode:\n            error = self._status(group_id)\n",
        "        known = self._manager.get(group_id) or GroupMetadata(group_id, 0)\n"
        "        early = membership.validate_transactional_offset_commit(\n"
        "            known, member.member_id, member.group_instance_id, generation_id\n"
        "        )\n\n"
        "        def admit() -> GroupMetadata | ErrorCode:\n"
        "            if early is ErrorCode.NONE:\n"
        "                return self._manager.get_or_add(group_id)\n"
        "            error = self._status(group_id)\n",
    ),
    "offsets_are_not_verified": aimed(
        "offsets outside of the transaction",
        _R + "transaction_verification",
        "        is_needed = version.bumps_epoch or replicas.transactional_producers.config().is_enabled\n",
        "        is_needed = version.bumps_epoch or self._append.origin is AppendOrigin.CLIENT\n",
    ),
    "offsets_are_not_added": aimed(
        "offsets with a bump",
        _A + "txn_offset_commit",
        "    return TransactionVersion.TV_2 if version >= _FIRST_THAT_ADDS else TransactionVersion.TV_0\n",
        "    return TransactionVersion.TV_0\n",
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
        "                if aborted is not None and segment in rewritten:\n",
        "                if False:\n",
    ),
    "recovery_forgets_open_transactions": aimed(
        "recovered logs",
        _L + "producer_rebuild",
        "high_watermark=high_watermark) if batch.producer_id >= 0 else None\n",
        "high_watermark=high_watermark) if batch.producer_id >= 0 and batch.is_control else None\n",
    ),
    "followers_show_open_transactions": aimed(
        "reader of a follower",
        _R + "partition_reader",
        "    end = end_of(log, isolation)\n    if fetch.fetch_offset == end:\n",
        "    end = end_of(log, isolation) if partition.is_leader else log.high_watermark\n"
        "    if fetch.fetch_offset == end:\n",
    ),
    "followers_have_no_aborted_list": aimed(
        "reader of a follower",
        _R + "partition_reader",
        "    if wants_aborted:\n        read.aborted",
        "    if wants_aborted and partition.is_leader:\n        read.aborted",
    ),
    "times_are_found_in_open_transactions": aimed(
        "reader of a follower",
        _R + "partition_reader",
        "    if found is not None and found.offset < end:\n",
        "    if found is not None:\n",
    ),
    "markers_are_limited_like_records": aimed(
        "small messages",
        _L + "validator",
        "    if size > config.max_message_bytes and (origin is _CLIENT or not batch.attributes & CONTROL_BIT):\n",
        "    if size > config.max_message_bytes:\n",
    ),
    "a_level_has_the_epoch_of_the_last_one": aimed(
        "broker that joins",
        _T + "transaction_feature",
        "max(self.finalized.epoch + 1, now_ms)",
        "max(self.finalized.epoch, 1)",
    ),
    "ends_with_a_bump_need_the_level": aimed(
        "broker that joins",
        _A + "end_txn",
        "TransactionVersion.TV_2 if ctx.api_version >= 5 else",
        "TransactionVersion.TV_2 if ctx.api_version >= 5 and broker.features.version.bumps_epoch else",
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
    "tombstones_go_at_once": aimed(
        "replica that was away",
        _L + "compaction",
        "    expired = horizon is not None and horizon <= plan.now_ms\n",
        "    expired = horizon is not None\n",
    ),
    "compaction_forgets_producers": aimed(
        "compacted topic",
        _L + "compaction",
        "    return _rebuild(batch, [], None) if _is_last_of_producer(batch, plan) else None\n",
        "    return None\n",
    ),
}
