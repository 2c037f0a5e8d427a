"""CreatePartitions (37): the controller grows topics, and this broker answers when it knows the leaders of all
partitions.

v0-3. A topic named twice is INVALID_REQUEST (42); a broker that is not the controller answers NOT_CONTROLLER (41). A
client whose controller mutation quota is used up gets THROTTLING_QUOTA_EXCEEDED (89) from v3 on; before, it is only
throttled (KIP-599).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from operator import attrgetter
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, at_once
from klamm.apis.deadlines import Deadline
from klamm.apis.guards import Each
from klamm.apis.mutation_charges import MutationCharges, partition_count
from klamm.apis.parts import Parts, in_parts
from klamm.apis.topic_waits import await_all
from klamm.controller import events
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import after

_FIRST_STRICT: Final = 3


def handle(
    broker: Broker, ctx: RequestContext, req: CreatePartitionsRequest
) -> CreatePartitionsResponse | asyncio.Future[CreatePartitionsResponse]:
    counts = Counter(topic.name for topic in req.topics)
    refused = {
        name: TopicResult(name, ErrorCode.INVALID_REQUEST, "The topic is in the request more than once.")
        for name, count in counts.items()
        if count > 1
    }
    charges = MutationCharges[str](broker, ctx, strict_since=_FIRST_STRICT, is_dry=req.validate_only)
    if charges.is_limited:
        refused |= _charge(broker, charges, [topic for topic in req.topics if topic.name not in refused])
    asked = {topic.name: topic for topic in req.topics if topic.name not in refused}
    deadline = Deadline(broker.loop, req.timeout_ms)
    event = events.CreatePartitions(tuple(_event_topic(topic) for topic in asked.values()), req.validate_only)

    def on_reply(reply: TopicResults) -> CreatePartitionsResponse | asyncio.Future[CreatePartitionsResponse]:
        at_once(charges.settle((result.name for result in reply.topics), reply))
        if reply.error != ErrorCode.NONE:
            return _response({topic.name: TopicResult(topic.name, reply.error) for topic in req.topics})
        return _await_leaders(broker, req, deadline, asked, refused | {result.name: result for result in reply.topics})

    return after(broker.controller.submit(event, req.timeout_ms), on_reply)


def _charge(
    broker: Broker, charges: MutationCharges[str], topics: list[CreatePartitionsTopic]
) -> dict[str, TopicResult]:
    refused: dict[str, TopicResult] = {}
    for topic in topics:
        existing = partition_count(broker, topic.name)
        refusal = charges.charge(topic.name, topic.name, topic.count - existing) if existing else None
        if refusal is not None:
            refused[topic.name] = refusal
    return refused


def _event_topic(topic: CreatePartitionsTopic) -> events.CreatablePartitions:
    assignments = topic.assignments
    return events.CreatablePartitions(
        topic.name,
        topic.count,
        None if assignments is None else tuple(tuple(assigned.broker_ids) for assigned in assignments),
    )


def _weight(topic: CreatePartitionsTopic) -> int:
    return 1 + len(topic.assignments or ()) // 10


def _await_leaders(
    broker: Broker,
    req: CreatePartitionsRequest,
    deadline: Deadline,
    asked: dict[str, CreatePartitionsTopic],
    results: dict[str, TopicResult],
) -> CreatePartitionsResponse | asyncio.Future[CreatePartitionsResponse]:
    grown = [] if req.validate_only else [name for name, r in results.items() if r.error == ErrorCode.NONE]

    def respond(late: set[str]) -> CreatePartitionsResponse:
        message = "The partitions are created, but not all of them have a leader yet."
        return _response(results | {name: TopicResult(name, ErrorCode.REQUEST_TIMED_OUT, message) for name in late})

    def is_there(name: str) -> bool:
        return broker.metadata.has_leaders(name, range(asked[name].count))

    answer: CreatePartitionsResponse | asyncio.Future[CreatePartitionsResponse] = at_once(
        await_all(broker.topic_purgatory, grown, deadline.remaining_ms, is_there, respond)
    )
    return answer


def _response(results: dict[str, TopicResult]) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        throttle_time_ms=0,
        results=[
            CreatePartitionsTopicResult(name=name, error_code=result.error, error_message=result.message)
            for name, result in results.items()
        ],
    )


_PARTS: Final = Parts(asked="topics", answers="results", most=100, weigh=_weight, key=attrgetter("name"), copies=2)
_GUARD: Final = Each(
    kind=ResourceType.TOPIC,
    operation=AclOperation.ALTER,
    asked="topics",
    answers="results",
    name=lambda topic: topic.name,
    refuse=lambda topic, error: CreatePartitionsTopicResult(
        name=topic.name, error_code=error, error_message="The topic authorization is failed."
    ),
)
API = Api(
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    versions=(0, 3),
    plane=Plane.DATA,
    handle=in_parts(handle, _PARTS),
    guard=_GUARD,
)
