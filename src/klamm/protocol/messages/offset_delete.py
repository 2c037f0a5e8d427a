"""OffsetDelete (key 47), version 0, never flexible.

Deletes committed offsets of a group for topics that it no longer reads.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Message, String, Struct, message


@message
class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32


@message
class OffsetDeleteRequestTopic(Struct):
    name: String
    partitions: Array[OffsetDeleteRequestPartition]


@message
class OffsetDeleteRequest(Message):
    KEY = 47
    VERSIONS = range(0, 1)

    group_id: String
    topics: Array[OffsetDeleteRequestTopic]


@message
class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


@message
class OffsetDeleteResponseTopic(Struct):
    name: String
    partitions: Array[OffsetDeleteResponsePartition]


@message
class OffsetDeleteResponse(Message):
    KEY = 47
    VERSIONS = range(0, 1)

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: Array[OffsetDeleteResponseTopic]
