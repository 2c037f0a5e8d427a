"""Bugs for level 2, as replacements in the source of brokers: each must be caught by whole-cluster seeds.

Those that need a certain course of events are in `aimed/aimed_cluster_mutants.py`.
"""

from __future__ import annotations

from typing import Final

from klamm.sim.aimed.aimed_cluster_mutants import AIMED_CLUSTER_MUTANTS
from klamm.sim.mutant import Mutant

_R: Final = "klamm.replica."
CLUSTER_MUTANTS: Final[dict[str, Mutant]] = {
    "high_watermark_too_early": Mutant(
        _R + "isr", "            candidate = remote.log_end_offset\n", "            pass\n"
    ),
    "acks_all_does_not_wait": Mutant(
        _R + "append_path",
        "result.flush_pending or (required_acks == -1 and partition.log.high_watermark <= result.last_offset)",
        "result.flush_pending",
    ),
    "joins_isr_behind": Mutant(
        _R + "isr",
        "remote.log_end_offset >= high_watermark and remote.log_end_offset >= (leader_epoch_start_offset or 0)",
        "remote.log_end_offset >= 0",
    ),
    "isr_shrinks_before_it_is_decided": Mutant(
        _R + "partition",
        "        self.pending_isr = isr\n",
        "        self.pending_isr = isr\n        self.isr = isr\n",
        first=50,
    ),
    "diverging_logs_are_not_reported": Mutant(
        _R + "partition_reader",
        "elif epoch < fetch.last_fetched_epoch or end_offset < fetch.fetch_offset:",
        "elif False:",
        first=4,
    ),
    "leader_epoch_is_not_checked": Mutant(
        _R + "partition_reader",
        "if current_leader_epoch not in (NO_EPOCH, partition.leader_epoch):",
        "if False:",
    ),
    "duplicates_are_appended": Mutant(
        "klamm.log.appending",
        "    known = log.producers.find_duplicate(batch)\n",
        "    known = None\n",
        also=(("        refusal = log.producers.validate(batch, origin, transaction)\n", "        refusal = None\n"),),
    ),
    "last_sequence_of_a_batch_is_its_first": Mutant(
        "klamm.log.producer_state", "BatchMetadata(batch.last_sequence,", "BatchMetadata(batch.base_sequence,"
    ),
    "producers_forgotten_at_restart": Mutant(
        "klamm.log.producer_rebuild", "    if start >= log_end_offset:\n        return\n", "    return\n", first=7
    ),
    "stale_controllers_are_obeyed": Mutant(
        _R + "replica_manager",
        "        if controller_epoch < self.controller_epoch:\n",
        "        if False:\n",
        first=71,
        beside=(
            Mutant(
                _R + "controller_guard",
                "            return ErrorCode.STALE_CONTROLLER_EPOCH\n        is_confirmed",
                "            return ErrorCode.NONE\n        is_confirmed",
            ),
        ),
    ),
    "follower_fetch_needs_no_proof": Mutant(
        "klamm.apis.fetch",
        "        return broker.acls is None and not broker.config.klamm_admit_unproven_peers\n",
        "        return False\n",
        first=7,
    ),
    "peers_need_no_proof": Mutant("klamm.apis.access", "    return is_proven\n", "    return True\n", first=7),
    "any_higher_epoch_is_believed": Mutant(
        _R + "controller_guard",
        "        is_confirmed = claim.controller_epoch == self._confirmed_epoch and "
        "claim.controller_id == self._confirmed_id\n",
        "        is_confirmed = claim.controller_epoch >= self._confirmed_epoch\n",
    ),
    "zookeeper_is_asked_for_the_epoch_only": Mutant(
        _R + "controller_guard",
        "    is_named = (claim.controller_id, claim.controller_epoch) == "
        "(state.controller_id, state.controller_epoch)\n",
        "    is_named = claim.controller_epoch == state.controller_epoch\n",
        first=9,
    ),
    "watches_are_lost_with_the_connection": Mutant(
        "klamm.zk.client.zk_session",
        "            self._watches.restore(self._connection)\n",
        "            pass\n",
        first=21,
    ),
    "not_registered_again": Mutant(
        "klamm.controller.controller_runner",
        "        self._register(self._zk.session_id, 1)\n",
        "        pass\n",
        first=5,
    ),
    "deleted_registration_is_accepted": Mutant(
        "klamm.controller.controller",
        "                if broker_id == self.context.config.broker_id:\n",
        "                if False:\n",
        first=1,
    ),
    "failed_disk_is_kept_secret": Mutant(
        "klamm.server.disk_events",
        "        self._spawn(log_dir_notes.leave_note(self._broker.zk, self._broker.id))\n",
        "",
        first=94,
    ),
    "min_insync_replicas_is_not_asked": Mutant(
        _R + "partition",
        "return 1 if self.log is None else min(self.log.config.min_insync_replicas, len(self.remotes) + 1)",
        "return 1",
    ),
    "new_leader_takes_all_for_committed": Mutant(
        _R + "partition",
        "        self.maybe_increment_high_watermark(now_ms)\n        return is_new_epoch\n",
        "        log.update_high_watermark(log.log_end_offset)\n        return is_new_epoch\n",
        first=1,
    ),
    "changes_do_not_reach_fetch_sessions": Mutant(
        _R + "partition",
        "            for reader in readers:\n                reader.on_change()\n",
        "            pass\n",
    ),
    "end_is_returned_before_it_is_known": Mutant(
        _R + "partition_reader",
        "    epoch_start = partition.leader_epoch_start_offset\n",
        "    epoch_start = None\n",
        first=26,
    ),
    "cache_updates_overwrite_each_other": Mutant(
        "klamm.metadata.cache",
        "        self.snapshot, deleted = before.apply(update)\n",
        "        import asyncio\n\n        after, deleted = before.apply(update)\n"
        "        asyncio.get_running_loop().call_later(0.002, setattr, self, 'snapshot', after)\n",
        first=1,
    ),
    "offset_commits_do_not_wait": Mutant(
        "klamm.coordinator.broker_adapters",
        "self._append_records(-1, True,",
        "self._append_records(1, True,",
        40,
        first=7,
    ),
    "cut_at_the_high_watermark": Mutant(
        _R + "fetch_state",
        "        self.follow_log()\n\n    @property",
        "        self.log.truncate_to(min(self.log.high_watermark, self.log.log_end_offset))\n"
        "        self.follow_log()\n\n    @property",
        40,
    ),
    "strays_of_deposed_controllers_kept": Mutant(
        "klamm.replica.stray_replicas",
        "if informed_by > self._informed_by and update.topics and update.is_last_slice:",
        "if False:",
        first=9,
    ),
    "stop_replica_of_any_epoch_obeyed": Mutant(
        _R + "state_change",
        "    is_older = stop.leader_epoch < partition.leader_epoch\n",
        "    is_older = False\n",
        first=5,
    ),
    "torn_tail_is_kept": Mutant(
        "klamm.log.loader",
        "            cut_bytes = segment.recover(self._note_epoch)\n",
        "            cut_bytes = 0\n",
        first=5,
    ),
    "committed_offsets_are_not_loaded": Mutant(
        "klamm.coordinator.offsets_loader",
        "            offsets.put(tp, entry)\n",
        "            pass\n",
    ),
    "unclean_shutdown_not_reported": Mutant(
        "klamm.server.starting", "unclean_shutdown=broker.logs.may_lack_records", "unclean_shutdown=False", first=2
    ),
    "members_that_just_left_not_waited_for": Mutant(
        "klamm.controller.suspects",
        "        if former:\n            self.left[tp] = former\n",
        "        if former:\n            pass\n",
        first=124,
    ),
    "damage_not_reported": Mutant(
        "klamm.log.log_manager",
        "return not self.had_clean_shutdown or self._found_damage",
        "return not self.had_clean_shutdown",
        first=10,
    ),
    "log_end_is_not_the_end": Mutant(
        "klamm.apis.offset_for_leader_epoch",
        "        end_offset=end_offset,\n    )\n\n\ndef _row",
        "        end_offset=-end_offset % 1000,\n    )\n\n\ndef _row",
        first=9,
    ),
    **AIMED_CLUSTER_MUTANTS,
}
