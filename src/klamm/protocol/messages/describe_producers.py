"""DescribeProducers (key 61), version 0, always flexible.

The producers that a partition's leader remembers, and their open transactions.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, NullableString, String, Struct, message


@message
class TopicRequest(Struct):
    name: String
    partition_indexes: Array[Int32] = ()


@message
class DescribeProducersRequest(Message):
    KEY = 61
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    topics: Array[TopicRequest]


@message
class ProducerState(Struct):
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@message
class PartitionResponse(Struct):
    partition_index: Int32
    error_code: Int16
    error_message: NullableString = None
    active_producers: Array[ProducerState]


@message
class TopicResponse(Struct):
    name: String
    partitions: Array[PartitionResponse]


@message
class DescribeProducersResponse(Message):
    KEY = 61
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    throttle_time_ms: Int32 = 0
    topics: Array[TopicResponse]
