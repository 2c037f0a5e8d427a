"""Every message, one module per API.

`BY_KEY` maps an API key to its (request, response) classes; its first use imports all modules.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.protocol.wire import Message

    BY_KEY: dict[int, tuple[type[Message], type[Message]]]

MODULES: dict[int, tuple[str, str]] = {
    0: ("produce", "Produce"),
    1: ("fetch", "Fetch"),
    2: ("list_offsets", "ListOffsets"),
    3: ("metadata", "Metadata"),
    4: ("leader_and_isr", "LeaderAndIsr"),
    5: ("stop_replica", "StopReplica"),
    6: ("update_metadata", "UpdateMetadata"),
    7: ("controlled_shutdown", "ControlledShutdown"),
    8: ("offset_commit", "OffsetCommit"),
    9: ("offset_fetch", "OffsetFetch"),
    10: ("find_coordinator", "FindCoordinator"),
    11: ("join_group", "JoinGroup"),
    12: ("heartbeat", "Heartbeat"),
    13: ("leave_group", "LeaveGroup"),
    14: ("sync_group", "SyncGroup"),
    15: ("describe_groups", "DescribeGroups"),
    16: ("list_groups", "ListGroups"),
    17: ("sasl_handshake", "SaslHandshake"),
    18: ("api_versions", "ApiVersions"),
    19: ("create_topics", "CreateTopics"),
    20: ("delete_topics", "DeleteTopics"),
    21: ("delete_records", "DeleteRecords"),
    22: ("init_producer_id", "InitProducerId"),
    23: ("offset_for_leader_epoch", "OffsetForLeaderEpoch"),
    24: ("add_partitions_to_txn", "AddPartitionsToTxn"),
    25: ("add_offsets_to_txn", "AddOffsetsToTxn"),
    26: ("end_txn", "EndTxn"),
    27: ("write_txn_markers", "WriteTxnMarkers"),
    28: ("txn_offset_commit", "TxnOffsetCommit"),
    29: ("describe_acls", "DescribeAcls"),
    30: ("create_acls", "CreateAcls"),
    31: ("delete_acls", "DeleteAcls"),
    32: ("describe_configs", "DescribeConfigs"),
    33: ("alter_configs", "AlterConfigs"),
    34: ("alter_replica_log_dirs", "AlterReplicaLogDirs"),
    35: ("describe_log_dirs", "DescribeLogDirs"),
    36: ("sasl_authenticate", "SaslAuthenticate"),
    37: ("create_partitions", "CreatePartitions"),
    42: ("delete_groups", "DeleteGroups"),
    43: ("elect_leaders", "ElectLeaders"),
    44: ("incremental_alter_configs", "IncrementalAlterConfigs"),
    45: ("alter_partition_reassignments", "AlterPartitionReassignments"),
    46: ("list_partition_reassignments", "ListPartitionReassignments"),
    47: ("offset_delete", "OffsetDelete"),
    48: ("describe_client_quotas", "DescribeClientQuotas"),
    49: ("alter_client_quotas", "AlterClientQuotas"),
    50: ("describe_user_scram_credentials", "DescribeUserScramCredentials"),
    51: ("alter_user_scram_credentials", "AlterUserScramCredentials"),
    56: ("alter_partition", "AlterPartition"),
    60: ("describe_cluster", "DescribeCluster"),
    61: ("describe_producers", "DescribeProducers"),
    65: ("describe_transactions", "DescribeTransactions"),
    66: ("list_transactions", "ListTransactions"),
    67: ("allocate_producer_ids", "AllocateProducerIds"),
}
"""API key: its module and its name."""


def _load(module: str, api: str) -> tuple[type[Message], type[Message]]:
    loaded = import_module(f"{__name__}.{module}")
    return getattr(loaded, f"{api}Request"), getattr(loaded, f"{api}Response")


@cache
def request_class(api_key: int) -> type[Message]:
    """Return the request class of one API without importing the others."""
    return _load(*MODULES[api_key])[0]


def __getattr__(name: str) -> Any:
    if name != "BY_KEY":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    table = globals()["BY_KEY"] = {key: _load(module, api) for key, (module, api) in MODULES.items()}
    return table
