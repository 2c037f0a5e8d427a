"""The requests of the probe: for every API ordinary ones and odd ones, as values by field name.

A field that a version does not have is left out there; a field that is not named gets the least value of its type.
Requests are sent in this order, each at every version, to a broker with the topics `ta` (two partitions, one record),
`tc` (compacted) and `td` (for odd batches) and with the group `g`, which has committed offsets for `ta`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import crc32c

from klamm.protocol.record_batch import Record, build_batch

ODD_NAMES: Final = ("", ".", "a/b", "none", "__consumer_offsets")
ODD_GROUPS: Final = ("", "none")
BATCH: Final = build_batch([Record(timestamp=1_700_000_000_000, value=b"v")])
Fields: TypeAlias = dict[str, Any]
ROW: TypeAlias = tuple[str, str, Fields]


def with_attributes(bits: int) -> bytes:
    """A batch with further attribute bits and the checksum that belongs to them."""
    batch = bytearray(BATCH)
    (attributes,) = struct.unpack_from(">H", batch, 21)
    struct.pack_into(">H", batch, 21, attributes | bits)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def rows() -> Iterator[ROW]:
    """(API, what is odd about the request, its fields)."""
    yield from _data()
    yield from _groups()
    yield from _offsets()
    yield from _topics()
    yield from _configs()
    yield from _cluster()


def _one(name: str, index: int = 0, **fields: Any) -> Fields:
    """One topic with one partition, under all the names that messages have for them."""
    partition = {"index": index, "partition": index, "partition_index": index, **fields}
    partitions = {key: [partition] for key in ("partitions", "partition_data")}
    return {"name": name, "topic": name, **partitions}


def _data() -> Iterator[ROW]:
    for name in ("ta", *ODD_NAMES):
        for index in (0, 9, -1):
            what = f"{name!r} {index}"
            sent = _one(name, index, records=BATCH)
            yield "Produce", what, {"acks": 1, "timeout_ms": 1000, "transactional_id": None, "topic_data": [sent]}
            yield "Fetch", what, _fetch(_one(name, index))
            yield "ListOffsets", what, {"replica_id": -1, "topics": [_one(name, index, timestamp=-1)]}
            asked = _one(name, index, leader_epoch=0, current_leader_epoch=-1)
            yield "OffsetForLeaderEpoch", what, {"replica_id": -1, "topics": [asked]}
            yield "DeleteRecords", what, {"timeout_ms": 1000, "topics": [_one(name, index, offset=0)]}
            yield "DescribeProducers", what, {"topics": [{"name": name, "partition_indexes": [index]}]}
    for acks in (2, -2):
        yield (
            "Produce",
            f"acks {acks}",
            {"acks": acks, "transactional_id": None, "topic_data": [_one("ta", records=BATCH)]},
        )
    for what, records in (("empty records", b""), ("garbage", b"x" * 80), ("short", BATCH[:40])):
        fields = {"acks": 1, "transactional_id": None, "topic_data": [_one("ta", records=records)]}
        yield "Produce", what, fields
    odd = [(f"attribute bit {bit}", with_attributes(1 << bit)) for bit in (3, *range(5, 16))]
    for timestamp in (-5, -2, -1, 2**63 - 1):
        odd.append((f"timestamp {timestamp}", build_batch([Record(timestamp=timestamp, value=b"v")])))
    for what, records in odd:
        fields = {"acks": 1, "timeout_ms": 1000, "transactional_id": None, "topic_data": [_one("td", records=records)]}
        yield "Produce", what, fields
    for offset in (-1, -2, 10**6):
        yield "Fetch", f"offset {offset}", _fetch(_one("ta", fetch_offset=offset))
        yield "DeleteRecords", f"offset {offset}", {"timeout_ms": 1000, "topics": [_one("ta", offset=offset)]}
    for epoch in (0, 5, -2):
        yield "Fetch", f"epoch {epoch}", _fetch(_one("ta", current_leader_epoch=epoch))
        asked = _one("ta", timestamp=-1, current_leader_epoch=epoch)
        yield "ListOffsets", f"epoch {epoch}", {"replica_id": -1, "topics": [asked]}
        asked = _one("ta", leader_epoch=0, current_leader_epoch=epoch)
        yield "OffsetForLeaderEpoch", f"epoch {epoch}", {"replica_id": -1, "topics": [asked]}
    for timestamp in (-1, -2, -3, -4, -5, -6, 0, 2**62):
        asked = _one("ta", timestamp=timestamp, max_num_offsets=1, current_leader_epoch=-1)
        yield "ListOffsets", f"time {timestamp}", {"replica_id": -1, "topics": [asked]}
    for session, epoch in ((0, 5), (77, 1), (77, 0), (77, -1), (-1, 0)):
        fields = _fetch(_one("ta")) | {"session_id": session, "session_epoch": epoch}
        yield "Fetch", f"session {session} {epoch}", fields
    yield "Fetch", "no topics", _fetch()
    yield "Fetch", "isolation 7", _fetch(_one("ta")) | {"isolation_level": 7}


def _fetch(*topics: Fields) -> Fields:
    for topic in topics:
        partition = topic["partitions"][0]
        partition.setdefault("current_leader_epoch", -1)
        partition["partition_max_bytes"] = 1000
    return {
        "replica_id": -1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": list(topics),
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
    }


def _groups() -> Iterator[ROW]:
    for group in ("g", *ODD_GROUPS):
        who: Fields = {"group_id": group, "member_id": "m", "generation_id": 1, "group_instance_id": None}
        what = repr(group)
        yield "Heartbeat", what, who
        yield "SyncGroup", what, who | {"protocol_type": None, "protocol_name": None}
        yield "LeaveGroup", what, who | {"members": [{"member_id": "m", "group_instance_id": None, "reason": None}]}
        yield "DescribeGroups", what, {"groups": [group]}
        for timeout in (0, 10_000, 10**9):
            fields: Fields = {
                **who,
                "session_timeout_ms": timeout,
                "rebalance_timeout_ms": 1000,
                "protocol_type": "consumer",
            }
            fields |= {"member_id": "unknown", "reason": None, "protocols": [{"name": "range", "metadata": b""}]}
            yield "JoinGroup", f"{what} timeout {timeout}", fields
        for kind in ("", "consumer"):
            fields = {**who, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 1000, "protocol_type": kind}
            yield "JoinGroup", f"{what} no protocols, type {kind!r}", fields | {"member_id": "", "reason": None}
    for key in ("g", ""):
        for key_type in (0, 1, 7):
            yield (
                "FindCoordinator",
                f"{key!r} {key_type}",
                {"key": key, "key_type": key_type, "coordinator_keys": [key]},
            )
    for states in ((), ("Empty",), ("nonsense",)):
        yield "ListGroups", str(states), {"states_filter": list(states)}
    yield "ListGroups", "types", {"types_filter": ["nonsense"]}


def _offsets() -> Iterator[ROW]:
    for name in ("ta", *ODD_NAMES):
        for index in (0, 9):
            what = f"{name!r} {index}"
            partition = _one(name, index, committed_offset=1, committed_metadata="")
            commit: Fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "group_instance_id": None}
            yield "OffsetCommit", what, commit | {"topics": [partition]}
            asked = {"name": name, "partition_indexes": [index]}
            of_group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": [asked]}
            yield "OffsetFetch", what, {"group_id": "g", "topics": [asked], "groups": [of_group]}
    for group in ODD_GROUPS:
        commit = {
            "group_id": group,
            "generation_id_or_member_epoch": 3,
            "member_id": "m",
            "group_instance_id": None,
        }
        commit["topics"] = [_one("ta", committed_offset=1, committed_metadata="")]
        yield "OffsetCommit", f"group {group!r}", commit
        asked = {"name": "ta", "partition_indexes": [0]}
        groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": [asked]}]
        yield "OffsetFetch", f"group {group!r}", {"group_id": group, "topics": [asked], "groups": groups}
        yield "OffsetDelete", f"group {group!r}", {"group_id": group, "topics": [_one("ta")]}
        yield "DeleteGroups", f"group {group!r}", {"groups_names": [group]}
    commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    long = _one("ta", committed_offset=1, committed_metadata="x" * 5000)
    yield "OffsetCommit", "long metadata", commit | {"topics": [long]}
    negative = _one("ta", committed_offset=-5, committed_metadata=None)
    yield "OffsetCommit", "negative offset", commit | {"topics": [negative]}
    for name in ODD_NAMES:
        yield "OffsetDelete", repr(name), {"group_id": "g", "topics": [_one(name)]}
    yield "InitProducerId", "new", {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    yield "InitProducerId", "empty transactional id", {"transactional_id": "", "producer_id": -1, "producer_epoch": -1}
    for producer_id, epoch in ((5, -1), (-1, 5), (5, 5)):
        fields = {"transactional_id": None, "producer_id": producer_id, "producer_epoch": epoch}
        yield "InitProducerId", f"{producer_id} {epoch}", fields


def _topics() -> Iterator[ROW]:
    base = {"timeout_ms": 10_000, "validate_only": True}
    for name in ("ta", "new-topic", *ODD_NAMES, "x" * 250, "__cluster_metadata"):
        for partitions, factor in ((1, 1), (0, 1), (-1, -1), (1, 0), (1, 9)):
            topic: Fields = {"name": name, "num_partitions": partitions, "replication_factor": factor}
            yield "CreateTopics", f"{name[:20]!r} {partitions} {factor}", base | {"topics": [topic]}
        fields = {"timeout_ms": 1000, "topic_names": [name], "topics": [{"name": name}]}
        if name not in ("ta", "__consumer_offsets"):
            yield "DeleteTopics", repr(name[:20]), fields
        for count in (0, 1, 3):
            grown = {"name": name, "count": count, "assignments": None}
            yield "CreatePartitions", f"{name[:20]!r} {count}", base | {"topics": [grown]}
        yield "Metadata", repr(name[:20]), {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        yield "DescribeLogDirs", repr(name[:20]), {"topics": [{"topic": name, "partitions": [0, 9]}]}
    for what, assignments in (
        ("no brokers", [{"partition_index": 0, "broker_ids": []}]),
        ("unknown broker", [{"partition_index": 0, "broker_ids": [77]}]),
        ("a gap", [{"partition_index": 1, "broker_ids": [1]}]),
        ("one broker twice", [{"partition_index": 0, "broker_ids": [1, 1]}]),
    ):
        topic = {"name": "assigned", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        yield "CreateTopics", what, base | {"topics": [topic]}
    for key, value in (("retention.ms", "x"), ("nonsense", "1"), ("retention.ms", None), ("cleanup.policy", "maybe")):
        topic = {"name": "configured", "num_partitions": 1, "replication_factor": 1}
        topic["configs"] = [{"name": key, "value": value}]
        yield "CreateTopics", f"{key}={value}", base | {"topics": [topic]}
    twice = {"name": "twice", "num_partitions": 1, "replication_factor": 1}
    yield "CreateTopics", "one topic twice", base | {"topics": [twice, twice]}
    names = {"topic_names": ["nowhere"] * 2, "topics": [{"name": "nowhere"}] * 2}
    yield "DeleteTopics", "one topic twice", {"timeout_ms": 1000, **names}
    yield "CreateTopics", "no topics", base


def _configs() -> Iterator[ROW]:
    resources = [(2, name) for name in ("ta", *ODD_NAMES)] + [(4, n) for n in ("1", "", "2", "x")]
    resources += [(8, n) for n in ("1", "", "2")] + [(n, "x") for n in (0, 1, 16, 32, 99)]
    for kind, name in resources:
        what = f"{kind} {name!r}"
        described = {"resource_type": kind, "resource_name": name, "configuration_keys": ["retention.ms"]}
        yield "DescribeConfigs", what, {"resources": [described]}
        for key, value in (("retention.ms", "1000"), ("nonsense", "1"), ("retention.ms", "x"), ("retention.ms", None)):
            resource: Fields = {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "value": value}],
            }
            fields = {"resources": [resource], "validate_only": True}
            yield "AlterConfigs", f"{what} {key}={value}", fields
            yield "IncrementalAlterConfigs", f"{what} {key}={value}", fields
    for operation in (1, 2, 3, 9):
        config: Fields = {"name": "cleanup.policy", "value": "compact", "config_operation": operation}
        resource = {"resource_type": 2, "resource_name": "ta", "configs": [config]}
        yield "IncrementalAlterConfigs", f"operation {operation}", {"resources": [resource], "validate_only": True}
    for key, value in (("listeners", "PLAINTEXT://:1"), ("num.io.threads", "500"), ("broker.id", "5")):
        for name in ("1", ""):
            config = {"resource_type": 4, "resource_name": name, "configs": [{"name": key, "value": value}]}
            fields = {"resources": [config], "validate_only": True}
            yield "IncrementalAlterConfigs", f"{name!r} {key}={value}", fields


def _cluster() -> Iterator[ROW]:
    yield "DescribeCluster", "brokers", {"endpoint_type": 1}
    yield "DescribeCluster", "controllers", {"endpoint_type": 2}
    yield "ApiVersions", "plain", {"client_software_name": "probe", "client_software_version": "1"}
    yield "ApiVersions", "odd name", {"client_software_name": "", "client_software_version": "-"}
    for kind in (0, 1, 7):
        for name in ("ta", "none", "a/b"):
            elected = [{"topic": name, "partitions": [0, 9]}]
            fields = {"election_type": kind, "timeout_ms": 1000, "topic_partitions": elected}
            yield "ElectLeaders", f"{kind} {name}", fields
    for name in ("ta", "none", "a/b"):
        for replicas in (None, [], [1], [77], [1, 1], [-1]):
            moved = {"name": name, "partitions": [{"partition_index": 0, "replicas": replicas}]}
            yield "AlterPartitionReassignments", f"{name} {replicas}", {"timeout_ms": 1000, "topics": [moved]}
        asked = [{"name": name, "partition_indexes": [0, 9]}]
        yield "ListPartitionReassignments", name, {"timeout_ms": 1000, "topics": asked}
    yield "ControlledShutdown", "unknown broker", {"broker_id": 77, "broker_epoch": -1}
    yield "AllocateProducerIds", "unknown broker", {"broker_id": 77, "broker_epoch": 5}
