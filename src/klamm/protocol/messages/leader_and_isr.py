"""LeaderAndIsr (key 4), versions 0-7, flexible from 4.

The controller sends a broker its replicas with their leaders and epochs. Partitions are one flat list before v2 and
grouped by topic afterwards; v5 adds topic ids.
"""

from __future__ import annotations

from klamm.model import ZERO_UUID
from klamm.protocol.wire import Array, Bool, Int8, Int16, Int32, Int64, Message, String, Struct, Uuid, message, since


@message
class LeaderAndIsrPartitionState(Struct):
    topic_name: String = since(0, until=1, default="")
    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: Array[Int32] = ()
    partition_epoch: Int32
    replicas: Array[Int32] = ()
    adding_replicas: Array[Int32] = since(3, default=())
    removing_replicas: Array[Int32] = since(3, default=())
    is_new: Bool = since(1, default=False)
    leader_recovery_state: Int8 = since(6, default=0)


@message
class LeaderAndIsrTopicState(Struct):
    topic_name: String
    topic_id: Uuid = since(5, default=ZERO_UUID)
    partition_states: Array[LeaderAndIsrPartitionState]


@message
class LeaderAndIsrLiveLeader(Struct):
    broker_id: Int32
    host_name: String
    port: Int32


@message
class LeaderAndIsrRequest(Message):
    KEY = 4
    FLEXIBLE = 4
    VERSIONS = range(0, 8)

    controller_id: Int32
    is_k_raft_controller: Bool = since(7, default=False)
    controller_epoch: Int32
    ungrouped_partition_states: Array[LeaderAndIsrPartitionState] = since(0, until=1, default=())
    broker_epoch: Int64 = since(2, default=-1)
    type_: Int8 = since(5, default=0)
    topic_states: Array[LeaderAndIsrTopicState] = since(2, default=())
    live_leaders: Array[LeaderAndIsrLiveLeader]


@message
class LeaderAndIsrPartitionError(Struct):
    topic_name: String = since(0, until=4, default="")
    partition_index: Int32
    error_code: Int16


@message
class LeaderAndIsrTopicError(Struct):
    topic_id: Uuid
    partition_errors: Array[LeaderAndIsrPartitionError]


@message
class LeaderAndIsrResponse(Message):
    KEY = 4
    FLEXIBLE = 4
    VERSIONS = range(0, 8)

    error_code: Int16
    partition_errors: Array[LeaderAndIsrPartitionError] = since(0, until=4, default=())
    topics: Array[LeaderAndIsrTopicError] = since(5, default=())
