"""ListOffsets (key 2), versions 0-9, flexible from 6.

Finds offsets by timestamp: -1 the latest, -2 the earliest, -3 the one with the greatest timestamp (v7). v0 answers
with a list of offsets, later versions with one.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int8, Int16, Int32, Int64, Message, String, Struct, message, since


@message
class ListOffsetsPartition(Struct):
    partition_index: Int32
    current_leader_epoch: Int32 = since(4, default=-1)
    timestamp: Int64
    max_num_offsets: Int32 = since(0, until=0, default=1)


@message
class ListOffsetsTopic(Struct):
    name: String
    partitions: Array[ListOffsetsPartition]


@message
class ListOffsetsRequest(Message):
    KEY = 2
    FLEXIBLE = 6
    VERSIONS = range(0, 10)

    replica_id: Int32
    isolation_level: Int8 = since(2, default=0)
    topics: Array[ListOffsetsTopic]


@message
class ListOffsetsPartitionResponse(Struct):
    partition_index: Int32
    error_code: Int16
    old_style_offsets: Array[Int64] = since(0, until=0, default=())
    timestamp: Int64 = since(1, default=-1)
    offset: Int64 = since(1, default=-1)
    leader_epoch: Int32 = since(4, default=-1)


@message
class ListOffsetsTopicResponse(Struct):
    name: String
    partitions: Array[ListOffsetsPartitionResponse]


@message
class ListOffsetsResponse(Message):
    KEY = 2
    FLEXIBLE = 6
    VERSIONS = range(0, 10)

    throttle_time_ms: Int32 = since(2, default=0)
    topics: Array[ListOffsetsTopicResponse]
