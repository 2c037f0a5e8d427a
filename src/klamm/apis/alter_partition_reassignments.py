"""AlterPartitionReassignments (45): moves partitions to other replicas, or cancels such a move (null replicas).

v0 (KIP-455). A broker that is not the controller answers NOT_CONTROLLER (41).
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import cast

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced
from klamm.apis.slices import Steps, begin, each, each_partition
from klamm.controller import events
from klamm.controller.replies import PartitionResult, PartitionResults
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from klamm.waiting import after


def handle(
    broker: Broker, ctx: RequestContext, req: AlterPartitionReassignmentsRequest
) -> asyncio.Future[AlterPartitionReassignmentsResponse] | Sliced[AlterPartitionReassignmentsResponse]:
    return begin(_alter(broker, req))


def _alter(
    broker: Broker, req: AlterPartitionReassignmentsRequest
) -> Steps[asyncio.Future[AlterPartitionReassignmentsResponse]]:
    parts = yield from each_partition(
        req.topics,
        lambda topic: topic.partitions,
        lambda topic, partition: (
            TopicPartition(topic.name, partition.partition_index),
            None if partition.replicas is None else tuple(partition.replicas),
        ),
        lambda _, targets: targets,
    )
    event = events.ApiPartitionReassignment(tuple(chain.from_iterable(parts)))
    submitted = broker.controller.submit(event, req.timeout_ms)
    return after(submitted, lambda results: cast("AlterPartitionReassignmentsResponse", begin(_response(results))))


def _response(results: PartitionResults) -> Steps[AlterPartitionReassignmentsResponse]:
    topics: dict[str, list[ReassignablePartitionResponse]] = {}

    def add(result: PartitionResult) -> None:
        topics.setdefault(result.partition.topic, []).append(
            ReassignablePartitionResponse(
                partition_index=result.partition.partition, error_code=result.error, error_message=result.message
            )
        )

    yield from each(results.partitions, add)
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=results.error,
        error_message=results.message,
        responses=[ReassignableTopicResponse(name=name, partitions=parts) for name, parts in topics.items()],
    )


API = Api(
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    versions=(0, 0),
    plane=Plane.DATA,
    handle=handle,
)
