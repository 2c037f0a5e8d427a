"""DeleteTopics (20): the controller deletes, this broker answers when its own metadata has forgotten the topics.

v0-6: TOPIC_DELETION_DISABLED (73) instead of INVALID_REQUEST (42) v3; error messages v5; by topic id v6, where an
unknown id is UNKNOWN_TOPIC_ID (100). A topic that is named twice is deleted once and answered twice. A broker that is
not the controller answers NOT_CONTROLLER (41).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from klamm.apis import slices
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced
from klamm.apis.deadlines import Deadline
from klamm.apis.slices import Steps, begin
from klamm.apis.topic_waits import await_all
from klamm.controller import events
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID
from klamm.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from klamm.waiting import after


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
        return (yield from _refuse(asked, disabled, "Topic deletion is disabled."))
    names, ids = yield from _keys(asked)
    event = events.DeleteTopics(tuple(names), tuple(ids))

    def on_reply(reply: TopicResults) -> Any:
        if reply.error != ErrorCode.NONE:
            return begin(_refuse(asked, reply.error, None))
        return begin(_await_gone(broker, deadline, asked, zip((*names, *ids), reply.topics, strict=True)))

    return after(broker.controller.submit(event, req.timeout_ms), on_reply)


def _keys(asked: list[_Asked]) -> Steps[tuple[dict[str, None], dict[UUID, None]]]:
    """Return the topics to delete, each once: names, and ids of topics that are not among these."""
    names: dict[str, None] = {}
    ids: dict[UUID, None] = {}

    def add_name(each: _Asked) -> None:
        if each.error == ErrorCode.NONE and each.name is not None and not each.by_id:
            names[each.name] = None

    def add_id(each: _Asked) -> None:
        if each.error == ErrorCode.NONE and each.by_id and each.name not in names:
            ids[each.topic_id] = None

    yield from slices.each(asked, add_name)
    yield from slices.each(asked, add_id)
    return names, ids


def _refuse(asked: list[_Asked], error: ErrorCode, message: str | None) -> Steps[DeleteTopicsResponse]:
    refused = yield from slices.each(asked, lambda each: each._replace(error=error, message=message))
    return (yield from _response(refused, {}))


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


def _await_gone(
    broker: Broker, deadline: Deadline, asked: list[_Asked], replies: Iterable[tuple[str | UUID, TopicResult]]
) -> Steps[Any]:
    results: dict[str | UUID, TopicResult] = {}
    deleted: dict[str, None] = {}

    def note(reply: tuple[str | UUID, TopicResult]) -> None:
        key, result = reply
        results[key] = result
        if result.error == ErrorCode.NONE:
            deleted[result.name] = None

    yield from slices.each(replies, note)

    def respond(late: set[str]) -> Any:
        message = "The topic is still being deleted."
        for key in [key for key, result in results.items() if result.name in late] if late else ():
            results[key] = replace(results[key], error=ErrorCode.REQUEST_TIMED_OUT, message=message)
        return begin(_response(asked, results))

    remaining_ms = deadline.remaining_ms
    return (
        yield from await_all(
            broker.topic_purgatory, deleted, remaining_ms, lambda name: not broker.metadata.contains(name), respond
        )
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
