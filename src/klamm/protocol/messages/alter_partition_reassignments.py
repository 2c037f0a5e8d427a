"""AlterPartitionReassignments (key 45), version 0, always flexible.

Starts, changes or cancels the move of partitions to other replicas.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Message, NullableArray, NullableString, String, Struct, message


@message
class ReassignablePartition(Struct):
    partition_index: Int32
    replicas: NullableArray[Int32] = None


@message
class ReassignableTopic(Struct):
    name: String
    partitions: Array[ReassignablePartition]


@message
class AlterPartitionReassignmentsRequest(Message):
    KEY = 45
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    timeout_ms: Int32 = 60000
    topics: Array[ReassignableTopic]


@message
class ReassignablePartitionResponse(Struct):
    partition_index: Int32
    error_code: Int16
    error_message: NullableString


@message
class ReassignableTopicResponse(Struct):
    name: String
    partitions: Array[ReassignablePartitionResponse]


@message
class AlterPartitionReassignmentsResponse(Message):
    KEY = 45
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: NullableString
    responses: Array[ReassignableTopicResponse]
