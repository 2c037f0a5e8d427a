"""AlterPartitionReassignments (45): moves partitions to other replicas, or cancels such a move (null replicas).

v0 (KIP-455). A broker that is not the controller says NOT_CONTROLLER (41).
"""

from __future__ import annotations

import asyncio

from klamm.apis.registry import Api, Broker, Plane, RequestContext, then
from klamm.controller import events
from klamm.controller.replies import PartitionResults
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(
    broker: Broker, ctx: RequestContext, req: AlterPartitionReassignmentsRequest
) -> asyncio.Future[AlterPartitionReassignmentsResponse]:
    targets = tuple(
        (
            TopicPartition(topic.name, partition.partition_index),
            None if partition.replicas is None else tuple(partition.replicas),
        )
        for topic in req.topics
        for partition in topic.partitions
    )
    return then(broker.controller.submit(events.ApiPartitionReassignment(targets), req.timeout_ms), _response)


def _response(results: PartitionResults) -> AlterPartitionReassignmentsResponse:
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    for result in results.partitions:
        topics.setdefault(result.partition.topic, []).append(
            ReassignablePartitionResponse(
                partition_index=result.partition.partition, error_code=result.error, error_message=result.message
            )
        )
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
