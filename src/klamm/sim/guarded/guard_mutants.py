"""Missing checks of authorization: each must be caught by guarded runs of level 2."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant

_A: Final = "klamm.apis."


def _unguarded(module: str, old: str = "guard=_GUARD", seeds: int = 2) -> Mutant:
    return Mutant(_A + module, old, "guard=None", seeds)


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
        "is_follower and may_on_cluster(broker, ctx, AclOperation.CLUSTER_ACTION)",
        "is_follower",
        2,
    ),
    "every_peer_is_believed": Mutant(
        _A + "access",
        "        return may_on_cluster(broker, ctx, _CLUSTER_ACTION)\n",
        "        return True\n",
        2,
    ),
    "produce_is_not_checked": _unguarded("produce", "guard=_Guard()"),
    "list_offsets_is_not_checked": _unguarded("list_offsets"),
    "offset_commit_is_not_checked": _unguarded("offset_commit"),
    "metadata_is_not_hidden": Mutant(
        _A + "metadata",
        "        if not may(self._broker, self._ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, name):\n",
        "        if False:\n",
        2,
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
    "decisions_outlive_their_rules": Mutant(
        "klamm.security.acl.authorizer",
        "        self._rules = rules\n        self._remembered = {}\n",
        "        self._rules = rules\n",
        2,
    ),
    "notices_are_ignored": Mutant(
        "klamm.acl_changes", "        self._is_dirty = True\n        self._wake()\n", "        pass\n", 2
    ),
}
