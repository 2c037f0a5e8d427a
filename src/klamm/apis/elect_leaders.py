"""ElectLeaders (43): elects the preferred leaders, or replicas that are not in sync if there is no other leader.

v0-2: election type v1 (v0: preferred). Null partitions means all; those that need no election are then left out of the
response. Answers when this broker's metadata shows the new leaders. A broker that is not the controller answers
NOT_CONTROLLER (41) for every partition and no error for the whole, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.deadlines import Deadline
from klamm.apis.guards import needs_cluster
from klamm.apis.slices import each, each_partition, pause
from klamm.apis.topic_waits import await_all
from klamm.controller import events
from klamm.controller.replies import PartitionResult, PartitionResults, made
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages import elect_leaders as wire
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, ReplicaElectionResult
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin, result_of


def handle(broker: Broker, ctx: RequestContext, req: ElectLeadersRequest) -> Answer[ElectLeadersResponse]:
    return begin(_elect(broker, ctx, req))


def _elect(broker: Broker, ctx: RequestContext, req: ElectLeadersRequest) -> Steps[Any]:
    if req.election_type not in (0, 1):
        return ElectLeadersResponse(
            throttle_time_ms=0, error_code=ErrorCode.INVALID_REQUEST, replica_election_results=()
        )
    deadline = Deadline(broker.loop, req.timeout_ms)
    partitions = yield from _asked(ctx, req)
    if not broker.controller.is_active:
        return (yield from _not_controller(broker, ctx, req, partitions))
    yield from pause(partitions or ())
    event = events.ReplicaLeaderElection(partitions, events.ElectionType(req.election_type))
    reply = yield from result_of(broker.controller.submit(event, req.timeout_ms))
    if reply.error is ErrorCode.NOT_CONTROLLER:
        return (yield from _not_controller(broker, ctx, req, partitions))
    return (yield from _await_leaders(broker, ctx, req, deadline, reply))


def _asked(ctx: RequestContext, req: ElectLeadersRequest) -> Steps[tuple[TopicPartition, ...] | None]:
    if req.topic_partitions is None:
        return None
    asked: list[TopicPartition] = []
    yield from each_partition(
        req.topic_partitions,
        lambda topic: topic.partitions,
        lambda topic, index: asked.append(TopicPartition(topic.topic, index)),
        lambda *_: None,
    )
    ctx.hold(asked)
    yield from pause(asked)
    return tuple(asked)


def _not_controller(
    broker: Broker, ctx: RequestContext, req: ElectLeadersRequest, partitions: Iterable[TopicPartition] | None
) -> Steps[ElectLeadersResponse]:
    if partitions is None:
        topics = broker.metadata.snapshot.topics
        partitions = (state.topic_partition for topic in topics.values() for state in topic.partitions.values())
    results = yield from each(partitions, lambda tp: PartitionResult(tp, ErrorCode.NOT_CONTROLLER))
    return (yield from _response(ctx, req, PartitionResults(tuple(results)), set()))


def _await_leaders(
    broker: Broker, ctx: RequestContext, req: ElectLeadersRequest, deadline: Deadline, reply: PartitionResults
) -> Steps[Any]:
    elected: list[TopicPartition] = []

    def note(result: PartitionResult) -> None:
        if result.error == ErrorCode.NONE:
            elected.append(result.partition)

    yield from each(reply.partitions, note)
    is_preferred = req.election_type == events.ElectionType.PREFERRED.value

    def is_seen(tp: TopicPartition) -> bool:
        state = broker.metadata.partition(tp.topic, tp.partition)
        if state is None or not state.replicas:
            return True
        return state.leader == state.replicas[0] if is_preferred else state.leader >= 0

    return (
        yield from await_all(
            broker.election_purgatory,
            elected,
            deadline.remaining_ms,
            is_seen,
            lambda late: begin(_response(ctx, req, reply, late)),
        )
    )


def _response(
    ctx: RequestContext, req: ElectLeadersRequest, reply: PartitionResults, late: set[TopicPartition]
) -> Steps[ElectLeadersResponse]:
    topics: dict[str, list[wire.PartitionResult]] = {}
    ctx.hold(made(reply.partitions), topics)

    def add(result: PartitionResult) -> None:
        is_late = result.partition in late
        error, message = (ErrorCode.REQUEST_TIMED_OUT, None) if is_late else (result.error, result.message)
        topics.setdefault(result.partition.topic, []).append(
            wire.PartitionResult(partition_id=result.partition.partition, error_code=error, error_message=message)
        )

    yield from each(_results_to_report(req, reply.partitions), add)
    results = yield from each(
        topics.items(), lambda topic: ReplicaElectionResult(topic=topic[0], partition_result=topic[1])
    )
    return ElectLeadersResponse(throttle_time_ms=0, error_code=reply.error, replica_election_results=results)


def _results_to_report(req: ElectLeadersRequest, results: Iterable[PartitionResult]) -> Iterable[PartitionResult]:
    if req.topic_partitions is not None:
        return results
    return (result for result in results if result.error != ErrorCode.ELECTION_NOT_NEEDED)


def _refused(ctx: RequestContext, req: ElectLeadersRequest, error: ErrorCode) -> Any:
    return begin(_refusal(ctx, req, error))


def _refusal(ctx: RequestContext, req: ElectLeadersRequest, error: ErrorCode) -> Steps[ElectLeadersResponse]:
    partitions = (yield from _asked(ctx, req)) or ()
    results = yield from each(partitions, lambda tp: PartitionResult(tp, error))
    return (yield from _response(ctx, req, PartitionResults(tuple(results), error), set()))


_GUARD: Final = needs_cluster(AclOperation.ALTER, _refused)
API = Api(ElectLeadersRequest, ElectLeadersResponse, versions=(0, 2), plane=Plane.DATA, handle=handle, guard=_GUARD)
