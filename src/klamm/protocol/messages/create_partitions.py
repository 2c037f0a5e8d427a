"""CreatePartitions (key 37), versions 0-3, flexible from 2.

Adds partitions to topics.
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Bool,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    String,
    Struct,
    message,
)


@message
class CreatePartitionsAssignment(Struct):
    broker_ids: Array[Int32] = ()


@message
class CreatePartitionsTopic(Struct):
    name: String
    count: Int32
    assignments: NullableArray[CreatePartitionsAssignment]


@message
class CreatePartitionsRequest(Message):
    KEY = 37
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    topics: Array[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Bool


@message
class CreatePartitionsTopicResult(Struct):
    name: String
    error_code: Int16
    error_message: NullableString = None


@message
class CreatePartitionsResponse(Message):
    KEY = 37
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    throttle_time_ms: Int32 = 0
    results: Array[CreatePartitionsTopicResult]
