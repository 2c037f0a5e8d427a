"""Metadata (key 3), versions 0-12, flexible from 9.

Brokers, topics, partitions and their leaders. An empty list of topics means all of them in v0, none of them from v1
on, where null means all. Topic ids come with v10, asking by id with v12.
"""

from __future__ import annotations

from klamm.model import ZERO_UUID
from klamm.protocol.wire import (
    Array,
    Bool,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    String,
    Struct,
    Uuid,
    message,
    since,
)


@message
class MetadataRequestTopic(Struct):
    topic_id: Uuid = since(10, default=ZERO_UUID)
    name: NullableString = since(0, nullable=10)


@message
class MetadataRequest(Message):
    KEY = 3
    FLEXIBLE = 9
    VERSIONS = range(0, 13)

    topics: NullableArray[MetadataRequestTopic] = since(0, nullable=1)
    allow_auto_topic_creation: Bool = since(4, default=True)
    include_cluster_authorized_operations: Bool = since(8, until=10, default=False)
    include_topic_authorized_operations: Bool = since(8, default=False)


@message
class MetadataResponseBroker(Struct):
    node_id: Int32
    host: String
    port: Int32
    rack: NullableString = since(1, default=None)


@message
class MetadataResponsePartition(Struct):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = since(7, default=-1)
    replica_nodes: Array[Int32] = ()
    isr_nodes: Array[Int32] = ()
    offline_replicas: Array[Int32] = since(5, default=())


@message
class MetadataResponseTopic(Struct):
    error_code: Int16
    name: NullableString = since(0, nullable=12)
    topic_id: Uuid = since(10, default=ZERO_UUID)
    is_internal: Bool = since(1, default=False)
    partitions: Array[MetadataResponsePartition]
    topic_authorized_operations: Int32 = since(8, default=-2147483648)


@message
class MetadataResponse(Message):
    KEY = 3
    FLEXIBLE = 9
    VERSIONS = range(0, 13)

    throttle_time_ms: Int32 = since(3, default=0)
    brokers: Array[MetadataResponseBroker]
    cluster_id: NullableString = since(2, default=None)
    controller_id: Int32 = since(1, default=-1)
    topics: Array[MetadataResponseTopic]
    cluster_authorized_operations: Int32 = since(8, until=10, default=-2147483648)
