"""LeaderAndIsr (4): the controller assigns this broker the partitions to lead and to follow.

v0-7: broker epoch and grouping by topic v2; adding and removing replicas v3; topic ids v5, from where the response
names topics by id only; recovery state v6 (recovering counts as recovered); KRaft flag v7 (read and not used).
A whole-request error (77 stale broker, 11 stale controller, -1 a bug) is repeated for every partition. A request of
thousands of partitions is applied in several turns of the loop; no other control request is handled before it is
complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.control import check_broker_epoch, from_controller
from klamm.apis.guards import FromPeer
from klamm.apis.slices import each, each_partition
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, TopicPartition, make_topic_partition
from klamm.protocol.chunked import ChunkedList, concatenated
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.replica.state_change import StateChangeResult, TopicPartitionStates, become_leader_or_follower
from klamm.waiting import Steps, after, begin


def handle(broker: Broker, ctx: RequestContext, req: LeaderAndIsrRequest) -> Answer[LeaderAndIsrResponse]:
    return begin(_change(broker, ctx, req))


def _change(broker: Broker, ctx: RequestContext, req: LeaderAndIsrRequest) -> Steps[Any]:
    topics = yield from _topics(req)
    new = yield from _new_topics(broker, topics)

    def refuse(error: ErrorCode) -> LeaderAndIsrResponse:
        return _sliced(_refuse(ctx, req, error))

    def change() -> LeaderAndIsrResponse | asyncio.Future[LeaderAndIsrResponse]:
        return broker.replicas.exclusively(lambda: _apply(broker, ctx, req, topics), wait_for=_configs(broker, new))

    return from_controller(broker, ctx, req, first_with_broker_epoch=2, handle=change, refuse=refuse)


def _sliced(steps: Steps[LeaderAndIsrResponse]) -> LeaderAndIsrResponse:
    """The response or, if it is large, the steps that make it: callers accept either."""
    return cast("LeaderAndIsrResponse", begin(steps))


def _refuse(ctx: RequestContext, req: LeaderAndIsrRequest, error: ErrorCode) -> Steps[LeaderAndIsrResponse]:
    """Build the refusal in slices: any client can send a large request."""
    topics = yield from _topics(req)
    ctx.hold(topics)
    return (yield from _response(ctx.api_version, error, topics, {}))


def _new_topics(broker: Broker, topics: Sequence[TopicPartitionStates]) -> Steps[Iterable[str]]:
    """Return the topics with a partition that has no log on this broker."""
    logs = broker.logs.logs
    new: dict[str, None] = {}

    def note(topic: TopicPartitionStates, state: LeaderAndIsrPartitionState) -> None:
        if (topic.topic, state.partition_index) not in logs:
            new[topic.topic] = None

    yield from each_partition(topics, lambda topic: topic.states, note, lambda *_: None)
    return new


def _configs(broker: Broker, new: Iterable[str]) -> asyncio.Future[None] | None:
    """Read the configurations of topics that are new to this broker: their logs are created with them."""
    refresh = broker.configs.refresh_topics
    return refresh(list(new)) if new and refresh is not None else None


def _apply(
    broker: Broker, ctx: RequestContext, req: LeaderAndIsrRequest, topics: Sequence[TopicPartitionStates]
) -> LeaderAndIsrResponse | asyncio.Future[LeaderAndIsrResponse]:
    if error := check_broker_epoch(broker, req.broker_epoch):
        return _sliced(_response(ctx.api_version, error, topics, {}))

    def respond(done: StateChangeResult) -> LeaderAndIsrResponse:
        return _sliced(_response(ctx.api_version, done.error, topics, done.partitions))

    changing = become_leader_or_follower(broker.replicas, req.controller_epoch, topics, ctx.correlation_id)
    return after(changing, respond)


def _topics(req: LeaderAndIsrRequest) -> Steps[Sequence[TopicPartitionStates]]:
    grouped: dict[str, list[LeaderAndIsrPartitionState]] = {}
    yield from each(
        req.ungrouped_partition_states, lambda state: grouped.setdefault(state.topic_name, []).append(state)
    )
    ungrouped = yield from each(grouped.items(), lambda topic: TopicPartitionStates(topic[0], ZERO_UUID, topic[1]))
    topics = yield from each(
        req.topic_states, lambda t: TopicPartitionStates(t.topic_name, t.topic_id, t.partition_states)
    )
    return concatenated(ungrouped, topics)


def _response(
    version: int, error: ErrorCode, topics: Sequence[TopicPartitionStates], codes: dict[TopicPartition, ErrorCode]
) -> Steps[LeaderAndIsrResponse]:
    """Build the response. An error of the whole request is repeated for every partition."""
    is_named = version < 5
    flat: ChunkedList[LeaderAndIsrPartitionError] = ChunkedList()

    def gather(
        topic: TopicPartitionStates, errors: Sequence[LeaderAndIsrPartitionError]
    ) -> LeaderAndIsrTopicError | None:
        if is_named:
            flat.extend(errors)
            return None
        return LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors)

    answers = yield from each_partition(
        topics,
        lambda topic: topic.states,
        lambda topic, state: LeaderAndIsrPartitionError(
            topic_name=topic.topic if is_named else "",
            partition_index=state.partition_index,
            error_code=error or codes[make_topic_partition((topic.topic, state.partition_index))],
        ),
        gather,
    )
    if is_named:
        return LeaderAndIsrResponse(error_code=error, partition_errors=flat)
    return LeaderAndIsrResponse(error_code=error, topics=cast("Sequence[LeaderAndIsrTopicError]", answers))


_GUARD: Final = FromPeer(
    lambda ctx, req, error: _sliced(_refuse(ctx, req, error)), sender=lambda req: req.controller_id
)
API = Api(LeaderAndIsrRequest, LeaderAndIsrResponse, versions=(0, 7), plane=Plane.CONTROL, handle=handle, guard=_GUARD)
