"""AlterReplicaLogDirs (34): moves replicas between the log directories of this broker.

v0-2: tagged fields v2. The answer means that the move has begun; DescribeLogDirs shows the copy with `is_future_key`
and its lag. A move to the directory that the replica is in cancels a move in progress. A directory that is not
configured is LOG_DIR_NOT_FOUND (57), one that has failed KAFKA_STORAGE_ERROR (56). A replica that does not exist on
this broker yet is REPLICA_NOT_AVAILABLE (9); it is created in that directory later.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext, at_once
from klamm.apis.guards import needs_cluster
from klamm.apis.slices import each, each_partition
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin

MOST: Final = 20
"""Partitions that are moved in one slice of the loop: each move creates a directory."""


def handle(broker: Broker, ctx: RequestContext, req: AlterReplicaLogDirsRequest) -> Answer[AlterReplicaLogDirsResponse]:
    is_small = len(req.dirs) + sum(len(log_dir.topics) for log_dir in req.dirs[:MOST]) <= MOST
    is_small = is_small and sum(len(topic.partitions) for log_dir in req.dirs for topic in log_dir.topics) <= MOST
    steps = _steps(broker, ctx, req)
    return at_once(steps) if is_small else steps


def _steps(
    broker: Broker, ctx: RequestContext, req: AlterReplicaLogDirsRequest
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    targets: dict[TopicPartition, str] = {}
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    ctx.hold(targets, results)
    for log_dir in req.dirs:
        yield
        for topic in log_dir.topics:
            yield
            for start in range(0, len(topic.partitions), 100):
                for index in topic.partitions[start : start + 100]:
                    targets[TopicPartition(topic.name, index)] = log_dir.path
                yield
    for tp, path in targets.items():
        yield
        error = broker.replicas.log_dir_moves.alter(tp, path)
        results.setdefault(tp.topic, []).append(
            AlterReplicaLogDirPartitionResult(partition_index=tp.partition, error_code=error)
        )
    answers = yield from each(
        results.items(), lambda topic: AlterReplicaLogDirTopicResult(topic_name=topic[0], partitions=topic[1])
    )
    return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=answers)


def _refused(ctx: RequestContext, req: AlterReplicaLogDirsRequest, error: ErrorCode) -> Any:
    return begin(_refusal(req, error))


def _refusal(req: AlterReplicaLogDirsRequest, error: ErrorCode) -> Steps[AlterReplicaLogDirsResponse]:
    answers = yield from each_partition(
        (topic for log_dir in req.dirs for topic in log_dir.topics),
        lambda topic: topic.partitions,
        lambda _, index: AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error),
        lambda topic, rows: AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=rows),
    )
    return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=answers)


_GUARD: Final = needs_cluster(AclOperation.ALTER, _refused)
API = Api(
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    versions=(0, 2),
    plane=Plane.DATA,
    handle=handle,
    guard=_GUARD,
)
