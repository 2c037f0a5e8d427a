"""DeleteTopics (20): the controller deletes, this broker answers when its own metadata has forgotten the topics.

v0-6: TOPIC_DELETION_DISABLED (73) instead of INVALID_REQUEST (42) v3; error messages v5; by topic id v6, where an
unknown id is UNKNOWN_TOPIC_ID (100). A topic that is named twice is deleted once and answered twice. A broker that is
not the controller says NOT_CONTROLLER (41).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from klamm.apis import slices
from klamm.apis.deadlines import Deadline
from klamm.apis.registry import Api, Broker, Plane, RequestContext, Sliced, then
from klamm.apis.slices import Steps, begin
from klamm.apis.topic_waits import await_topics
from klamm.controller import events
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID
from klamm.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse


class _Asked(NamedTuple):
    """A topic of the request, by name or by id. `name` is None when it was asked for by id and is not known here."""

    name: str | None
    topic_id: UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    by_id: bool = False


def handle(
    broker: Broker, ctx: RequestContext, req: DeleteTopicsRequest
) -> DeleteTopicsResponse | asyncio.Future[DeleteTopicsResponse] | Sliced[DeleteTopicsResponse]:
    return begin(_delete(broker, ctx, req))


def _delete(broker: Broker, ctx: RequestContext, req: DeleteTopicsRequest) -> Steps[Any]:
    deadline = Deadline(broker.loop, req.timeout_ms)
    asked = yield from _asked(broker, req)
    if not broker.config.delete_topic_enable:
        disabled = ErrorCode.INVALID_REQUEST if ctx.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        refused = [each._replace(error=disabled, message="Topic deletion is disabled.") for each in asked]
        return (yield from _response(refused, {}))
    sent = [each for each in asked if each.error == ErrorCode.NONE]
    names = tuple(dict.fromkeys(each.name for each in sent if each.name is not None and not each.by_id))
    ids = tuple(dict.fromkeys(each.topic_id for each in sent if each.by_id and each.name not in names))

    def on_reply(reply: TopicResults) -> Any:
        if reply.error != ErrorCode.NONE:
            return begin(_response([each._replace(error=reply.error, message=None) for each in asked], {}))
        return _await_gone(broker, deadline, asked, dict(zip((*names, *ids), reply.topics, strict=True)))

    return then(broker.controller.submit(events.DeleteTopics(names, ids), req.timeout_ms), on_reply)


def _asked(broker: Broker, req: DeleteTopicsRequest) -> Steps[list[_Asked]]:
    by_name = yield from slices.each(req.topic_names, lambda name: _Asked(name, ZERO_UUID))
    by_either = yield from slices.each(req.topics, lambda topic: _resolve(broker, topic.name, topic.topic_id))
    return by_name + by_either


def _resolve(broker: Broker, name: str | None, topic_id: UUID) -> _Asked:
    if name is not None and topic_id != ZERO_UUID:
        return _Asked(name, topic_id, ErrorCode.INVALID_REQUEST, "Give either a topic's name or its id, not both.")
    if name is not None:
        return _Asked(name, broker.metadata.topic_id(name))
    return _Asked(broker.metadata.topic_name(topic_id), topic_id, by_id=True)


def _await_gone(broker: Broker, deadline: Deadline, asked: list[_Asked], results: dict[str | UUID, TopicResult]) -> Any:
    deleted = [result.name for result in results.values() if result.error == ErrorCode.NONE]

    def respond(late: set[str]) -> Any:
        message = "The topic is still being deleted."
        timed_out = {
            key: replace(result, error=ErrorCode.REQUEST_TIMED_OUT, message=message)
            for key, result in results.items()
            if result.name in late
        }
        return begin(_response(asked, results | timed_out))

    return await_topics(
        broker, deleted, deadline.remaining_ms, lambda name: not broker.metadata.contains(name), respond
    )


def _response(asked: list[_Asked], results: dict[str | UUID, TopicResult]) -> Steps[DeleteTopicsResponse]:
    def answer(each: _Asked) -> DeletableTopicResult:
        name, error, message = each.name, each.error, each.message
        key = each.topic_id if each.by_id and each.topic_id in results else name
        if error == ErrorCode.NONE and key is not None:
            result = results[key]
            name = (result.name or None) if each.by_id else each.name
            error, message = result.error, result.message
        return DeletableTopicResult(name=name, topic_id=each.topic_id, error_code=error, error_message=message)

    responses = yield from slices.each(asked, answer)
    return DeleteTopicsResponse(responses=responses)


API = Api(DeleteTopicsRequest, DeleteTopicsResponse, versions=(0, 6), plane=Plane.DATA, handle=handle)
