"""AlterPartitionReassignments (45): moves partitions to other replicas, or cancels such a move (null replicas).

v0 (KIP-455). A broker that is not the controller answers NOT_CONTROLLER (41).
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.slices import Steps, begin, each, each_partition
from klamm.controller import events
from klamm.controller.replies import PartitionResult, PartitionResults, made
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import after


def handle(
    broker: Broker, ctx: RequestContext, req: AlterPartitionReassignmentsRequest
) -> asyncio.Future[AlterPartitionReassignmentsResponse] | Sliced[AlterPartitionReassignmentsResponse]:
    return begin(_alter(broker, ctx, req))


def _alter(
    broker: Broker, ctx: RequestContext, req: AlterPartitionReassignmentsRequest
) -> Steps[asyncio.Future[AlterPartitionReassignmentsResponse]]:
    asked: list[tuple[TopicPartition, tuple[int, ...] | None]] = []

    def add(topic: ReassignableTopic, partition: ReassignablePartition) -> None:
        target = None if partition.replicas is None else tuple(partition.replicas)
        asked.append((TopicPartition(topic.name, partition.partition_index), target))

    yield from each_partition(req.topics, lambda topic: topic.partitions, add, lambda *_: None)
    ctx.hold(asked)
    event = events.ApiPartitionReassignment(tuple(asked))
    submitted = broker.controller.submit(event, req.timeout_ms)
    return after(submitted, lambda results: cast("AlterPartitionReassignmentsResponse", begin(_response(ctx, results))))


def _response(ctx: RequestContext, results: PartitionResults) -> Steps[AlterPartitionReassignmentsResponse]:
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    ctx.hold(made(results.partitions), topics)

    def add(result: PartitionResult) -> None:
        topics.setdefault(result.partition.topic, []).append(
            ReassignablePartitionResponse(
                partition_index=result.partition.partition, error_code=result.error, error_message=result.message
            )
        )

    yield from each(results.partitions, add)
    responses = yield from each(
        topics.items(), lambda topic: ReassignableTopicResponse(name=topic[0], partitions=topic[1])
    )
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=results.error,
        error_message=results.message,
        responses=responses,
    )


_GUARD: Final = needs_cluster(
    AclOperation.ALTER,
    lambda ctx, req, error: AlterPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=error, error_message=NOT_AUTHORIZED, responses=()
    ),
)
API = Api(
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    versions=(0, 0),
    plane=Plane.DATA,
    handle=handle,
    guard=_GUARD,
)
