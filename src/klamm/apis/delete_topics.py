"""DeleteTopics (20): the controller deletes topics, and this broker answers when its metadata no longer has them.

v0-6: TOPIC_DELETION_DISABLED (73) instead of INVALID_REQUEST (42) v3; error messages v5; by topic id v6, where an
unknown id is UNKNOWN_TOPIC_ID (100). A topic that is named twice is deleted once and answered twice. A broker that is
not the controller answers NOT_CONTROLLER (41); if the controller is replaced in the middle of a very large request,
only the topics that it has not accepted get this error. A client whose controller mutation quota is used up gets
THROTTLING_QUOTA_EXCEEDED (89) from v5 on; before, it is only throttled (KIP-599).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import UUID

from klamm.apis import slices
from klamm.apis.access import may
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.controller_parts import parts_of
from klamm.apis.deadlines import Deadline
from klamm.apis.mutation_charges import MutationCharges, partition_count
from klamm.apis.topic_waits import await_all
from klamm.controller import events
from klamm.controller.replies import TopicResult
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID
from klamm.protocol.chunked import ChunkedList, SpreadDict, concatenated
from klamm.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin, result_of

_FIRST_STRICT: Final = 5
_Results = SpreadDict[str | UUID, TopicResult]


class _Asked(NamedTuple):
    """A topic of the request, by name or by id. `name` is None if the request gives an id that is not known here."""

    name: str | None
    topic_id: UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    by_id: bool = False


def handle(broker: Broker, ctx: RequestContext, req: DeleteTopicsRequest) -> Answer[DeleteTopicsResponse]:
    return begin(_delete(broker, ctx, req))


def _delete(broker: Broker, ctx: RequestContext, req: DeleteTopicsRequest) -> Steps[Any]:
    deadline = Deadline(broker.loop, req.timeout_ms)
    asked = yield from _asked(broker, ctx, req)
    ctx.hold(asked)
    if not broker.config.delete_topic_enable:
        disabled = ErrorCode.INVALID_REQUEST if ctx.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        return (yield from _refuse(ctx, asked, disabled, "Topic deletion is disabled."))
    keys = yield from _keys(ctx, asked)
    charges = MutationCharges[str | UUID](broker, ctx, strict_since=_FIRST_STRICT)
    results: _Results = SpreadDict()
    if charges.is_limited:
        keys = yield from _charge(broker, charges, keys, results)
    ctx.hold(keys)

    def add(result: tuple[str | UUID, TopicResult]) -> None:
        key, results[key] = result

    def refuse(error: ErrorCode, key: str | UUID) -> None:
        name = key if isinstance(key, str) else broker.metadata.topic_name(key)
        results[key] = TopicResult(name or "", error)

    answered = 0
    for part in parts_of(keys):
        reply = yield from result_of(broker.controller.submit(_event(part), deadline.remaining_ms))
        yield from slices.pause(part)
        yield from charges.settle(part, reply)
        if reply.error != ErrorCode.NONE:
            if not answered:
                return (yield from _refuse(ctx, asked, reply.error, None))
            # The controller was replaced, for example. It has accepted the topics of the earlier parts.
            yield from slices.each(islice(keys, answered, None), partial(refuse, reply.error))
            break
        yield from slices.each(zip(part, reply.topics, strict=True), add)
        answered += len(part)
        yield from slices.pause(part)
    return (yield from _await_gone(broker, ctx, deadline, asked, results))


def _event(part: Sequence[str | UUID]) -> events.DeleteTopics:
    names = tuple(key for key in part if isinstance(key, str))
    return events.DeleteTopics(names, tuple(key for key in part if not isinstance(key, str)))


def _keys(ctx: RequestContext, asked: Sequence[_Asked]) -> Steps[ChunkedList[str | UUID]]:
    """Return the topics to delete, each once: names, then ids of topics that are not among these."""
    once: SpreadDict[str | UUID, int] = SpreadDict()
    keys: ChunkedList[str | UUID] = ChunkedList()

    def add(key: str | UUID) -> None:
        number = len(keys)
        if once.setdefault(key, number) == number:
            keys.append(key)

    def add_name(each: _Asked) -> None:
        if each.error == ErrorCode.NONE and each.name is not None and not each.by_id:
            add(each.name)

    def add_id(each: _Asked) -> None:
        if each.error == ErrorCode.NONE and each.by_id and each.name not in once:
            add(each.topic_id)

    yield from slices.each(asked, add_name)
    yield from slices.each(asked, add_id)
    ctx.hold(*once.dicts)
    return keys


def _charge(
    broker: Broker, charges: MutationCharges[str | UUID], keys: Sequence[str | UUID], results: _Results
) -> Steps[ChunkedList[str | UUID]]:
    """Charge every topic that exists; return the keys that the quota does not refuse."""
    allowed: ChunkedList[str | UUID] = ChunkedList()

    def check(key: str | UUID) -> None:
        name = key if isinstance(key, str) else broker.metadata.topic_name(key)
        refusal = None if name is None else charges.charge(key, name, partition_count(broker, name))
        if refusal is None:
            allowed.append(key)
        else:
            results[key] = refusal

    yield from slices.each(keys, check)
    return allowed


def _refuse(
    ctx: RequestContext, asked: Sequence[_Asked], error: ErrorCode, message: str | None
) -> Steps[DeleteTopicsResponse]:
    refused = yield from slices.each(asked, lambda each: each._replace(error=error, message=message))
    ctx.hold(refused)
    return (yield from _response(refused, SpreadDict()))


def _asked(broker: Broker, ctx: RequestContext, req: DeleteTopicsRequest) -> Steps[Sequence[_Asked]]:
    by_name = yield from slices.each(req.topic_names, lambda name: _Asked(name, ZERO_UUID))
    by_either = yield from slices.each(req.topics, lambda topic: _resolve(broker, topic.name, topic.topic_id))
    asked = concatenated(by_name, by_either)
    return asked if broker.acls is None else (yield from slices.each(asked, lambda one: _authorized(broker, ctx, one)))


def _authorized(broker: Broker, ctx: RequestContext, asked: _Asked) -> _Asked:
    """Return the topic, with an error if the client may not delete it. Its id does not disclose its name.

    The controller may know the name of an id before this broker's metadata has it: nobody has authorized that topic.
    """
    name = asked.name
    if name is None and asked.error == ErrorCode.NONE:
        return asked._replace(error=ErrorCode.UNKNOWN_TOPIC_ID, message="This server does not host this topic ID.")
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
    results: _Results,
) -> Steps[Any]:
    deleted: dict[str, None] = {}
    ctx.hold(*results.dicts, deleted)

    def add_deleted(result: TopicResult) -> None:
        if result.error == ErrorCode.NONE:
            deleted[result.name] = None

    yield from slices.each(results.values(), add_deleted)

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


def _response(asked: Sequence[_Asked], results: _Results) -> Steps[DeleteTopicsResponse]:
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
