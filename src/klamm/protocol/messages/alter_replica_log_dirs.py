"""AlterReplicaLogDirs (key 34), versions 0-2, flexible from 2.

Moves replicas between the log directories of one broker.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Message, String, Struct, message


@message
class AlterReplicaLogDirTopic(Struct):
    name: String
    partitions: Array[Int32] = ()


@message
class AlterReplicaLogDir(Struct):
    path: String
    topics: Array[AlterReplicaLogDirTopic]


@message
class AlterReplicaLogDirsRequest(Message):
    KEY = 34
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    dirs: Array[AlterReplicaLogDir]


@message
class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: Int32
    error_code: Int16


@message
class AlterReplicaLogDirTopicResult(Struct):
    topic_name: String
    partitions: Array[AlterReplicaLogDirPartitionResult]


@message
class AlterReplicaLogDirsResponse(Message):
    KEY = 34
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    throttle_time_ms: Int32 = 0
    results: Array[AlterReplicaLogDirTopicResult]
