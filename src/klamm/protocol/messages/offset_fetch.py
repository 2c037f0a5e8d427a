"""OffsetFetch (key 9), versions 0-9, flexible from 6.

Reads a group's committed offsets. Topics null means all of them (v2 and later); from v8 on one request asks for
several groups.
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    NullableArray,
    NullableString,
    String,
    Struct,
    message,
    since,
)


@message
class OffsetFetchRequestTopic(Struct):
    name: String
    partition_indexes: Array[Int32] = ()


@message
class OffsetFetchRequestTopics(Struct):
    name: String
    partition_indexes: Array[Int32] = ()


@message
class OffsetFetchRequestGroup(Struct):
    group_id: String
    member_id: NullableString = since(9, default=None)
    member_epoch: Int32 = since(9, default=-1)
    topics: NullableArray[OffsetFetchRequestTopics]


@message
class OffsetFetchRequest(Message):
    KEY = 9
    FLEXIBLE = 6
    VERSIONS = range(0, 10)

    group_id: String = since(0, until=7, default="")
    topics: NullableArray[OffsetFetchRequestTopic] = since(0, until=7, nullable=2, default=())
    groups: Array[OffsetFetchRequestGroup] = since(8, default=())
    require_stable: Bool = since(7, default=False)


@message
class OffsetFetchResponsePartition(Struct):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(5, default=-1)
    metadata: NullableString
    error_code: Int16


@message
class OffsetFetchResponseTopic(Struct):
    name: String
    partitions: Array[OffsetFetchResponsePartition]


@message
class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: NullableString
    error_code: Int16


@message
class OffsetFetchResponseTopics(Struct):
    name: String
    partitions: Array[OffsetFetchResponsePartitions]


@message
class OffsetFetchResponseGroup(Struct):
    group_id: String
    topics: Array[OffsetFetchResponseTopics]
    error_code: Int16 = 0


@message
class OffsetFetchResponse(Message):
    KEY = 9
    FLEXIBLE = 6
    VERSIONS = range(0, 10)

    throttle_time_ms: Int32 = since(3, default=0)
    topics: Array[OffsetFetchResponseTopic] = since(0, until=7, default=())
    error_code: Int16 = since(2, until=7, default=0)
    groups: Array[OffsetFetchResponseGroup] = since(8, default=())
