"""DescribeLogDirs (key 35), versions 0-4, flexible from 2.

Sizes and replicas of a broker's log directories; v4 adds the size of the volumes.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int16, Int32, Int64, Message, NullableArray, String, Struct, message, since


@message
class DescribableLogDirTopic(Struct):
    topic: String
    partitions: Array[Int32] = ()


@message
class DescribeLogDirsRequest(Message):
    KEY = 35
    FLEXIBLE = 2
    VERSIONS = range(0, 5)

    topics: NullableArray[DescribableLogDirTopic]


@message
class DescribeLogDirsPartition(Struct):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


@message
class DescribeLogDirsTopic(Struct):
    name: String
    partitions: Array[DescribeLogDirsPartition]


@message
class DescribeLogDirsResult(Struct):
    error_code: Int16
    log_dir: String
    topics: Array[DescribeLogDirsTopic]
    total_bytes: Int64 = since(4, default=-1)
    usable_bytes: Int64 = since(4, default=-1)


@message
class DescribeLogDirsResponse(Message):
    KEY = 35
    FLEXIBLE = 2
    VERSIONS = range(0, 5)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(3, default=0)
    results: Array[DescribeLogDirsResult]
