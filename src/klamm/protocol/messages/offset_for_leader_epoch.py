"""OffsetForLeaderEpoch (key 23), versions 0-4, flexible from 4.

Returns where a leader epoch ends in the leader's log. Followers and consumers truncate there.
"""

from __future__ import annotations

from typing import Final

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, String, Struct, message, since

DEBUGGING_CONSUMER: Final = -2
"""The replica id of a request that any replica answers, not only the leader."""
LATEST_EPOCH: Final = 2**31 - 1
"""As the leader epoch of a debugging consumer, it requests the epoch of the last record and the end of the log."""


@message
class OffsetForLeaderPartition(Struct):
    partition: Int32
    current_leader_epoch: Int32 = since(2, default=-1)
    leader_epoch: Int32


@message
class OffsetForLeaderTopic(Struct):
    topic: String
    partitions: Array[OffsetForLeaderPartition]


@message
class OffsetForLeaderEpochRequest(Message):
    KEY = 23
    FLEXIBLE = 4
    VERSIONS = range(0, 5)

    replica_id: Int32 = since(3, default=-2)
    topics: Array[OffsetForLeaderTopic]


@message
class EpochEndOffset(Struct):
    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = since(1, default=-1)
    end_offset: Int64 = -1


@message
class OffsetForLeaderTopicResult(Struct):
    topic: String
    partitions: Array[EpochEndOffset]


@message
class OffsetForLeaderEpochResponse(Message):
    KEY = 23
    FLEXIBLE = 4
    VERSIONS = range(0, 5)

    throttle_time_ms: Int32 = since(2, default=0)
    topics: Array[OffsetForLeaderTopicResult]
