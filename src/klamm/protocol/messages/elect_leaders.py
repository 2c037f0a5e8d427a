"""ElectLeaders (key 43), versions 0-2, flexible from 2.

Has the controller elect preferred leaders or, from v1 on, leaders outside the ISR.
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Int8,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    String,
    Struct,
    message,
    since,
)


@message
class TopicPartitions(Struct):
    topic: String
    partitions: Array[Int32] = ()


@message
class ElectLeadersRequest(Message):
    KEY = 43
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    election_type: Int8 = since(1, default=0)
    topic_partitions: NullableArray[TopicPartitions]
    timeout_ms: Int32 = 60000


@message
class PartitionResult(Struct):
    partition_id: Int32
    error_code: Int16
    error_message: NullableString


@message
class ReplicaElectionResult(Struct):
    topic: String
    partition_result: Array[PartitionResult]


@message
class ElectLeadersResponse(Message):
    KEY = 43
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(1, default=0)
    replica_election_results: Array[ReplicaElectionResult]
