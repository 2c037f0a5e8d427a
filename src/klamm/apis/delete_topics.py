"""DeleteTopics (20): the controller deletes, this broker answers when its own metadata has forgotten the topics.

v0-6: TOPIC_DELETION_DISABLED (73) instead of INVALID_REQUEST (42) v3; error messages v5; by topic id v6, where an
unknown id is UNKNOWN_TOPIC_ID (100). A topic that is named twice is deleted once and answered twice. A broker that is
not the controller answers NOT_CONTROLLER (41). A client whose controller mutation quota is used up gets
THROTTLING_QUOTA_EXCEEDED (89) from v5 on; before, it is only throttled (KIP-599).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID

from klamm.apis import slices
from klamm.apis.access import may
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced
from klamm.apis.deadlines import Deadline
from klamm.apis.mutation_charges import MutationCharges, partition_count
from klamm.apis.slices import Steps, begin
from klamm.apis.topic_waits import await_all
from klamm.controller import events
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID
from klamm.protocol.chunked import concatenated
from klamm.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import after

_FIRST_STRICT: Final = 5


class _Asked(NamedTuple):
    """A topic of the request, by name or by id. `name` is None if the request gives an id that is not known here."""

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
    asked = yield from _asked(broker, ctx, req)
    ctx.hold(asked)
    if not broker.config.delete_topic_enable:
        disabled = ErrorCode.INVALID_REQUEST if ctx.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        return (yield from _refuse(ctx, asked, disabled, "Topic deletion is disabled."))
    names, ids = yield from _keys(asked)
    ctx.hold(names, ids)
    charges = MutationCharges[str | UUID](broker, ctx, strict_since=_FIRST_STRICT)
    refused: dict[str | UUID, TopicResult] = {}
    if charges.is_limited:
        refused = yield from _charge(broker, charges, names, ids)
    keys: tuple[str | UUID, ...] = (*names, *ids)
    event = events.DeleteTopics(tuple(names), tuple(ids))

    def on_reply(reply: TopicResults) -> Any:
        return begin(settled(reply))

    def settled(reply: TopicResults) -> Steps[Any]:
        yield from charges.settle(keys, reply)
        if reply.error != ErrorCode.NONE:
            return (yield from _refuse(ctx, asked, reply.error, None))
        replies = chain(refused.items(), zip(keys, reply.topics, strict=True))
        return (yield from _await_gone(broker, ctx, deadline, asked, replies))

    return after(broker.controller.submit(event, req.timeout_ms), on_reply)


def _keys(asked: Sequence[_Asked]) -> Steps[tuple[dict[str, None], dict[UUID, None]]]:
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


def _charge(
    broker: Broker, charges: MutationCharges[str | UUID], names: dict[str, None], ids: dict[UUID, None]
) -> Steps[dict[str | UUID, TopicResult]]:
    """Charge every topic that exists; remove from `names` and `ids`, and return, those that the quota refuses."""
    refused: dict[str | UUID, TopicResult] = {}

    def check(key: str | UUID) -> None:
        name = key if isinstance(key, str) else broker.metadata.topic_name(key)
        if name is not None and (refusal := charges.charge(key, name, partition_count(broker, name))) is not None:
            refused[key] = refusal

    keys: tuple[str | UUID, ...] = (*names, *ids)
    yield from slices.each(keys, check)
    for key in refused:
        if isinstance(key, str):
            del names[key]
        else:
            del ids[key]
    return refused


def _refuse(
    ctx: RequestContext, asked: Sequence[_Asked], error: ErrorCode, message: str | None
) -> Steps[DeleteTopicsResponse]:
    refused = yield from slices.each(asked, lambda each: each._replace(error=error, message=message))
    ctx.hold(refused)
    return (yield from _response(refused, {}))


def _asked(broker: Broker, ctx: RequestContext, req: DeleteTopicsRequest) -> Steps[Sequence[_Asked]]:
    by_name = yield from slices.each(req.topic_names, lambda name: _Asked(name, ZERO_UUID))
    by_either = yield from slices.each(req.topics, lambda topic: _resolve(broker, topic.name, topic.topic_id))
    asked = concatenated(by_name, by_either)
    return asked if broker.acls is None else (yield from slices.each(asked, lambda one: _authorized(broker, ctx, one)))


def _authorized(broker: Broker, ctx: RequestContext, asked: _Asked) -> _Asked:
    """Return the topic, with an error if the client may not delete it. Its id does not disclose its name."""
    name = asked.name
    if name is None or asked.error != ErrorCode.NONE:
        return asked
    refused = asked._replace(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if asked.by_id and not may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
        return refused._replace(name=None)
    if may(broker, ctx, AclOperation.DELETE, ResourceType.TOPIC, name):
        return asked
    return refused if asked.by_id else refused._replace(topic_id=ZERO_UUID)


def _resolve(broker: Broker, name: str | None, topic_id: UUID) -> _Asked:
    if name is not None and topic_id != ZERO_UUID:
        return _Asked(name, topic_id, ErrorCode.INVALID_REQUEST, "Give either a topic's name or its id, not both.")
    if name is not None:
        return _Asked(name, broker.metadata.topic_id(name))
    return _Asked(broker.metadata.topic_name(topic_id), topic_id, by_id=True)


def _await_gone(
    broker: Broker,
    ctx: RequestContext,
    deadline: Deadline,
    asked: Sequence[_Asked],
    replies: Iterable[tuple[str | UUID, TopicResult]],
) -> Steps[Any]:
    results: dict[str | UUID, TopicResult] = {}
    deleted: dict[str, None] = {}
    ctx.hold(results, deleted)

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


def _response(asked: Sequence[_Asked], results: dict[str | UUID, TopicResult]) -> Steps[DeleteTopicsResponse]:
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
