"""StopReplica (key 5), versions 0-4, flexible from 2.

The controller makes a broker stop replicas, and delete them if requested. The deletion flag is per request before v3
and per partition afterwards.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int16, Int32, Int64, Message, String, Struct, message, since


@message
class StopReplicaPartitionV0(Struct):
    topic_name: String
    partition_index: Int32


@message
class StopReplicaTopicV1(Struct):
    name: String
    partition_indexes: Array[Int32] = ()


@message
class StopReplicaPartitionState(Struct):
    partition_index: Int32
    leader_epoch: Int32 = -1
    delete_partition: Bool


@message
class StopReplicaTopicState(Struct):
    topic_name: String
    partition_states: Array[StopReplicaPartitionState]


@message
class StopReplicaRequest(Message):
    KEY = 5
    FLEXIBLE = 2
    VERSIONS = range(0, 5)

    controller_id: Int32
    is_k_raft_controller: Bool = since(4, default=False)
    controller_epoch: Int32
    broker_epoch: Int64 = since(1, default=-1)
    delete_partitions: Bool = since(0, until=2, default=False)
    ungrouped_partitions: Array[StopReplicaPartitionV0] = since(0, until=0, default=())
    topics: Array[StopReplicaTopicV1] = since(1, until=2, default=())
    topic_states: Array[StopReplicaTopicState] = since(3, default=())


@message
class StopReplicaPartitionError(Struct):
    topic_name: String
    partition_index: Int32
    error_code: Int16


@message
class StopReplicaResponse(Message):
    KEY = 5
    FLEXIBLE = 2
    VERSIONS = range(0, 5)

    error_code: Int16
    partition_errors: Array[StopReplicaPartitionError]
