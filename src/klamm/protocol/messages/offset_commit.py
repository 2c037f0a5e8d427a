"""OffsetCommit (key 8), versions 0-9, flexible from 8.

Stores the offsets of a consumer group. v0 carries no generation; a retention time exists in v2-4 only.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, NullableString, String, Struct, message, since


@message
class OffsetCommitRequestPartition(Struct):
    partition_index: Int32
    committed_offset: Int64
    commit_timestamp: Int64 = since(1, until=1, default=-1)
    committed_leader_epoch: Int32 = since(6, default=-1)
    committed_metadata: NullableString


@message
class OffsetCommitRequestTopic(Struct):
    name: String
    partitions: Array[OffsetCommitRequestPartition]


@message
class OffsetCommitRequest(Message):
    KEY = 8
    FLEXIBLE = 8
    VERSIONS = range(0, 10)

    group_id: String
    generation_id_or_member_epoch: Int32 = since(1, default=-1)
    member_id: String = since(1, default="")
    retention_time_ms: Int64 = since(2, until=4, default=-1)
    group_instance_id: NullableString = since(7, default=None)
    topics: Array[OffsetCommitRequestTopic]


@message
class OffsetCommitResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


@message
class OffsetCommitResponseTopic(Struct):
    name: String
    partitions: Array[OffsetCommitResponsePartition]


@message
class OffsetCommitResponse(Message):
    KEY = 8
    FLEXIBLE = 8
    VERSIONS = range(0, 10)

    throttle_time_ms: Int32 = since(3, default=0)
    topics: Array[OffsetCommitResponseTopic]
