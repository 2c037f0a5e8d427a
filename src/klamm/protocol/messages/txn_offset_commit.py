"""TxnOffsetCommit (key 28), versions 0-5, flexible from 3.

Commits a group's offsets as part of a transaction. Member and generation are checked from v3 on; v5 (KIP-890) adds the
offsets partition to the transaction.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, NullableString, String, Struct, message, since


@message
class TxnOffsetCommitRequestPartition(Struct):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(2, default=-1)
    committed_metadata: NullableString


@message
class TxnOffsetCommitRequestTopic(Struct):
    name: String
    partitions: Array[TxnOffsetCommitRequestPartition]


@message
class TxnOffsetCommitRequest(Message):
    KEY = 28
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = since(3, default=-1)
    member_id: String = since(3, default="")
    group_instance_id: NullableString = since(3, default=None)
    topics: Array[TxnOffsetCommitRequestTopic]


@message
class TxnOffsetCommitResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


@message
class TxnOffsetCommitResponseTopic(Struct):
    name: String
    partitions: Array[TxnOffsetCommitResponsePartition]


@message
class TxnOffsetCommitResponse(Message):
    KEY = 28
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = 0
    topics: Array[TxnOffsetCommitResponseTopic]
