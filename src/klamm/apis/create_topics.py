"""CreateTopics (19): the controller creates, this broker answers when its own metadata knows all leaders.

v0-7: validate-only v1; defaults for both counts (-1) v4; effective configurations in the response v5; topic ids v7.
A topic named twice, and `__cluster_metadata`, is INVALID_REQUEST (42), a configuration that is not good INVALID_CONFIG
(40), a broker that is not the controller answers NOT_CONTROLLER (41). If the time runs out, the topic exists and
the answer is REQUEST_TIMED_OUT (7). Topics beyond 100,000 partitions in one request are POLICY_VIOLATION (44).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced
from klamm.apis.deadlines import Deadline
from klamm.apis.slices import Steps, begin, each
from klamm.apis.topic_waits import await_all
from klamm.config import validate_topic_config
from klamm.config.entries import topic_entries
from klamm.controller import events
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.model import CLUSTER_METADATA_TOPIC
from klamm.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.waiting import after

_TOPICS_A_SLICE: Final = 10
"""Each is answered with all its settings."""


def handle(
    broker: Broker, ctx: RequestContext, req: CreateTopicsRequest
) -> asyncio.Future[CreateTopicsResponse] | Sliced[CreateTopicsResponse]:
    return begin(_create(broker, req))


def _create(broker: Broker, req: CreateTopicsRequest) -> Steps[asyncio.Future[CreateTopicsResponse]]:
    deadline = Deadline(broker.loop, req.timeout_ms)
    refused = yield from _refusals(req)
    asked = {topic.name: topic for topic in req.topics if topic.name not in refused}
    topics = yield from each(asked.values(), _event_topic)
    event = events.CreateTopics(tuple(topics), req.validate_only)

    def on_reply(reply: TopicResults) -> Any:
        if reply.error != ErrorCode.NONE:
            return begin(_refuse(broker, req, reply.error))
        return _await_leaders(broker, req, deadline, refused | {result.name: result for result in reply.topics})

    return after(broker.controller.submit(event, req.timeout_ms), on_reply)


def _refuse(broker: Broker, req: CreateTopicsRequest, error: ErrorCode) -> Steps[CreateTopicsResponse]:
    results = yield from each(req.topics, lambda topic: (topic.name, TopicResult(topic.name, error)))
    return (yield from _response(broker, req, dict(results), set()))


def _refusals(req: CreateTopicsRequest) -> Steps[dict[str, TopicResult]]:
    """Return refusals that need no controller."""
    refused: dict[str, TopicResult] = {}
    counts = Counter(topic.name for topic in req.topics)

    def check(topic: CreatableTopic) -> None:
        if (refusal := _refusal(topic, counts[topic.name])) is not None:
            refused[topic.name] = TopicResult(topic.name, *refusal)

    yield from each(req.topics, check)
    return refused


def _refusal(topic: CreatableTopic, count: int) -> tuple[ErrorCode, str] | None:
    if count > 1:
        return ErrorCode.INVALID_REQUEST, f"The topic {topic.name} is in the request {count} times."
    if topic.name == CLUSTER_METADATA_TOPIC:
        return ErrorCode.INVALID_REQUEST, f"Creation of internal topic {topic.name} is prohibited."
    if topic.assignments and (topic.num_partitions != -1 or topic.replication_factor != -1):
        return ErrorCode.INVALID_REQUEST, "Give either the replica assignments or both counts, not both."
    if len({a.partition_index for a in topic.assignments}) != len(topic.assignments):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned more than once."
    configs = {config.name: config.value for config in topic.configs}
    if (problem := validate_topic_config(configs)) is not None:
        return ErrorCode.INVALID_CONFIG, problem
    return None


def _event_topic(topic: CreatableTopic) -> events.CreatableTopic:
    return events.CreatableTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((assigned.partition_index, tuple(assigned.broker_ids)) for assigned in topic.assignments),
        tuple((config.name, config.value) for config in topic.configs if config.value is not None),
    )


def _await_leaders(
    broker: Broker, req: CreateTopicsRequest, deadline: Deadline, results: dict[str, TopicResult]
) -> Any:
    created = {} if req.validate_only else {n: r for n, r in results.items() if r.error == ErrorCode.NONE}
    return begin(
        await_all(
            broker.topic_purgatory,
            created,
            deadline.remaining_ms,
            lambda name: broker.metadata.has_leaders(name, range(created[name].num_partitions)),
            lambda late: begin(_response(broker, req, results, late)),
        )
    )


def _response(
    broker: Broker, req: CreateTopicsRequest, results: dict[str, TopicResult], timed_out: set[str]
) -> Steps[CreateTopicsResponse]:
    topics = {topic.name: topic for topic in req.topics}
    answers = yield from each(
        topics.values(),
        lambda topic: _result(broker, topic, results[topic.name], topic.name in timed_out),
        _TOPICS_A_SLICE,
    )
    return CreateTopicsResponse(topics=answers)


def _result(broker: Broker, topic: CreatableTopic, result: TopicResult, is_late: bool) -> CreatableTopicResult:
    if is_late:
        return CreatableTopicResult(
            name=topic.name,
            error_code=ErrorCode.REQUEST_TIMED_OUT,
            error_message="The topic is created, but not all its partitions have a leader yet.",
        )
    if result.error != ErrorCode.NONE:
        return CreatableTopicResult(name=topic.name, error_code=result.error, error_message=result.message)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=result.topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=_configs(broker, topic),
    )


def _configs(broker: Broker, topic: CreatableTopic) -> list[CreatableTopicConfigs]:
    overrides = {config.name: config.value for config in topic.configs if config.value is not None}
    return [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in topic_entries(broker.configs, overrides)
    ]


API = Api(CreateTopicsRequest, CreateTopicsResponse, versions=(0, 7), plane=Plane.DATA, handle=handle)
