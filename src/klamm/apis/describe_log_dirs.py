"""DescribeLogDirs (35): the log directories of this broker and the true sizes of the logs in them.

v0-4: a top-level error v3; total and usable bytes of the volume v4. Null topics means all. A directory that has
failed is listed with KAFKA_STORAGE_ERROR (56). A replica that is moved between directories is listed in both: the copy
has `is_future_key` and the number of records that it is behind.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import needs_cluster
from klamm.apis.slices import each_partition, each_taken
from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.model import TopicPartition
from klamm.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin

_SLICE: Final = 50
"""Logs that are described between two turns of the loop."""


def handle(broker: Broker, ctx: RequestContext, req: DescribeLogDirsRequest) -> Answer[DescribeLogDirsResponse]:
    return begin(_describe(broker, req))


def _describe(broker: Broker, req: DescribeLogDirsRequest) -> Steps[DescribeLogDirsResponse]:
    by_dir: dict[str, list[Log]] = {}

    def sort_out(log: Log) -> None:
        by_dir.setdefault(log.log_dir, []).append(log)
        if (future := broker.logs.futures.logs.get(log.topic_partition)) is not None:
            by_dir.setdefault(future.log_dir, []).append(future)

    yield from each_taken((yield from _asked_logs(broker, req)), sort_out)
    results: list[DescribeLogDirsResult] = []
    for log_dir in list(broker.logs.dirs.live):
        results.append((yield from _live(broker, log_dir.path, by_dir.get(log_dir.path, []))))
    results += [
        DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=log_dir, topics=())
        for log_dir in broker.logs.dirs.failures
    ]
    return DescribeLogDirsResponse(throttle_time_ms=0, results=results)


def _asked_logs(broker: Broker, req: DescribeLogDirsRequest) -> Steps[list[Log]]:
    if req.topics is None:
        return list(broker.logs.logs.values())
    asked: dict[TopicPartition, Log] = {}

    def add(topic: DescribableLogDirTopic, index: int) -> None:
        tp = TopicPartition(topic.topic, index)
        if tp not in asked and (log := broker.logs.get_log(tp)) is not None:
            asked[tp] = log

    yield from each_partition(req.topics, lambda topic: topic.partitions, add, lambda *_: None)
    return list(asked.values())


def _live(broker: Broker, log_dir: str, logs: list[Log]) -> Steps[DescribeLogDirsResult]:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}

    def add(log: Log) -> None:
        if (partition := _partition(broker, log)) is not None:
            topics.setdefault(log.topic_partition.topic, []).append(partition)

    yield from each_taken(logs, add, _SLICE)
    total_bytes, usable_bytes = broker.logs.dirs.usage(log_dir)
    return DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=log_dir,
        topics=[DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )


def _partition(broker: Broker, log: Log) -> DescribeLogDirsPartition | None:
    """Return None for a log that was deleted or replaced since the request began: it is not a future log."""
    in_use = broker.logs.get_log(log.topic_partition)
    is_future = in_use is not log
    if is_future and broker.logs.futures.logs.get(log.topic_partition) is not log:
        return None
    end = in_use.log_end_offset if is_future and in_use is not None else log.high_watermark
    return DescribeLogDirsPartition(
        partition_index=log.topic_partition.partition,
        partition_size=log.size_bytes,
        offset_lag=max(0, end - log.log_end_offset),
        is_future_key=is_future,
    )


_GUARD: Final = needs_cluster(
    AclOperation.DESCRIBE,
    lambda ctx, req, error: DescribeLogDirsResponse(throttle_time_ms=0, error_code=error, results=()),
)
API = Api(
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    versions=(0, 4),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
    guard=_GUARD,
)
