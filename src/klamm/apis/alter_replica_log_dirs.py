"""AlterReplicaLogDirs (34): moves replicas between the log directories of this broker.

v0-2: tagged fields v2. The answer means that the move has begun; DescribeLogDirs shows the copy with `is_future_key`
and how far it is behind. A move to the directory where the replica is cancels one that is under way. A directory
that is not configured is LOG_DIR_NOT_FOUND (57), one that has failed KAFKA_STORAGE_ERROR (56). A replica that is
not here yet is REPLICA_NOT_AVAILABLE (9), and is created in that directory later.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced, at_once
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

MOST: Final = 20
"""Partitions that are moved without giving the loop back: a move creates a directory."""


def handle(
    broker: Broker, ctx: RequestContext, req: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse | Sliced[AlterReplicaLogDirsResponse]:
    is_small = len(req.dirs) + sum(len(log_dir.topics) for log_dir in req.dirs[:MOST]) <= MOST
    is_small = is_small and sum(len(topic.partitions) for log_dir in req.dirs for topic in log_dir.topics) <= MOST
    steps = _steps(broker, req)
    return at_once(steps) if is_small else steps


def _steps(broker: Broker, req: AlterReplicaLogDirsRequest) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    targets: dict[TopicPartition, str] = {}
    for log_dir in req.dirs:
        yield
        for topic in log_dir.topics:
            yield
            for start in range(0, len(topic.partitions), 100):
                for index in topic.partitions[start : start + 100]:
                    targets[TopicPartition(topic.name, index)] = log_dir.path
                yield
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for tp, path in targets.items():
        yield
        error = broker.replicas.log_dir_moves.alter(tp, path)
        results.setdefault(tp.topic, []).append(
            AlterReplicaLogDirPartitionResult(partition_index=tp.partition, error_code=error)
        )
    return AlterReplicaLogDirsResponse(
        throttle_time_ms=0,
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=each) for name, each in results.items()],
    )


API = Api(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, versions=(0, 2), plane=Plane.DATA, handle=handle)
