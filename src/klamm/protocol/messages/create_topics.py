"""CreateTopics (key 19), versions 0-7, flexible from 5.

Creates topics with a partition count or a manual assignment. From v5 on the response describes the created topics.
"""

from __future__ import annotations

from klamm.model import ZERO_UUID
from klamm.protocol.wire import (
    Array,
    Bool,
    Int8,
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
class CreatableReplicaAssignment(Struct):
    partition_index: Int32
    broker_ids: Array[Int32] = ()


@message
class CreatableTopicConfig(Struct):
    name: String
    value: NullableString


@message
class CreatableTopic(Struct):
    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: Array[CreatableReplicaAssignment]
    configs: Array[CreatableTopicConfig]


@message
class CreateTopicsRequest(Message):
    KEY = 19
    FLEXIBLE = 5
    VERSIONS = range(0, 8)

    topics: Array[CreatableTopic]
    timeout_ms: Int32 = 60000
    validate_only: Bool = since(1, default=False)


@message
class CreatableTopicConfigs(Struct):
    name: String
    value: NullableString
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool


@message
class CreatableTopicResult(Struct):
    name: String
    topic_id: Uuid = since(7, default=ZERO_UUID)
    error_code: Int16
    error_message: NullableString = since(1, default=None)
    topic_config_error_code: Int16 = since(5, tag=0, default=0)
    num_partitions: Int32 = since(5, default=-1)
    replication_factor: Int16 = since(5, default=-1)
    configs: NullableArray[CreatableTopicConfigs] = since(5, default=())


@message
class CreateTopicsResponse(Message):
    KEY = 19
    FLEXIBLE = 5
    VERSIONS = range(0, 8)

    throttle_time_ms: Int32 = since(2, default=0)
    topics: Array[CreatableTopicResult]
