"""DescribeTransactions (key 65), version 0, always flexible.

State, producer and partitions of transactions.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, String, Struct, message


@message
class DescribeTransactionsRequest(Message):
    KEY = 65
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    transactional_ids: Array[String] = ()


@message
class TopicData(Struct):
    topic: String
    partitions: Array[Int32] = ()


@message
class TransactionState(Struct):
    error_code: Int16
    transactional_id: String
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: Array[TopicData]


@message
class DescribeTransactionsResponse(Message):
    KEY = 65
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    throttle_time_ms: Int32 = 0
    transaction_states: Array[TransactionState]
