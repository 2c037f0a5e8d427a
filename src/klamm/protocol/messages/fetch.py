"""Fetch (key 1), versions 0-17, flexible from 12.

Reads record batches, for consumers and for followers. v3 limits the whole response; v4 adds isolation levels, v7 fetch
sessions, v9 leader epochs, v12 divergence of followers; from v13 on topics are named by id; v15 moves the replica's id
into a tagged struct.
"""

from __future__ import annotations

from klamm.model import ZERO_UUID
from klamm.protocol.wire import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableArray,
    NullableString,
    RecordSlices,
    String,
    Struct,
    Uuid,
    message,
    since,
)


@message
class ReplicaState(Struct):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@message
class FetchPartition(Struct):
    partition: Int32
    current_leader_epoch: Int32 = since(9, default=-1)
    fetch_offset: Int64
    last_fetched_epoch: Int32 = since(12, default=-1)
    log_start_offset: Int64 = since(5, default=-1)
    partition_max_bytes: Int32
    replica_directory_id: Uuid = since(17, tag=0, default=ZERO_UUID)


@message
class FetchTopic(Struct):
    topic: String = since(0, until=12, default="")
    topic_id: Uuid = since(13, default=ZERO_UUID)
    partitions: Array[FetchPartition]


@message
class ForgottenTopic(Struct):
    topic: String = since(0, until=12, default="")
    topic_id: Uuid = since(13, default=ZERO_UUID)
    partitions: Array[Int32] = ()


@message
class FetchRequest(Message):
    KEY = 1
    FLEXIBLE = 12
    VERSIONS = range(0, 18)

    cluster_id: NullableString = since(12, tag=0, default=None)
    replica_id: Int32 = since(0, until=14, default=-1)
    replica_state: ReplicaState | None = since(15, tag=1, default=None)
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = since(3, default=2147483647)
    isolation_level: Int8 = since(4, default=0)
    session_id: Int32 = since(7, default=0)
    session_epoch: Int32 = since(7, default=-1)
    topics: Array[FetchTopic]
    forgotten_topics_data: Array[ForgottenTopic] = since(7, default=())
    rack_id: String = since(11, default="")


@message
class EpochEndOffset(Struct):
    epoch: Int32 = -1
    end_offset: Int64 = -1


@message
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@message
class SnapshotId(Struct):
    end_offset: Int64 = -1
    epoch: Int32 = -1


@message
class AbortedTransaction(Struct):
    producer_id: Int64
    first_offset: Int64


@message
class PartitionData(Struct):
    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = since(4, default=-1)
    log_start_offset: Int64 = since(5, default=-1)
    diverging_epoch: EpochEndOffset | None = since(12, tag=0, default=None)
    current_leader: LeaderIdAndEpoch | None = since(12, tag=1, default=None)
    snapshot_id: SnapshotId | None = since(12, tag=2, default=None)
    aborted_transactions: NullableArray[AbortedTransaction] = since(4, default=())
    preferred_read_replica: Int32 = since(11, default=-1)
    records: RecordSlices


@message
class FetchableTopicResponse(Struct):
    topic: String = since(0, until=12, default="")
    topic_id: Uuid = since(13, default=ZERO_UUID)
    partitions: Array[PartitionData]


@message
class NodeEndpoint(Struct):
    node_id: Int32
    host: String
    port: Int32
    rack: NullableString = None


@message
class FetchResponse(Message):
    KEY = 1
    FLEXIBLE = 12
    VERSIONS = range(0, 18)

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16 = since(7, default=0)
    session_id: Int32 = since(7, default=0)
    responses: Array[FetchableTopicResponse]
    node_endpoints: Array[NodeEndpoint] = since(16, tag=0, default=())
