"""docs/reference/transaction-rules.md: every rule of transactions, the mutants that break it, and what catches each.

A new mutant needs a row here: a test says so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.sim.transactions.txn_mutants import TRANSACTION_MUTANTS

_HEAD: Final = """# The rules of transactions and their mutants

This page is generated from docgen/transaction_rules.py and the simulator. Each rule has *mutants*: bugs that break it,
and that the [simulator](../concepts/simulator.md#tests-of-the-checkers) must report. A mutant is caught by an aimed
scenario, or by random faults from a seed on. `make sim` runs all of them;
`klamm simulate --level 2 --transactions --mutant NAME` runs one.
"""
_LAST: Final = """
## Exactly once from Spark

The rules of [decision 0033](../adr/0033-a-batch-is-decided-in-one-record.md) run in Spark's driver, which the simulator
does not have. They are pure functions: `tests/unit/spark/test_sink_mutants.py` has a mutant for each, and
`tests/spark/sink/test_exactly_once.py` kills drivers, tasks, leaders and coordinators.
"""


class Rule(NamedTuple):
    text: str
    mutants: tuple[str, ...]


def _rule(text: str, *mutants: str) -> Rule:
    return Rule(text, mutants)


RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "Producers, epochs and ids": (
        _rule(
            "InitProducerId gives a later epoch, and requests of earlier ones are refused",
            "initialisation_does_not_raise_the_epoch",
            "producers_are_not_fenced",
            "two_processes_share_an_epoch",
        ),
        _rule(
            "It aborts the open transaction first, even if the request is late (decision 0031)",
            "an_initialised_producer_leaves_its_transaction_open",
            "an_initialisation_commits_the_open_transaction",
        ),
        _rule(
            "A producer recovers by its id and epoch, also if the answer was lost; a deposed one does not (KIP-360)",
            "a_repeated_recovery_is_fenced",
            "a_deposed_producer_recovers",
            "a_producer_of_another_id_recovers",
        ),
        _rule(
            "A recovery has no effect once its producer has used a later epoch (decision 0031)",
            "a_late_recovery_aborts_a_transaction",
            "a_late_recovery_hides_a_commit",
        ),
        _rule("The timeout of a transaction is limited", "timeouts_are_not_limited"),
        _rule(
            "No producer gets the last epoch of an id: its next id is stored with the decision, and used from then on",
            "the_last_epoch_is_given_to_producers",
            "an_end_returns_the_used_up_id",
            "a_completion_keeps_the_used_up_id",
            "a_commit_that_uses_up_the_epochs_aborts",
            "the_next_id_is_not_stored",
            "the_previous_id_is_not_stored",
        ),
        _rule("Producer ids end and do not wrap", "producer_ids_do_not_end"),
        _rule(
            "An idle transactional id expires, an open one does not, and its producer recovers",
            "idle_transactional_ids_do_not_expire",
            "open_transactional_ids_expire",
            "an_expired_producer_does_not_recover",
        ),
        _rule(
            "A log forgets silent producers, but none with an open transaction",
            "silent_producers_do_not_expire",
            "producers_of_open_transactions_expire",
        ),
    ),
    "Transactions and their ends": (
        _rule(
            "A transaction has all its partitions, and offsets as one of them",
            "a_growing_transaction_forgets_partitions",
            "added_offsets_are_not_in_the_transaction",
        ),
        _rule("AddPartitionsToTxn adds all partitions or none", "some_partitions_are_added"),
        _rule(
            "The next transaction begins after the markers of the last one",
            "next_transaction_begins_before_the_markers",
        ),
        _rule(
            "A decision is answered when all in-sync replicas have it",
            "decisions_are_answered_before_they_are_replicated",
        ),
        _rule("A repeated end succeeds with the same outcome only", "a_repeated_end_is_refused"),
        _rule(
            "While a transaction completes, every end is CONCURRENT_TRANSACTIONS (decision 0028)",
            "an_end_while_completing_succeeds",
            "an_abort_while_completing_is_fatal",
            "end_while_completing_is_an_empty_success",
        ),
        _rule(
            "An abort with nothing open succeeds; after a commit, only where its answer was sent (decision 0028)",
            "an_abort_with_nothing_open_is_refused",
            "an_abort_after_a_known_commit_is_refused",
            "an_abort_after_a_lost_commit_succeeds",
        ),
        _rule(
            "A transaction that is open for too long is aborted, and its producer is fenced",
            "timeouts_do_not_abort",
            "timeouts_keep_the_epoch",
        ),
        _rule(
            "Of a timeout and an end, the one that is being stored counts",
            "a_timeout_interrupts_an_end",
            "an_end_interrupts_a_timeout",
        ),
        _rule(
            "A coordinator loads before it answers, and completes decided transactions of its predecessor",
            "a_successor_does_not_complete",
            "a_loading_coordinator_knows_no_transactions",
        ),
        _rule(
            "It has loaded when all in-sync replicas have every record that it has read (decision 0042)",
            "a_successor_acts_before_its_followers_know",
            "a_follower_below_the_minimum_wakes_nobody",
        ),
        _rule(
            "FindCoordinator names the leader of the transactional id's partition", "transactions_are_found_like_groups"
        ),
        _rule(
            "`__transaction_state` fits the cluster, unless its replicas are set (decision 0029)",
            "two_brokers_need_three_replicas",
            "two_replicas_need_both",
            "a_number_of_replicas_that_is_set_is_lowered",
        ),
    ),
    "Markers": (
        _rule(
            "A coordinator repeats markers until each is written",
            "unanswered_markers_are_not_repeated",
            "refused_markers_are_not_repeated",
        ),
        _rule("A deleted partition needs no marker", "markers_wait_for_deleted_partitions"),
        _rule(
            "A marker is answered when all in-sync replicas have it", "markers_are_answered_before_they_are_replicated"
        ),
        _rule("A completion is stored until it succeeds", "an_unstored_completion_is_not_repeated"),
        _rule("Markers of an earlier term do not count (KAFKA-16352)", "kafka_16352_markers_of_an_earlier_term_count"),
        _rule("Markers of a deposed coordinator are refused", "markers_of_deposed_coordinators_are_written"),
        _rule("Markers are exempt from `max.message.bytes` (decision 0030)", "markers_are_limited_like_records"),
        _rule(
            "An operator aborts open transactions in their epoch, and nothing else",
            "operators_commit",
            "operators_raise_producer_epochs",
            "operators_depose_coordinators",
        ),
    ),
    "Verification by leaders (KIP-890 part 1, decision 0030)": (
        _rule(
            "The coordinator confirms the partition before the first batch of a transaction",
            "transactions_are_not_verified",
            "coordinators_confirm_any_partition",
            "a_decided_transaction_confirms_its_partitions",
            "verification_adds_partitions",
        ),
        _rule("So it does before the first offsets", "offsets_are_not_verified"),
        _rule(
            "An answer counts for the transaction that was asked for; with a new epoch, the leader asks again",
            "an_answer_about_the_last_transaction_counts",
            "a_late_question_refuses_a_batch",
        ),
        _rule(
            "Questions of one transaction are joined, and each has its answer",
            "answers_about_several_transactions_are_mixed_up",
            "a_question_replaces_the_one_that_waits",
        ),
        _rule("A coordinator that does not answer counts as unreachable", "leaders_wait_for_lost_questions"),
        _rule(
            "Batches of a producer are appended in order",
            "batches_overtake_each_other",
            "a_transaction_begins_with_its_second_batch",
        ),
        _rule(
            "A batch whose connection was closed meanwhile is not appended",
            "batches_of_closed_connections_are_appended",
        ),
        _rule("A transactional batch needs a producer id", "transactions_have_no_producer"),
        _rule("A repeated batch is a duplicate", "duplicates_are_appended"),
    ),
    "Protection of old clients (decision 0031)": (
        _rule(
            "1: the coordinator refuses requests on older connections",
            "late_requests_reach_the_coordinator",
            "late_requests_act_in_the_next_transaction",
            "late_partitions_join_the_next_transaction",
            "late_groups_join_the_next_transaction",
        ),
        _rule(
            "2: after an election, connections from before it are refused",
            "a_returned_coordinator_trusts_all_connections",
            "a_restarted_coordinator_trusts_all_connections",
        ),
        _rule("3: a leader refuses batches on older connections", "batches_on_older_connections_are_appended"),
        _rule(
            "4: a group coordinator does so for offsets",
            "offsets_on_older_connections_are_appended",
            "a_returned_group_coordinator_trusts_all_connections",
        ),
        _rule(
            "5: an abort makes all connections old, on every replica",
            "late_batches_join_after_an_abort",
            "late_offsets_join_after_an_abort",
            "followers_do_not_remember_aborts",
            "late_batches_join_after_a_truncation",
        ),
        _rule(
            "5: clients that take a new epoch keep their connections", "clients_that_renew_their_epoch_connect_again"
        ),
        _rule(
            "6: a leader refuses markers on older connections, and on those from before its election",
            "late_markers_are_written",
            "late_markers_are_written_after_a_return",
        ),
    ),
    "The repaired protocol (KIP-890 part 2)": (
        _rule(
            "Every end bumps the epoch, EndTxn v5 returns it, and its repetition does too, also after a failover",
            "the_epoch_is_not_raised_at_an_end",
            "an_end_returns_the_epoch_before",
            "a_repeated_end_with_a_bump_is_fenced",
            "a_repeated_end_has_any_outcome",
            "the_version_of_the_client_is_not_stored",
        ),
        _rule(
            "Produce v12 and TxnOffsetCommit v5 add partitions",
            "partitions_are_not_added_by_leaders",
            "offsets_are_not_added",
        ),
        _rule(
            "The end of an empty transaction (KAFKA-18401)",
            "kafka_18401_an_empty_transaction_is_committed",
            "kafka_18401_an_empty_abort_keeps_the_epoch",
        ),
        _rule(
            "The next epoch or id is valid while the last transaction completes (KAFKA-18660)",
            "kafka_18660_the_next_epoch_is_fenced_while_completing",
            "kafka_18660_the_next_id_is_fenced_while_completing",
            "kafka_18660_the_next_id_is_unknown_while_completing",
        ),
        _rule("InitProducerId bumps the epoch once (KAFKA-19367)", "kafka_19367_a_take_over_bumps_twice"),
        _rule(
            "A stored last epoch does not overflow (KAFKA-20090)",
            "kafka_20090_a_stored_last_epoch_overflows",
            "kafka_20090_a_marker_of_the_last_epoch_is_refused",
        ),
        _rule(
            "A late marker has the epoch of the open transaction and is refused (KAFKA-19446)",
            "kafka_19446_late_markers_of_the_next_epoch_are_written",
        ),
        _rule("A repeated marker succeeds (KAFKA-19999)", "kafka_19999_a_repeated_marker_is_refused"),
        _rule(
            "A marker has the version of its transaction (KIP-1228)",
            "kip_1228_markers_have_no_version",
            "kip_1228_the_version_of_a_marker_is_ignored",
            "kip_1228_the_log_ignores_the_version_of_a_marker",
        ),
        _rule(
            "`transaction.version` is on while all live brokers are known to speak it (decision 0032)",
            "an_unknown_broker_keeps_the_level",
            "a_broker_that_left_stays_capable",
        ),
        _rule(
            "Clients learn of a change, once (decision 0032)",
            "clients_keep_a_level_that_was_turned_off",
            "clients_do_not_learn_of_a_raised_level",
            "clients_of_the_old_protocol_connect_for_every_transaction",
            "a_level_has_the_epoch_of_the_last_one",
        ),
        _rule("A transaction ends as it began, whatever the level (decision 0032)", "ends_with_a_bump_need_the_level"),
    ),
    "Offsets of groups": (
        _rule(
            "Offsets count when their transaction is committed, and only then",
            "pending_offsets_count_at_once",
            "aborted_offsets_are_committed",
            "markers_do_not_end_offsets",
        ),
        _rule(
            "With *require stable*, pending offsets are refused, also by a coordinator that has just loaded them",
            "unstable_offsets_are_returned",
            "pending_offsets_are_not_loaded",
            "a_loading_coordinator_knows_no_offsets",
        ),
        _rule(
            "A producer is fenced with its member, by the group as it is after the verification (KIP-447)",
            "members_are_not_fenced",
            "members_are_checked_before_the_verification",
        ),
    ),
    "Logs and readers": (
        _rule(
            "Readers of committed records end before the first open transaction, at leaders and followers",
            "open_transactions_are_readable",
            "delayed_fetches_read_open_transactions",
            "followers_show_open_transactions",
            "a_reader_at_the_stable_end_is_out_of_range",
        ),
        _rule(
            "So does ListOffsets, by its end and by a time",
            "list_offsets_passes_open_transactions",
            "times_are_found_in_open_transactions",
        ),
        _rule("A transaction is open until all in-sync replicas have its marker", "an_unreplicated_end_is_stable"),
        _rule(
            "Readers of committed records receive the aborted transactions that concern them, by their first offset",
            "aborted_transactions_are_not_listed",
            "followers_list_no_aborts",
            "followers_have_no_aborted_list",
            "ended_aborts_are_listed",
            "aborts_are_listed_by_their_end",
            "aborts_are_listed_for_all_readers",
        ),
        _rule(
            "A recovered log knows open and aborted transactions",
            "recovery_forgets_open_transactions",
            "recovery_forgets_aborted_transactions",
        ),
        _rule("Clients do not write control records", "clients_write_control_records"),
        _rule("An acknowledgement has the offset of its batch", "batches_are_acknowledged_at_the_start_of_the_log"),
        _rule(
            "Compaction respects open transactions, aborted records, markers and producers",
            "open_transactions_are_compacted",
            "aborted_records_replace_others",
            "markers_go_before_their_records",
            "compaction_forgets_producers",
        ),
        _rule("Tombstones stay for `delete.retention.ms`, for replicas that are away", "tombstones_go_at_once"),
        _rule(
            "A transaction that hangs is reported by its leader, and shown by coordinators and all replicas",
            "late_transactions_are_not_reported",
            "late_transactions_are_reported_by_followers",
            "followers_do_not_describe_producers",
            "open_transactions_have_no_start",
            "listings_ignore_the_state",
        ),
    ),
    "Requests that wait for the previous transaction (decision 0045)": (
        _rule("AddPartitionsToTxn of a client waits while a transaction completes", "requests_do_not_wait"),
        _rule("So does InitProducerId that aborts a transaction", "new_producers_do_not_wait"),
        _rule(
            "It is decided when the transaction is complete, or after a limited time",
            "requests_that_wait_are_forgotten",
            "requests_wait_for_ever",
        ),
        _rule("A connection that was given up meanwhile does not act", "given_up_requests_that_waited_act"),
    ),
    "Coordinators that were paused (decision 0042)": (
        _rule(
            "No request is answered from memory by a coordinator that may have a successor",
            "a_deposed_coordinator_answers_from_memory",
            "a_deposed_coordinator_refuses_an_end",
            "a_deposed_coordinator_adds_partitions",
            "a_deposed_coordinator_fences_a_recovery",
            "a_deposed_coordinator_knows_all_producers",
        ),
        _rule("Neither is the question of a partition leader", "a_deposed_coordinator_verifies_partitions"),
        _rule(
            "Nor DescribeTransactions, by which Spark's sink decides a batch",
            "a_deposed_coordinator_describes_transactions",
        ),
        _rule("Nor a request for stable offsets", "a_deposed_group_coordinator_returns_offsets"),
        _rule(
            "A fetch confirms the leader at the time of the fetch before it",
            "the_arrival_of_a_fetch_confirms_the_leader",
            "the_last_fetch_of_a_session_confirms_the_leader",
            "a_fetch_without_a_session_confirms_the_leader",
        ),
        _rule("A correction of the wall clock confirms nothing", "the_wall_clock_confirms_the_leader"),
        _rule("An election confirms nothing", "an_election_confirms_the_leader"),
        _rule("A confirmation lasts for three fifths of a session", "a_confirmation_lasts_for_a_session"),
    ),
}


def render() -> str:
    lines = [_HEAD]
    for title, rules in RULES.items():
        lines += [f"## {title}\n", "| rule | mutant | caught by |", "|---|---|---|"]
        for rule in rules:
            for number, name in enumerate(rule.mutants):
                mutant = TRANSACTION_MUTANTS[name]
                catcher = mutant.aim or f"random faults, from seed {mutant.first} on"
                lines.append(f"| {rule.text if number == 0 else ''} | `{name}` | {catcher} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n" + _LAST
