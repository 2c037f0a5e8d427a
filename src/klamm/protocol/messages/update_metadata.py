"""UpdateMetadata (key 6), versions 0-8, flexible from 6.

The controller's view of the cluster for every broker's metadata cache. Partitions are one flat list before v5 and
grouped by topic afterwards. In an endpoint the port comes before the host.
"""

from __future__ import annotations

from klamm.model import ZERO_UUID
from klamm.protocol.wire import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    String,
    Struct,
    Uuid,
    message,
    since,
)


@message
class UpdateMetadataPartitionState(Struct):
    topic_name: String = since(0, until=4, default="")
    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: Array[Int32] = ()
    zk_version: Int32
    replicas: Array[Int32] = ()
    offline_replicas: Array[Int32] = since(4, default=())


@message
class UpdateMetadataTopicState(Struct):
    topic_name: String
    topic_id: Uuid = since(7, default=ZERO_UUID)
    partition_states: Array[UpdateMetadataPartitionState]


@message
class UpdateMetadataEndpoint(Struct):
    port: Int32
    host: String
    listener: String = since(3, default="")
    security_protocol: Int16


@message
class UpdateMetadataBroker(Struct):
    id_: Int32
    v0_host: String = since(0, until=0, default="")
    v0_port: Int32 = since(0, until=0, default=0)
    endpoints: Array[UpdateMetadataEndpoint] = since(1, default=())
    rack: NullableString = since(2, default=None)


@message
class UpdateMetadataRequest(Message):
    KEY = 6
    FLEXIBLE = 6
    VERSIONS = range(0, 9)

    controller_id: Int32
    is_k_raft_controller: Bool = since(8, default=False)
    type_: Int8 = since(8, tag=0, default=0)
    controller_epoch: Int32
    ungrouped_partition_states: Array[UpdateMetadataPartitionState] = since(0, until=4, default=())
    broker_epoch: Int64 = since(5, default=-1)
    topic_states: Array[UpdateMetadataTopicState] = since(5, default=())
    live_brokers: Array[UpdateMetadataBroker]


@message
class UpdateMetadataResponse(Message):
    KEY = 6
    FLEXIBLE = 6
    VERSIONS = range(0, 9)

    error_code: Int16
