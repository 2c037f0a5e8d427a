"""Bugs of the control plane and of replication that aimed scenarios catch. Each names its scenario."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant, aimed

_R: Final = "klamm.replica."
_L: Final = "klamm.log."
_PULSE: Final = "klamm.zk.client.loop_pulse"
_JUDGED: Final = "claim.broker_epoch not in (own_epoch, state.broker_epoch)"
_UNREADABLE: Final = '        yield Note(f"no controller can be elected: {error}. {_EPOCH_REMEDY}", True)\n'
_ISR: Final = "klamm.controller.isr_changes"
_ASKED_AGAIN: Final = (
    "    return ctx.states.is_asked_again(tp, KnownVersion(broker_id, item.leader_epoch, item.partition_epoch))\n"
)
AIMED_CLUSTER_MUTANTS: Final[dict[str, Mutant]] = {
    # --- broker epochs of control requests
    "higher_broker_epoch_is_believed": aimed(
        "false broker epoch", _R + "controller_guard", _JUDGED, "claim.broker_epoch < own_epoch"
    ),
    "broker_epoch_of_the_named_controller_is_believed": aimed(
        "false broker epoch",
        _R + "controller_guard",
        "        if is_confirmed and (broker_epoch is None or broker_epoch == own_epoch):\n",
        "        if is_confirmed:\n",
    ),
    "lower_broker_epoch_is_obeyed": aimed(
        "false broker epoch",
        _R + "controller_guard",
        "        if broker_epoch is not None and broker_epoch < own_epoch:\n",
        "        if False:\n",
        (_JUDGED, "claim.broker_epoch > max(own_epoch, state.broker_epoch)"),
        beside=(
            Mutant(
                "klamm.apis.control",
                "    if broker_epoch == UNKNOWN_BROKER_EPOCH or broker_epoch >= broker.broker_epoch:\n",
                "    if True:\n",
            ),
        ),
    ),
    # --- states written by others
    "restored_states_freeze_the_isr": aimed(
        "forged partition state",
        _ISR,
        "        return (state.leader, state.leader_epoch) == (new.leader, new.leader_epoch)\n",
        "        return state.partition_epoch == new.partition_epoch\n",
    ),
    "states_of_another_term_freeze_the_isr": aimed(
        "forged partition state before a failover", _ISR, _ASKED_AGAIN, "    return False\n" + _ASKED_AGAIN
    ),
    "adopted_states_freeze_the_isr": aimed(
        "forged partition state before a death",
        _ISR,
        "            if outcome is ErrorCode.INVALID_UPDATE_VERSION:\n",
        "            if False:\n",
    ),
    "leaders_wait_for_a_renewal_that_may_fail": aimed(
        "renewal without ZooKeeper",
        _ISR,
        _ASKED_AGAIN,
        "    return True\n",
        ("            if outcome is ErrorCode.INVALID_UPDATE_VERSION:\n", "            if False:\n"),
    ),
    "older_states_freeze_the_isr": aimed(
        "older partition state",
        _ISR,
        _ASKED_AGAIN,
        "    if item.leader_epoch > ctx.states.leadership[tp].leader_and_isr.leader_epoch:\n"
        "        return False\n" + _ASKED_AGAIN,
    ),
    "states_of_this_term_are_never_renewed": aimed(
        "older partition state before a death",
        _ISR,
        _ASKED_AGAIN,
        "    if ctx.states.leadership[tp].controller_epoch == ctx.epoch:\n        return False\n" + _ASKED_AGAIN,
    ),
    "foreign_leaders_are_overwritten": aimed(
        "forged leader",
        _ISR,
        "        return (state.leader, state.leader_epoch) == (new.leader, new.leader_epoch)\n",
        "        return True\n",
    ),
    "lower_versions_freeze_the_isr": aimed(
        "partition state created again",
        _ISR,
        "    stuck.update({tp: event.partitions[wanted[tp][0]] for tp in recreated})\n",
        "    pass\n",
    ),
    "newer_versions_of_leaders_freeze_the_isr": aimed(
        "partition state created again before a failover",
        _ISR,
        "outcome in _OTHER_VERSION and",
        "outcome is ErrorCode.INVALID_UPDATE_VERSION and",
    ),
    # --- file descriptors
    "unwritten_batches_are_forgotten": aimed(
        "no file descriptors",
        _L + "appending",
        "            log.unwritten.note(batch, log.clock.monotonic())\n        return _rejected",
        "            pass\n        return _rejected",
    ),
    "batches_after_an_unwritten_one_are_out_of_order": aimed(
        "no file descriptors",
        _L + "unwritten_batches",
        "if is_out_of_order or is_gap else refused",
        "if is_gap else refused",
    ),
    "new_producers_may_start_after_an_unwritten_batch": aimed(
        "no file descriptors",
        _L + "unwritten_batches",
        "if is_out_of_order or is_gap else refused",
        "if is_out_of_order else refused",
    ),
    "written_batches_still_count_as_unwritten": aimed(
        "no file descriptors", _L + "appending", "        log.unwritten.written(batch.producer_id)\n", "        pass\n"
    ),
    # --- stalled loops
    "stalled_loop_keeps_the_session": aimed(
        "stalled loop",
        _PULSE,
        "if found is None and self._still_s[pulse] > pulse.limit_s:",
        "if False:",
    ),
    "loop_is_not_watched": aimed(
        "stalled loop", "klamm.server.starting", "        broker.zk.watch_loop(pulse)\n", "        pass\n"
    ),
    "stalls_add_up": aimed(
        "stalled loop",
        _PULSE,
        "self._seen[pulse], self._still_s[pulse] = beats, 0.0",
        "self._seen[pulse], self._still_s[pulse] = beats, self._still_s.get(pulse, 0.0)",
    ),
    "beats_are_not_noticed": aimed(
        "stalled loop",
        _PULSE,
        "if pulse.is_stopped or self._seen.get(pulse) != beats:",
        "if pulse.is_stopped or pulse not in self._seen:",
    ),
    # --- an unreadable controller epoch
    "unreadable_epoch_is_not_read_again": aimed(
        "unreadable controller epoch",
        "klamm.controller.failover",
        _UNREADABLE + "        yield Schedule(UNREADABLE_RETRY_MS, Reelect())\n",
        _UNREADABLE,
    ),
    "unreadable_epoch_is_taken_for_the_first": aimed(
        "unreadable controller epoch",
        "klamm.controller.failover",
        _UNREADABLE + "        yield Schedule(UNREADABLE_RETRY_MS, Reelect())\n        return False\n",
        "        epoch, version = 0, -1\n",
    ),
    # --- leader epochs of followers
    "epochs_to_come_are_kept": aimed(
        "epochs to come", _R + "fetcher", "elif state.last_fetched_epoch > state.leader_epoch:", "elif False:"
    ),
    "records_keep_the_epoch_to_come": aimed(
        "epochs to come",
        _L + "epoch_correction",
        "    wrong = local.leader_epochs.truncate_after(leader_epoch)\n",
        "    wrong = None\n",
    ),
    "unclear_epochs_are_guessed": aimed(
        "epochs to come",
        _L + "epoch_correction",
        "    if not is_single or written is None or not latest <= written <= leader_epoch:\n"
        "        return wrong.start_offset\n    local.assign_epoch(written, wrong.start_offset)\n",
        "    local.assign_epoch(leader_epoch, wrong.start_offset)\n",
    ),
    # --- full disks
    "full_disk_is_not_probed": aimed(
        "full disk", _L + "log_passes", "        return self._full_disks.probe()\n", "        return 0\n"
    ),
    "full_disk_is_used_again": aimed(
        "full disk of an idle broker",
        _L + "full_disks",
        "            self._files.write_atomic(path, bytes(_PROBE_BYTES))\n",
        "            pass\n",
    ),
    "controller_does_not_learn_of_the_room": aimed(
        "full disk",
        "klamm.server.disk_events",
        "        self._broker.replicas.on_log_dir_revival(log_dir)\n        self.request_leader_and_isr()\n",
        "        self._broker.replicas.on_log_dir_revival(log_dir)\n",
    ),
    "partitions_stay_offline_when_there_is_room": aimed(
        "full disk",
        "klamm.server.disk_events",
        "        self._broker.replicas.on_log_dir_revival(log_dir)\n",
        "        pass\n",
    ),
    # --- deleted records
    "moved_log_start_is_not_reported": aimed(
        "deleted records",
        _R + "fetcher",
        "elif state.log.log_start_offset != state.reported_log_start_offset:",
        "elif False:",
    ),
    "deleted_records_are_answered_too_early": aimed(
        "deleted records", _R + "delete_records", "elif partition.low_watermark >= offset:", "elif True:"
    ),
    # --- other directories
    "moved_follower_does_not_fetch": aimed(
        "other directory", _R + "log_dir_moves", "            fetchers.add([partition])\n", "            pass\n"
    ),
    "log_is_moved_without_its_records": aimed(
        "other directory",
        _R + "log_dir_moves",
        "        if future.log_end_offset == partition.log.log_end_offset:\n",
        "        if True:\n",
        ("        copied = self._copy(tp, partition.log, future)\n", "        copied = 0\n"),
    ),
    # --- damaged logs
    "damaged_log_is_not_fetched_again": aimed(
        "damaged follower",
        _R + "damaged_logs",
        "        if hosted.damages and (error := hosted.truncate_to(start)):\n",
        "        if hosted.damages and (error := ErrorCode.NONE):\n",
    ),
    "damaged_log_start_is_believed": aimed(
        "damaged log start",
        _R + "truncation",
        "    if leader_end_offset < log_start_offset:\n",
        "    if False:\n",
    ),
    "gap_is_counted_as_records": aimed(
        "damaged last leader", _L + "log", "        if not self.damages:\n", "        if True:\n"
    ),
    "damaged_log_leads_beside_intact_ones": aimed(
        "damaged lonely leader", _R + "damaged_logs", "        if others:\n", "        if False:\n"
    ),
    "refused_leadership_is_not_followed_up": aimed(
        "damaged lonely leader",
        _R + "damaged_logs",
        "            self._refused.difference_update(led)\n            self.ask_again()\n",
        "            self._refused.difference_update(led)\n",
    ),
    "damaged_records_are_not_reported": aimed(
        "damaged lonely leader",
        _R + "damaged_logs",
        "                self._report(tp, hosted, damage.start_offset, damage.end_offset)\n",
        "",
    ),
    "logs_of_other_topics_are_used": aimed(
        "log of another topic",
        _L + "log",
        "            return ErrorCode.NONE if self.topic_id == topic_id else ErrorCode.INCONSISTENT_TOPIC_ID\n",
        "            return ErrorCode.NONE\n",
    ),
    # --- truncation
    "truncation_keeps_the_producers_of_removed_batches": aimed(
        "truncated batches", _L + "producer_state", "            self._undo(change)\n", "            pass\n"
    ),
    "failed_truncations_are_not_finished": aimed(
        "truncated batches without files",
        _L + "log",
        "        self._unfinished_cut = cut\n        self._finish_truncation()\n",
        "        cut()\n        self._local.truncate_producers(start, end, self.high_watermark)\n",
    ),
    "failed_truncations_end_the_fetching": aimed(
        "truncated batches without files",
        _R + "fetcher",
        "        elif error == ErrorCode.KAFKA_STORAGE_ERROR and not state.log.disk.is_failed:\n",
        "        elif False:\n",
    ),
}
