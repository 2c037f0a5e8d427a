"""ListPartitionReassignments (46): the partitions that are being moved to other replicas now.

v0 (KIP-455). Null topics means all. A broker that is not the controller answers NOT_CONTROLLER (41).
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.parts import Parts, in_parts
from klamm.controller import events
from klamm.controller.replies import Reassignments
from klamm.model import TopicPartition
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import after


def handle(
    broker: Broker, ctx: RequestContext, req: ListPartitionReassignmentsRequest
) -> asyncio.Future[ListPartitionReassignmentsResponse]:
    asked = req.topics
    partitions = None if asked is None else tuple(TopicPartition(t.name, i) for t in asked for i in t.partition_indexes)
    return after(broker.controller.submit(events.ListPartitionReassignments(partitions), req.timeout_ms), _response)


def _response(reassignments: Reassignments) -> ListPartitionReassignmentsResponse:
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for tp, assignment in reassignments.partitions:
        topics.setdefault(tp.topic, []).append(
            OngoingPartitionReassignment(
                partition_index=tp.partition,
                replicas=assignment.replicas,
                adding_replicas=assignment.adding_replicas,
                removing_replicas=assignment.removing_replicas,
            )
        )
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=reassignments.error,
        error_message=reassignments.message,
        topics=[OngoingTopicReassignment(name=name, partitions=parts) for name, parts in topics.items()],
    )


_PARTS: Final = Parts(asked="topics", answers="topics", rows="partition_indexes", row_answers="partitions")
_GUARD: Final = needs_cluster(
    AclOperation.DESCRIBE,
    lambda ctx, req, error: ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=error, error_message=NOT_AUTHORIZED, topics=()
    ),
)
API = Api(
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    versions=(0, 0),
    plane=Plane.DATA,
    handle=in_parts(handle, _PARTS),
    is_read=True,
    guard=_GUARD,
)
