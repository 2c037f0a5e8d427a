"""DeleteRecords (key 21), versions 0-2, flexible from 2.

Moves the log start offset of partitions forward; -1 means the high watermark.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, String, Struct, message


@message
class DeleteRecordsPartition(Struct):
    partition_index: Int32
    offset: Int64


@message
class DeleteRecordsTopic(Struct):
    name: String
    partitions: Array[DeleteRecordsPartition]


@message
class DeleteRecordsRequest(Message):
    KEY = 21
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    topics: Array[DeleteRecordsTopic]
    timeout_ms: Int32


@message
class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


@message
class DeleteRecordsTopicResult(Struct):
    name: String
    partitions: Array[DeleteRecordsPartitionResult]


@message
class DeleteRecordsResponse(Message):
    KEY = 21
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    throttle_time_ms: Int32 = 0
    topics: Array[DeleteRecordsTopicResult]
