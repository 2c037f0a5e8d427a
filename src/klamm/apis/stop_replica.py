"""StopReplica (5): the controller stops replicas on this broker, and deletes their logs if it says so.

v0-4: broker epoch and grouping by topic v1; a leader epoch and a delete flag per partition v3 (KIP-570), so that a stop
that was overtaken by a LeaderAndIsr is refused (74); KRaft flag v4 (read and not used). A whole-request error (77, 11,
-1 a bug) comes without partitions. A request of thousands of partitions is carried out in several turns of the loop; no
other control request is handled before it is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, cast

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.control import check_broker_epoch, from_controller
from klamm.apis.guards import FromPeer
from klamm.apis.slices import each, each_partition
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from klamm.replica.state_change import StateChangeResult, StopReplica, stop_replicas
from klamm.waiting import Steps, after, begin


def handle(broker: Broker, ctx: RequestContext, req: StopReplicaRequest) -> Answer[StopReplicaResponse]:
    return begin(_stop(broker, ctx, req))


def _stop(broker: Broker, ctx: RequestContext, req: StopReplicaRequest) -> Steps[Any]:
    stops = yield from _stops(req)

    def refuse(error: ErrorCode) -> StopReplicaResponse:
        return StopReplicaResponse(error_code=error, partition_errors=())

    def apply() -> StopReplicaResponse | asyncio.Future[StopReplicaResponse]:
        if error := check_broker_epoch(broker, req.broker_epoch):
            return refuse(error)
        return after(stop_replicas(broker.replicas, req.controller_epoch, stops, ctx.correlation_id), _respond)

    return from_controller(
        broker,
        ctx,
        req,
        first_with_broker_epoch=1,
        handle=lambda: broker.replicas.exclusively(apply),
        refuse=refuse,
    )


def _respond(result: StateChangeResult) -> StopReplicaResponse:
    """The response or, if it is large, the steps that make it: callers accept either."""
    return cast("StopReplicaResponse", begin(_response(result)))


def _response(result: StateChangeResult) -> Steps[StopReplicaResponse]:
    errors = yield from each(
        result.partitions.items(),
        lambda item: StopReplicaPartitionError(
            topic_name=item[0].topic, partition_index=item[0].partition, error_code=item[1]
        ),
    )
    return StopReplicaResponse(error_code=result.error, partition_errors=errors)


def _stops(req: StopReplicaRequest) -> Steps[list[StopReplica]]:
    delete = req.delete_partitions
    stops: list[StopReplica] = []

    def gather(topic: object, some: Iterable[StopReplica]) -> None:
        stops.extend(some)

    ungrouped = yield from each(
        req.ungrouped_partitions,
        lambda p: StopReplica(TopicPartition(p.topic_name, p.partition_index), delete=delete),
    )
    stops.extend(ungrouped)
    yield from each_partition(
        req.topics,
        lambda topic: topic.partition_indexes,
        lambda topic, index: StopReplica(TopicPartition(topic.name, index), delete=delete),
        gather,
    )
    yield from each_partition(
        req.topic_states,
        lambda topic: topic.partition_states,
        lambda topic, p: StopReplica(
            TopicPartition(topic.topic_name, p.partition_index), p.leader_epoch, p.delete_partition
        ),
        gather,
    )
    return stops


_GUARD: Final = FromPeer(
    lambda ctx, req, error: StopReplicaResponse(error_code=error, partition_errors=()),
    sender=lambda req: req.controller_id,
)
API = Api(StopReplicaRequest, StopReplicaResponse, versions=(0, 4), plane=Plane.CONTROL, handle=handle, guard=_GUARD)
