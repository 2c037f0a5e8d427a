"""Missing checks of authorization and of brokers' proofs: each must be caught by runs of level 2.

`GUARD_MUTANTS` belong to runs with an authorizer, `PROOF_MUTANTS` to those whose brokers prove themselves instead.
"""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant

_A: Final = "klamm.apis."
_ACCESS: Final = "(ctx.principal, ctx.client_host, ctx.peer_broker_id, broker.acls.authorizer.rules)"


def _unguarded(module: str, old: str = "guard=_GUARD", seeds: int = 2) -> Mutant:
    return Mutant(_A + module, old, "guard=None", seeds)


def _without_group(module: str) -> Mutant:
    """The second check of a request in a transaction is missing."""
    check = "        Needs(ResourceType.GROUP, AclOperation.READ, lambda req: req.group_id, _refused),\n"
    return Mutant(_A + module, check, "", 1)


def _without_topics(module: str, message: str) -> Mutant:
    """The last check of a request with topics is missing."""
    check = (
        "        each_topic(\n"
        "            AclOperation.READ,\n"
        f"            lambda row, error: {message}Partition(partition_index=row.partition_index, error_code=error),\n"
        f"            {message}Topic,\n"
        "        ),\n"
    )
    return Mutant(_A + module, check, "", 1)


GUARD_MUTANTS: Final[dict[str, Mutant]] = {
    "leader_and_isr_of_anyone": _unguarded("leader_and_isr"),
    "update_metadata_of_anyone": _unguarded("update_metadata"),
    "stop_replica_of_anyone": _unguarded("stop_replica"),
    "controlled_shutdown_of_anyone": _unguarded("controlled_shutdown"),
    "allocate_producer_ids_of_anyone": _unguarded("allocate_producer_ids"),
    "alter_partition_of_anyone": _unguarded("alter_partition"),
    "txn_markers_of_anyone": _unguarded("write_txn_markers", "guard=_Guard()"),
    "add_partitions_to_txn_of_anyone": _unguarded("add_partitions_to_txn"),
    "follower_fetch_of_anyone": Mutant(
        _A + "fetch",
        "is_follower and is_peer(broker, ctx, params.replica_id)",
        "is_follower",
        2,
    ),
    "every_peer_is_believed": Mutant(
        _A + "access",
        "        return may_on_cluster(broker, ctx, _CLUSTER_ACTION, is_probe=is_probe)\n",
        "        return True\n",
        2,
    ),
    "produce_is_not_checked": _unguarded("produce", "guard=_Guard()"),
    "denied_requests_are_accepted_again": Mutant(
        _A + "access",
        "    is_allowed = authorizer.remembered.get((principal, host, operation, kind, name))\n",
        "    is_allowed = (principal, host, operation, kind, name) in authorizer.remembered or None\n",
        1,
    ),
    "list_offsets_is_not_checked": _unguarded("list_offsets"),
    "offset_commit_is_not_checked": _unguarded("offset_commit"),
    "epochs_are_shown_to_anyone": _unguarded("offset_for_leader_epoch", "guard=_Guard()"),
    "fetch_is_not_checked": Mutant(
        _A + "fetch",
        "name is None or may_read(name)",
        "True",
        2,
    ),
    "delete_records_is_not_checked": _unguarded("delete_records"),
    "offset_fetch_is_not_checked": Mutant(
        _A + "offset_fetch",
        "if broker.acls is not None and not may(broker, ctx, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):",
        "if False:",
        2,
    ),
    "join_group_is_not_checked": _unguarded("join_group"),
    "leave_group_is_not_checked": _unguarded("leave_group"),
    "delete_groups_is_not_checked": _unguarded("delete_groups"),
    "init_producer_id_is_not_checked": _unguarded("init_producer_id"),
    "end_txn_is_not_checked": _unguarded("end_txn"),
    "txn_offset_commit_is_not_checked": _unguarded("txn_offset_commit"),
    "reassignments_of_anyone": _unguarded("alter_partition_reassignments"),
    "elections_of_anyone": _unguarded("elect_leaders"),
    "entries_of_anyone": _unguarded("create_acls"),
    "users_of_anyone": _unguarded("alter_user_scram_credentials"),
    "metadata_is_not_hidden": Mutant(
        _A + "metadata",
        "        if not may(self._broker, self._ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, name):\n",
        "        if False:\n",
        2,
    ),
    "create_topics_is_not_checked": Mutant(
        _A + "create_topics", "    if not may_create(topic.name):\n", "    if False:\n", 1
    ),
    "delete_topics_is_not_checked": Mutant(
        _A + "delete_topics",
        "    if may(broker, ctx, AclOperation.DELETE, ResourceType.TOPIC, name):\n",
        "    if True:\n",
        1,
    ),
    "create_partitions_is_not_checked": _unguarded("create_partitions", seeds=1),
    "configs_of_topics_are_not_checked": Mutant(
        _A + "config_resources",
        "        if not may(broker, ctx, operation, AclResourceType.TOPIC, resource.name):\n",
        "        if False:\n",
        1,
    ),
    "configs_of_brokers_are_not_checked": Mutant(
        _A + "config_resources", "    elif not may_on_cluster(broker, ctx, operation):\n", "    elif False:\n", 1
    ),
    "describe_configs_is_not_checked": Mutant(
        _A + "describe_configs",
        "            check_access(broker, ctx, resource, AclOperation.DESCRIBE_CONFIGS)\n",
        "            pass\n",
        1,
    ),
    "alter_configs_is_not_checked": Mutant(
        _A + "alter_configs", "        check_access(broker, ctx, key_of(resource), AclOperation.ALTER_CONFIGS)\n", "", 1
    ),
    "incremental_alter_configs_is_not_checked": Mutant(
        _A + "incremental_alter_configs", "        check_access(broker, ctx, key, AclOperation.ALTER_CONFIGS)\n", "", 1
    ),
    "sync_group_is_not_checked": _unguarded("sync_group", seeds=1),
    "heartbeat_is_not_checked": _unguarded("heartbeat", seeds=1),
    "find_coordinator_is_not_checked": Mutant(
        _A + "find_coordinator",
        "    if kind is not None and not may(broker, ctx, AclOperation.DESCRIBE, kind, key):\n",
        "    if False:\n",
        1,
    ),
    "describe_groups_is_not_checked": _unguarded("describe_groups", seeds=1),
    "offset_delete_is_not_checked": _unguarded("offset_delete", seeds=1),
    "add_offsets_to_txn_is_not_checked": _unguarded("add_offsets_to_txn", seeds=1),
    "describe_transactions_is_not_checked": Mutant(
        _A + "describe_transactions",
        "    if not may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):\n",
        "    if False:\n",
        1,
    ),
    "entries_are_deleted_by_anyone": _unguarded("delete_acls", seeds=1),
    "entries_are_shown_to_anyone": _unguarded("describe_acls", seeds=1),
    "quotas_of_anyone": _unguarded("alter_client_quotas", seeds=1),
    "log_dirs_are_shown_to_anyone": _unguarded("describe_log_dirs", seeds=1),
    "users_are_shown_to_anyone": _unguarded("describe_user_scram_credentials", seeds=1),
    "quotas_are_shown_to_anyone": _unguarded("describe_client_quotas", seeds=1),
    "reassignments_are_shown_to_anyone": _unguarded("list_partition_reassignments", seeds=1),
    "log_dirs_are_changed_by_anyone": _unguarded("alter_replica_log_dirs", seeds=1),
    "producers_are_shown_to_anyone": Mutant(
        _A + "describe_producers",
        "    if not may(broker, ctx, AclOperation.READ, ResourceType.TOPIC, topic):\n",
        "    if False:\n",
        1,
    ),
    "all_groups_are_listed": Mutant(
        _A + "list_groups",
        "    if not may_on_cluster(broker, ctx, AclOperation.DESCRIBE, is_probe=True):\n",
        "    if False:\n",
        1,
    ),
    "ids_disclose_names": Mutant(
        _A + "delete_topics",
        "    if asked.by_id and not may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, name):\n",
        "    if False:\n",
        1,
    ),
    "all_topics_are_listed": Mutant(
        _A + "metadata",
        "        if may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, state.name, is_probe=True):\n",
        "        if True:\n",
        1,
    ),
    "offsets_of_hidden_topics_are_shown": Mutant(
        _A + "offset_fetch",
        "part if broker.acls is None else [tp for tp in part if may_describe(tp.topic)]",
        "part",
        1,
    ),
    "produce_with_any_transactional_id": Mutant(
        _A + "produce",
        "and not may(broker, ctx, _WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)",
        "and False",
        1,
    ),
    "hidden_transactions_are_listed": Mutant(_A + "list_transactions", "if broker.acls is not None:", "if False:", 1),
    "topics_of_transactions_are_shown": Mutant(
        _A + "describe_transactions", "    if broker.acls is not None:\n", "    if False:\n", 1
    ),
    "offsets_of_any_topic_are_committed": _without_topics("offset_commit", "OffsetCommitResponse"),
    "offsets_of_any_topic_are_deleted": _without_topics("offset_delete", "OffsetDeleteResponse"),
    "offsets_of_any_topic_in_transactions": _without_topics("txn_offset_commit", "TxnOffsetCommitResponse"),
    "offsets_of_any_group_in_transactions": _without_group("txn_offset_commit"),
    "any_group_is_added_to_transactions": _without_group("add_offsets_to_txn"),
    "any_topic_is_added_to_transactions": Mutant(
        _A + "add_partitions_to_txn",
        "broker.acls is None or may(broker, ctx, AclOperation.WRITE, ResourceType.TOPIC, topic)",
        "True",
        1,
    ),
    "partitions_are_added_to_any_transaction": Mutant(
        _A + "add_partitions_to_txn", "None if req.transactions else req.v3_and_below_transactional_id", "None", 1
    ),
    "everyone_may_be_idempotent": Mutant(_A + "init_producer_id", "        _MayBeIdempotent(),\n", "", 1),
    "idempotence_is_not_denied": Mutant(
        "klamm.security.acl.rules",
        "        if (PatternType.LITERAL, WILDCARD) in denied:\n            return False\n",
        "",
        1,
    ),
    "configs_of_new_topics_are_shown": Mutant(
        _A + "create_topics",
        "    if not may(broker, ctx, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name, is_probe=True):\n",
        "    if False:\n",
        1,
    ),
    "metadata_creates_for_anyone": Mutant(
        _A + "metadata",
        "        if broker.acls is not None and not _may_create(broker, ctx, name):\n",
        "        if False:\n",
        1,
    ),
    "metadata_reports_all_operations_on_topics": Mutant(
        _A + "metadata",
        "operations(self._broker, self._ctx, ResourceType.TOPIC, topic.name, all_of_them=TOPIC_OPERATIONS)",
        "TOPIC_OPERATIONS",
        1,
    ),
    "metadata_reports_all_operations_on_the_cluster": Mutant(
        _A + "metadata",
        "cluster_operations(self._broker, self._ctx, all_of_them=CLUSTER_OPERATIONS)",
        "CLUSTER_OPERATIONS",
        1,
    ),
    "describe_cluster_reports_all_operations": Mutant(
        _A + "describe_cluster",
        "cluster_operations(broker, ctx, all_of_them=CLUSTER_OPERATIONS)",
        "CLUSTER_OPERATIONS",
        1,
    ),
    "describe_groups_reports_all_operations": Mutant(
        _A + "describe_groups",
        "access.operations(broker, ctx, ResourceType.GROUP, group_id, all_of_them=_GROUP_OPERATIONS)",
        "_GROUP_OPERATIONS",
        1,
    ),
    "operations_without_describe": Mutant(
        _A + "access", "    if not may_on_cluster(broker, ctx, AclOperation.DESCRIBE):\n", "    if False:\n", 1
    ),
    "prefixes_are_ignored": Mutant(
        "klamm.security.acl.rules", "        for length in self.lengths:\n", "        for length in ():\n", 1
    ),
    "wildcards_are_ignored": Mutant(
        "klamm.security.acl.rules",
        "        if (rules := literal.get(WILDCARD)) is not None:\n",
        "        if (rules := literal.get(WILDCARD)) is not None and name == WILDCARD:\n",
        1,
    ),
    "nothing_is_implied": Mutant("klamm.security.acl.rules", "_IMPLIED_BY.get(operation, ())", "()", 1),
    "denials_imply_others": Mutant(
        "klamm.security.acl.rules",
        "not denied & _DENIED_BY[operation]",
        "not denied & _ALLOWED_BY[operation]",
        1,
    ),
    "everyone_is_a_super_user": Mutant(
        "klamm.security.acl.authorizer", "if principal in self.super_users:", "if True:", 1
    ),
    "super_users_are_ignored": Mutant(
        "klamm.security.acl.authorizer", "if principal in self.super_users:", "if False:", 1
    ),
    "denials_are_ignored": Mutant(
        "klamm.security.acl.rules", "return not denied & _DENIED_BY[operation] and bool(", "return bool(", 2
    ),
    "hosts_are_ignored": Mutant(
        "klamm.security.acl.rules",
        "            bits[principal, host] = bits.get((principal, host), 0) | _bit(operation)\n",
        "            bits[principal, WILDCARD] = bits.get((principal, WILDCARD), 0) | _bit(operation)\n",
        2,
    ),
    "principals_are_ignored": Mutant(
        "klamm.security.acl.rules",
        "            bits[principal, host] = bits.get((principal, host), 0) | _bit(operation)\n",
        "            bits[ANY_PRINCIPAL, host] = bits.get((ANY_PRINCIPAL, host), 0) | _bit(operation)\n",
        1,
    ),
    "entries_for_users_are_ignored": Mutant(
        "klamm.security.acl.rules",
        "asked = (principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host)",
        "asked = (ANY_PRINCIPAL, host)",
        1,
    ),
    "entries_for_others_close_nothing": Mutant(
        "klamm.security.acl.rules",
        "bool(allowed & _ALLOWED_BY[operation])",
        "bool(allowed & _ALLOWED_BY[operation] or if_none_found and not allowed | denied)",
        1,
    ),
    "everyone_is_allowed_without_entries": Mutant(
        "klamm.security.acl.authorizer",
        "self._allows_without_rules = allow_everyone_if_no_acl_found",
        "self._allows_without_rules = True",
        1,
        1,
    ),
    "nobody_is_allowed_without_entries": Mutant(
        "klamm.security.acl.authorizer",
        "self._allows_without_rules = allow_everyone_if_no_acl_found",
        "self._allows_without_rules = False",
        1,
    ),
    "unreadable_entries_deny_nothing": Mutant(
        "klamm.acl_changes", "        return _DENY_ALL\n", "        return frozenset()\n", 1
    ),
    "sessions_of_other_users": Mutant(
        _A + "fetch_context",
        _ACCESS,
        "(ctx.client_host, ctx.peer_broker_id, broker.acls.authorizer.rules)",
        1,
    ),
    "sessions_of_other_hosts": Mutant(
        _A + "fetch_context",
        _ACCESS,
        "(ctx.principal, ctx.peer_broker_id, broker.acls.authorizer.rules)",
        1,
    ),
    "sessions_outlive_their_rules": Mutant(
        _A + "fetch_context",
        _ACCESS,
        "(ctx.principal, ctx.client_host, ctx.peer_broker_id)",
        1,
    ),
    "anyone_has_the_session_of_a_follower": Mutant(
        _A + "fetch",
        "return replica_id >= 0 and (broker.acls is None or is_peer(broker, ctx, replica_id, is_probe=True))",
        "return replica_id >= 0",
        1,
    ),
    "a_proof_replaces_the_login": Mutant(
        "klamm.network.gate",
        "        if exchange is None:\n            return self._begin(",
        "        if exchange is None or (key == HANDSHAKE and mechanism_of(frame, version) == KLAMM_PEER):\n"
        "            return self._begin(",
        1,
        also=(("security.peer is not None and not self.is_closed:", "security.peer is not None:"),),
    ),
    "decisions_outlive_their_rules": Mutant(
        "klamm.security.acl.authorizer",
        "        self._rules = rules\n        self.remembered = {}\n",
        "        self._rules = rules\n",
        2,
    ),
    "notices_are_ignored": Mutant(
        "klamm.acl_changes", "        self._is_dirty = True\n        self._wake()\n", "        pass\n", 2
    ),
}


def _anonymous(module: str, sender: str) -> Mutant:
    """The request does not have to name the broker that sends it."""
    return Mutant(_A + module, f"sender=lambda req: req.{sender}", "sender=lambda req: None", 1)


PROOF_MUTANTS: Final[dict[str, Mutant]] = {
    "proofs_are_not_compared": Mutant(
        "klamm.security.sasl.scram_exchange",
        "        if not compare_digest(h(self._hash, client_key), credential.stored_key):\n",
        "        if False:\n",
        1,
    ),
    "leader_and_isr_without_proof": _unguarded("leader_and_isr", seeds=1),
    "update_metadata_without_proof": _unguarded("update_metadata", seeds=1),
    "stop_replica_without_proof": _unguarded("stop_replica", seeds=1),
    "controlled_shutdown_without_proof": _unguarded("controlled_shutdown", seeds=1),
    "allocate_producer_ids_without_proof": _unguarded("allocate_producer_ids", seeds=1),
    "alter_partition_without_proof": _unguarded("alter_partition", seeds=1),
    "txn_markers_without_proof": _unguarded("write_txn_markers", "guard=_Guard()", seeds=1),
    "add_partitions_to_txn_without_proof": _unguarded("add_partitions_to_txn", seeds=1),
    "epochs_without_proof": _unguarded("offset_for_leader_epoch", "guard=_Guard()", seeds=1),
    "follower_fetch_without_proof": _unguarded("fetch", "guard=_FollowerGuard()", seeds=1),
    "a_broker_speaks_for_any": Mutant(
        _A + "access", "peer is not None and sender in (None, peer)", "peer is not None", 1
    ),
    "a_broker_fetches_as_another_if_everyone_may": Mutant(
        _A + "fetch",
        "is_follower and is_peer(broker, ctx, params.replica_id)",
        "is_follower and is_peer(broker, ctx)",
        1,
        1,
    ),
    "an_authorizer_without_entries_replaces_the_proof": Mutant(
        _A + "access",
        "    return acls is None or acls.authorizer.is_open(ctx.channel.principal, _CLUSTER, CLUSTER_NAME)\n",
        "    return acls is None\n",
        1,
        1,
    ),
    "any_broker_is_the_controller": _anonymous("leader_and_isr", "controller_id"),
    "any_broker_sends_metadata": _anonymous("update_metadata", "controller_id"),
    "any_broker_stops_replicas": _anonymous("stop_replica", "controller_id"),
    "a_broker_shuts_down_another": _anonymous("controlled_shutdown", "broker_id"),
    "a_broker_takes_producer_ids_of_another": _anonymous("allocate_producer_ids", "broker_id"),
    "a_broker_changes_the_isr_of_another": _anonymous("alter_partition", "broker_id"),
    "a_broker_asks_as_another_follower": _anonymous("offset_for_leader_epoch", "replica_id"),
    "a_broker_fetches_as_another": Mutant(_A + "fetch", "is_peer(broker, ctx, replica_id)", "is_peer(broker, ctx)", 1),
}
