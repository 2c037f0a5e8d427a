"""AddPartitionsToTxn (key 24), versions 0-5, flexible from 3.

Adds partitions to a transaction. v0-3 are one producer's request; v4 and later batch several and are sent by brokers.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int16, Int32, Int64, Message, String, Struct, message, since


@message
class AddPartitionsToTxnTopic(Struct):
    name: String
    partitions: Array[Int32] = ()


@message
class AddPartitionsToTxnTransaction(Struct):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    verify_only: Bool = False
    topics: Array[AddPartitionsToTxnTopic]


@message
class AddPartitionsToTxnRequest(Message):
    KEY = 24
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    v3_and_below_transactional_id: String = since(0, until=3, default="")
    v3_and_below_producer_id: Int64 = since(0, until=3, default=0)
    v3_and_below_producer_epoch: Int16 = since(0, until=3, default=0)
    v3_and_below_topics: Array[AddPartitionsToTxnTopic] = since(0, until=3, default=())
    transactions: Array[AddPartitionsToTxnTransaction] = since(4, default=())


@message
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: Int32
    partition_error_code: Int16


@message
class AddPartitionsToTxnTopicResult(Struct):
    name: String
    results_by_partition: Array[AddPartitionsToTxnPartitionResult]


@message
class AddPartitionsToTxnResult(Struct):
    transactional_id: String
    topic_results: Array[AddPartitionsToTxnTopicResult]


@message
class AddPartitionsToTxnResponse(Message):
    KEY = 24
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = 0
    results_by_topic_v3_and_below: Array[AddPartitionsToTxnTopicResult] = since(0, until=3, default=())
    error_code: Int16 = since(4, default=0)
    results_by_transaction: Array[AddPartitionsToTxnResult] = since(4, default=())
