"""StopReplica (5): the controller stops replicas on this broker, and deletes their logs if it says so.

v0-4: broker epoch and grouping by topic v1; a leader epoch and a delete flag per partition v3 (KIP-570), so that a stop
that was overtaken by a LeaderAndIsr is refused (74); KRaft flag v4 (read and not used). A whole-request error (77, 11,
-1 a bug) comes without partitions. A request of thousands of partitions is carried out in several turns of the loop; no
other control request is handled before it is complete.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.api_declaration import Api, Broker, Delayed, Plane, RequestContext
from klamm.apis.control import check_broker_epoch, from_controller
from klamm.apis.guards import FromPeer
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from klamm.replica.state_change import StateChangeResult, StopReplica, stop_replicas
from klamm.waiting import after


def handle(
    broker: Broker, ctx: RequestContext, req: StopReplicaRequest
) -> StopReplicaResponse | Delayed[StopReplicaResponse]:
    def refuse(error: ErrorCode) -> StopReplicaResponse:
        return StopReplicaResponse(error_code=error, partition_errors=())

    def stop() -> StopReplicaResponse | Delayed[StopReplicaResponse]:
        return broker.replicas.exclusively(lambda: _stop(broker, ctx, req))

    return from_controller(broker, ctx, req, first_with_broker_epoch=1, handle=stop, refuse=refuse)


def _stop(
    broker: Broker, ctx: RequestContext, req: StopReplicaRequest
) -> StopReplicaResponse | Delayed[StopReplicaResponse]:
    if error := check_broker_epoch(broker, req.broker_epoch):
        return StopReplicaResponse(error_code=error, partition_errors=())
    return after(stop_replicas(broker.replicas, req.controller_epoch, _stops(req), ctx.correlation_id), _respond)


def _respond(result: StateChangeResult) -> StopReplicaResponse:
    return StopReplicaResponse(
        error_code=result.error,
        partition_errors=[
            StopReplicaPartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=code)
            for tp, code in result.partitions.items()
        ],
    )


def _stops(req: StopReplicaRequest) -> list[StopReplica]:
    delete = req.delete_partitions
    stops = [
        StopReplica(TopicPartition(p.topic_name, p.partition_index), delete=delete) for p in req.ungrouped_partitions
    ]
    stops += [
        StopReplica(TopicPartition(topic.name, index), delete=delete)
        for topic in req.topics
        for index in topic.partition_indexes
    ]
    stops += [
        StopReplica(TopicPartition(topic.topic_name, p.partition_index), p.leader_epoch, p.delete_partition)
        for topic in req.topic_states
        for p in topic.partition_states
    ]
    return stops


_GUARD: Final = FromPeer(
    lambda ctx, req, error: StopReplicaResponse(error_code=error, partition_errors=()),
    sender=lambda req: req.controller_id,
)
API = Api(StopReplicaRequest, StopReplicaResponse, versions=(0, 4), plane=Plane.CONTROL, handle=handle, guard=_GUARD)
