"""CreateTopics (19): the controller creates topics, and this broker answers when its metadata has all leaders.

v0-7: validate-only v1; defaults for both counts (-1) v4; effective configurations in the response v5; topic ids v7. A
topic named twice, and `__cluster_metadata`, is INVALID_REQUEST (42); an invalid configuration is INVALID_CONFIG (40). A
broker that is not the controller answers NOT_CONTROLLER (41). If the time runs out, the topic exists and the answer is
REQUEST_TIMED_OUT (7). Topics beyond 100,000 partitions in one request are POLICY_VIOLATION (44). A client whose
controller mutation quota is used up gets THROTTLING_QUOTA_EXCEEDED (89) from v6 on; before, it is only throttled
(KIP-599).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from klamm.apis.access import may, may_on_cluster
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.deadlines import Deadline
from klamm.apis.mutation_charges import MutationCharges
from klamm.apis.slices import each
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
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin, result_of

_FIRST_STRICT: Final = 6
_TOPICS_PER_SLICE: Final = 10
"""Each is answered with all its settings."""


def handle(broker: Broker, ctx: RequestContext, req: CreateTopicsRequest) -> Answer[CreateTopicsResponse]:
    return begin(_create(broker, ctx, req))


def _create(broker: Broker, ctx: RequestContext, req: CreateTopicsRequest) -> Steps[Any]:
    deadline = Deadline(broker.loop, req.timeout_ms)
    refused = yield from _refusals(broker, ctx, req)
    charges = MutationCharges[str](broker, ctx, strict_since=_FIRST_STRICT, is_dry=req.validate_only)
    if charges.is_limited:
        yield from each(req.topics, lambda topic: _charge(broker, charges, refused, topic))
    topics = yield from each((topic for topic in req.topics if topic.name not in refused), _event_topic)
    event = events.CreateTopics(tuple(topics), req.validate_only)
    ctx.hold(topics)
    reply = yield from result_of(broker.controller.submit(event, req.timeout_ms))
    yield from charges.settle((result.name for result in reply.topics), reply)
    if reply.error != ErrorCode.NONE:
        return (yield from _refuse(broker, ctx, req, reply.error))
    return (yield from _await_leaders(broker, ctx, req, deadline, refused, reply))


def _charge(
    broker: Broker, charges: MutationCharges[str], refused: dict[str, TopicResult], topic: CreatableTopic
) -> None:
    if topic.name in refused or broker.metadata.contains(topic.name):
        return
    count = len(topic.assignments) or topic.num_partitions
    refusal = charges.charge(topic.name, topic.name, broker.config.num_partitions if count == -1 else count)
    if refusal is not None:
        refused[topic.name] = refusal


def _refuse(
    broker: Broker, ctx: RequestContext, req: CreateTopicsRequest, error: ErrorCode
) -> Steps[CreateTopicsResponse]:
    results: dict[str, TopicResult] = {}
    ctx.hold(results)
    yield from each(req.topics, lambda topic: results.setdefault(topic.name, TopicResult(topic.name, error)))
    return (yield from _response(broker, ctx, req, results, set()))


def _refusals(broker: Broker, ctx: RequestContext, req: CreateTopicsRequest) -> Steps[dict[str, TopicResult]]:
    """Return refusals that need no controller."""
    refused: dict[str, TopicResult] = {}
    counts: dict[str, int] = {}
    ctx.hold(refused, counts)

    def count(topic: CreatableTopic) -> None:
        counts[topic.name] = counts.get(topic.name, 0) + 1

    yield from each(req.topics, count)

    may_create_all = may_on_cluster(broker, ctx, AclOperation.CREATE, is_probe=True)

    def may_create(name: str) -> bool:
        return may_create_all or may(broker, ctx, AclOperation.CREATE, ResourceType.TOPIC, name)

    def check(topic: CreatableTopic) -> None:
        if (refusal := _refusal(topic, counts[topic.name], may_create)) is not None:
            refused[topic.name] = TopicResult(topic.name, *refusal)

    yield from each(req.topics, check)
    return refused


def _refusal(topic: CreatableTopic, count: int, may_create: Callable[[str], bool]) -> tuple[ErrorCode, str] | None:
    if count > 1:
        return ErrorCode.INVALID_REQUEST, f"The topic {topic.name} is in the request {count} times."
    if topic.name == CLUSTER_METADATA_TOPIC:
        return ErrorCode.INVALID_REQUEST, f"Creation of internal topic {topic.name} is prohibited."
    if not may_create(topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."
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
    broker: Broker,
    ctx: RequestContext,
    req: CreateTopicsRequest,
    deadline: Deadline,
    results: dict[str, TopicResult],
    reply: TopicResults,
) -> Steps[Any]:
    """Add the controller's results to those that needed no controller, and wait for the leaders of new topics."""
    created: dict[str, TopicResult] = {}

    def note(result: TopicResult) -> None:
        results[result.name] = result
        if result.error == ErrorCode.NONE and not req.validate_only:
            created[result.name] = result

    yield from each(reply.topics, note)
    return (
        yield from await_all(
            broker.topic_purgatory,
            created,
            deadline.remaining_ms,
            lambda name: broker.metadata.has_leaders(name, range(created[name].num_partitions)),
            lambda late: begin(_response(broker, ctx, req, results, late)),
        )
    )


def _response(
    broker: Broker,
    ctx: RequestContext,
    req: CreateTopicsRequest,
    results: dict[str, TopicResult],
    timed_out: set[str],
) -> Steps[CreateTopicsResponse]:
    topics: dict[str, CreatableTopic] = {}
    ctx.hold(topics)
    yield from each(req.topics, lambda topic: topics.setdefault(topic.name, topic))
    answers = yield from each(
        topics.values(),
        lambda topic: _result(broker, ctx, topic, results[topic.name], topic.name in timed_out),
        _TOPICS_PER_SLICE,
    )
    return CreateTopicsResponse(topics=answers)


def _result(
    broker: Broker, ctx: RequestContext, topic: CreatableTopic, result: TopicResult, is_late: bool
) -> CreatableTopicResult:
    if is_late:
        return CreatableTopicResult(
            name=topic.name,
            error_code=ErrorCode.REQUEST_TIMED_OUT,
            error_message="The topic is created, but not all its partitions have a leader yet.",
        )
    if result.error != ErrorCode.NONE:
        return CreatableTopicResult(name=topic.name, error_code=result.error, error_message=result.message)
    if not may(broker, ctx, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name, is_probe=True):
        return CreatableTopicResult(
            name=topic.name,
            topic_id=result.topic_id,
            error_code=ErrorCode.NONE,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            configs=(),
        )
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
