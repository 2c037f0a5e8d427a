"""LeaderAndIsr (4): the controller tells this broker which partitions to lead and which to follow.

v0-7: broker epoch and grouping by topic v2; adding and removing replicas v3; topic ids v5, from where the response
names topics by id only; recovery state v6 (recovering counts as recovered); KRaft flag v7 (read and not used).
A whole-request error (77 stale broker, 11 stale controller, -1 a bug) is repeated for every partition. A request of
thousands of partitions is applied in several turns of the loop; no other control request is handled before it is
complete.
"""

from __future__ import annotations

import asyncio

from klamm.apis.control import answered, check_broker_epoch, confirmed, in_order
from klamm.apis.registry import Api, Broker, Delayed, Plane, RequestContext, then
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.replica.state_change import StateChangeResult, TopicPartitionStates


def handle(
    broker: Broker, ctx: RequestContext, req: LeaderAndIsrRequest
) -> LeaderAndIsrResponse | Delayed[LeaderAndIsrResponse]:
    topics = _topics(req)

    def refuse(error: ErrorCode) -> LeaderAndIsrResponse:
        return _respond(ctx, topics, StateChangeResult(error))

    def change() -> LeaderAndIsrResponse | Delayed[LeaderAndIsrResponse]:
        return in_order(broker, _configs(broker, topics), lambda: _apply(broker, ctx, req, topics))

    return answered("LeaderAndIsr", lambda: confirmed(broker, req, ctx.api_version >= 2, change, refuse), refuse)


def _configs(broker: Broker, topics: list[TopicPartitionStates]) -> asyncio.Future[None] | None:
    """A log is made with its topic's configuration, so that of topics new to this broker is read first."""
    logs = broker.logs
    new = [
        t.topic
        for t in topics
        if any(logs.get_log(TopicPartition(t.topic, s.partition_index)) is None for s in t.states)
    ]
    refresh = broker.configs.refresh_topics
    return refresh(new) if new and refresh is not None else None


def _apply(
    broker: Broker, ctx: RequestContext, req: LeaderAndIsrRequest, topics: list[TopicPartitionStates]
) -> LeaderAndIsrResponse | Delayed[LeaderAndIsrResponse]:
    if error := check_broker_epoch(broker, req.broker_epoch):
        return _respond(ctx, topics, StateChangeResult(error))
    result = broker.replicas.become_leader_or_follower(req.controller_epoch, topics)
    if isinstance(result, asyncio.Future):
        return then(result, lambda done: _respond(ctx, topics, done))
    return _respond(ctx, topics, result)


def _respond(
    ctx: RequestContext, topics: list[TopicPartitionStates], result: StateChangeResult
) -> LeaderAndIsrResponse:
    error, codes = result.error, result.partitions
    if error != ErrorCode.NONE:
        codes = {TopicPartition(t.topic, state.partition_index): error for t in topics for state in t.states}
    return _response(ctx.api_version, error, topics, codes)


def _topics(req: LeaderAndIsrRequest) -> list[TopicPartitionStates]:
    grouped: dict[str, list[LeaderAndIsrPartitionState]] = {}
    for state in req.ungrouped_partition_states:
        grouped.setdefault(state.topic_name, []).append(state)
    topics = [TopicPartitionStates(name, ZERO_UUID, states) for name, states in grouped.items()]
    return topics + [TopicPartitionStates(t.topic_name, t.topic_id, t.partition_states) for t in req.topic_states]


def _response(
    version: int, error: ErrorCode, topics: list[TopicPartitionStates], codes: dict[TopicPartition, ErrorCode]
) -> LeaderAndIsrResponse:
    if version < 5:
        return LeaderAndIsrResponse(
            error_code=error,
            partition_errors=[
                LeaderAndIsrPartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=code)
                for tp, code in codes.items()
            ],
        )
    return LeaderAndIsrResponse(
        error_code=error,
        topics=[
            LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    LeaderAndIsrPartitionError(
                        partition_index=state.partition_index,
                        error_code=codes[TopicPartition(topic.topic, state.partition_index)],
                    )
                    for state in topic.states
                ],
            )
            for topic in topics
        ],
    )


API = Api(LeaderAndIsrRequest, LeaderAndIsrResponse, versions=(0, 7), plane=Plane.CONTROL, handle=handle)
