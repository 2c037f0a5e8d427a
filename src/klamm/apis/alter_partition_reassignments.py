"""AlterPartitionReassignments (45): moves partitions to other replicas, or cancels such a move (null replicas).

v0 (KIP-455). A broker that is not the controller answers NOT_CONTROLLER (41). If the controller is replaced in the
middle of a very large request, only the partitions that it has not accepted get this error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.controller_parts import parts_of
from klamm.apis.deadlines import Deadline
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.slices import each, each_partition, pause
from klamm.controller import events
from klamm.controller.replies import PartitionResult, PartitionResults
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.chunked import ChunkedList, SpreadDict
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin, result_of

_Asked = tuple[TopicPartition, tuple[int, ...] | None]
_Topics = SpreadDict[str, list[ReassignablePartitionResponse]]


def handle(
    broker: Broker, ctx: RequestContext, req: AlterPartitionReassignmentsRequest
) -> Answer[AlterPartitionReassignmentsResponse]:
    return begin(_alter(broker, ctx, req))


def _alter(
    broker: Broker, ctx: RequestContext, req: AlterPartitionReassignmentsRequest
) -> Steps[AlterPartitionReassignmentsResponse]:
    deadline = Deadline(broker.loop, req.timeout_ms)
    asked: ChunkedList[_Asked] = ChunkedList()
    topics: _Topics = SpreadDict()

    def add(topic: ReassignableTopic, partition: ReassignablePartition) -> None:
        target = None if partition.replicas is None else tuple(partition.replicas)
        asked.append((TopicPartition(topic.name, partition.partition_index), target))

    yield from each_partition(req.topics, lambda topic: topic.partitions, add, lambda *_: None)
    ctx.hold(asked)
    answered = 0
    for part in parts_of(asked):
        event = events.ApiPartitionReassignment(tuple(part))
        reply = yield from result_of(broker.controller.submit(event, deadline.remaining_ms))
        yield from pause(part)
        if reply.error != ErrorCode.NONE:
            return (yield from _refuse_rest(ctx, topics, asked, answered, reply))
        yield from each(reply.partitions, lambda result: _add(topics, result))
        answered += len(part)
        yield from pause(part)
    return (yield from _response(ctx, topics))


def _refuse_rest(
    ctx: RequestContext, topics: _Topics, asked: Sequence[_Asked], answered: int, reply: PartitionResults
) -> Steps[AlterPartitionReassignmentsResponse]:
    """The controller has accepted the earlier parts. An error of the whole request would deny that."""
    yield from each(islice(asked, answered, None), lambda moved: _add(topics, PartitionResult(moved[0], reply.error)))
    return (yield from _response(ctx, topics, *(() if answered else (reply.error, reply.message))))


def _add(topics: _Topics, result: PartitionResult) -> None:
    topics.setdefault(result.partition.topic, []).append(
        ReassignablePartitionResponse(
            partition_index=result.partition.partition, error_code=result.error, error_message=result.message
        )
    )


def _response(
    ctx: RequestContext, topics: _Topics, error: ErrorCode = ErrorCode.NONE, message: str | None = None
) -> Steps[AlterPartitionReassignmentsResponse]:
    ctx.hold(*topics.dicts)
    responses = yield from each(
        topics.items(), lambda topic: ReassignableTopicResponse(name=topic[0], partitions=topic[1])
    )
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=error, error_message=message, responses=responses
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
