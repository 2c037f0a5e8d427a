"""AlterPartition (key 56), versions 0-3, always flexible.

A leader asks the controller to change the ISR of its partitions. Topics are named by id from v2 on.
"""

from __future__ import annotations

from klamm.model import ZERO_UUID
from klamm.protocol.wire import Array, Int8, Int16, Int32, Int64, Message, String, Struct, Uuid, message, since


@message
class BrokerState(Struct):
    broker_id: Int32
    broker_epoch: Int64 = -1


@message
class PartitionData(Struct):
    partition_index: Int32
    leader_epoch: Int32
    new_isr: Array[Int32] = since(0, until=2, default=())
    new_isr_with_epochs: Array[BrokerState] = since(3, default=())
    leader_recovery_state: Int8 = since(1, default=0)
    partition_epoch: Int32


@message
class TopicData(Struct):
    topic_name: String = since(0, until=1, default="")
    topic_id: Uuid = since(2, default=ZERO_UUID)
    partitions: Array[PartitionData]


@message
class AlterPartitionRequest(Message):
    KEY = 56
    FLEXIBLE = 0
    VERSIONS = range(0, 4)

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: Array[TopicData]


@message
class ResponsePartitionData(Struct):
    partition_index: Int32
    error_code: Int16
    leader_id: Int32
    leader_epoch: Int32
    isr: Array[Int32] = ()
    leader_recovery_state: Int8 = since(1, default=0)
    partition_epoch: Int32


@message
class ResponseTopicData(Struct):
    topic_name: String = since(0, until=1, default="")
    topic_id: Uuid = since(2, default=ZERO_UUID)
    partitions: Array[ResponsePartitionData]


@message
class AlterPartitionResponse(Message):
    KEY = 56
    FLEXIBLE = 0
    VERSIONS = range(0, 4)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    topics: Array[ResponseTopicData]
