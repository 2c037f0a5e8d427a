"""ListPartitionReassignments (key 46), version 0, always flexible.

The moves of partitions in progress.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Message, NullableArray, NullableString, String, Struct, message


@message
class ListPartitionReassignmentsTopics(Struct):
    name: String
    partition_indexes: Array[Int32] = ()


@message
class ListPartitionReassignmentsRequest(Message):
    KEY = 46
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    timeout_ms: Int32 = 60000
    topics: NullableArray[ListPartitionReassignmentsTopics]


@message
class OngoingPartitionReassignment(Struct):
    partition_index: Int32
    replicas: Array[Int32] = ()
    adding_replicas: Array[Int32] = ()
    removing_replicas: Array[Int32] = ()


@message
class OngoingTopicReassignment(Struct):
    name: String
    partitions: Array[OngoingPartitionReassignment]


@message
class ListPartitionReassignmentsResponse(Message):
    KEY = 46
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: NullableString
    topics: Array[OngoingTopicReassignment]
