"""Produce (key 0), versions 0-12, flexible from 9.

Appends record batches to partitions. With acks 0 the broker sends no response at all. Record formats: v0-1 take message
sets of magic 0, v2 of magic 1, v3 and later batches of magic 2; transactions begin at v3, zstd at v7 and
TRANSACTION_ABORTABLE at v11. From v12 on the leader adds the partitions of a transaction (KIP-890).
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Records,
    String,
    Struct,
    message,
    since,
)


@message
class PartitionProduceData(Struct):
    index: Int32
    records: Records


@message
class TopicProduceData(Struct):
    name: String
    partition_data: Array[PartitionProduceData]


@message
class ProduceRequest(Message):
    KEY = 0
    FLEXIBLE = 9
    VERSIONS = range(0, 13)

    transactional_id: NullableString = since(3, default=None)
    acks: Int16
    timeout_ms: Int32
    topic_data: Array[TopicProduceData]


@message
class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32
    batch_index_error_message: NullableString = None


@message
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@message
class PartitionProduceResponse(Struct):
    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64 = since(2, default=-1)
    log_start_offset: Int64 = since(5, default=-1)
    record_errors: Array[BatchIndexAndErrorMessage] = since(8, default=())
    error_message: NullableString = since(8, default=None)
    current_leader: LeaderIdAndEpoch | None = since(10, tag=0, default=None)


@message
class TopicProduceResponse(Struct):
    name: String
    partition_responses: Array[PartitionProduceResponse]


@message
class NodeEndpoint(Struct):
    node_id: Int32
    host: String
    port: Int32
    rack: NullableString = None


@message
class ProduceResponse(Message):
    KEY = 0
    FLEXIBLE = 9
    VERSIONS = range(0, 13)

    responses: Array[TopicProduceResponse]
    throttle_time_ms: Int32 = since(1, default=0)
    node_endpoints: Array[NodeEndpoint] = since(10, tag=0, default=())
