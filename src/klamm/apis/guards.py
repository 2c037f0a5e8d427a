"""Guards: what a request needs before its handler sees it, declared beside each API.

`bind` puts a guard before the handler only if the broker needs it: without an authorizer, requests of clients reach
their handlers as if there were no guards. A guard refuses the whole request, or removes the elements that the client
may not use and adds their refusals to the response. Requests with very many elements are checked in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from klamm.apis.access import FAILED, is_peer, may, remembering
from klamm.apis.api_declaration import Broker, RequestContext
from klamm.apis.slices import SLICE, each, each_partition
from klamm.errors import ErrorCode
from klamm.protocol.chunked import concatenated
from klamm.security.acl.bindings import CLUSTER_NAME, AclOperation, ResourceType
from klamm.waiting import Steps, begin, result_of

NOT_AUTHORIZED: Final = "Cluster authorization failed."
Handle = Callable[[RequestContext, Any], Any]
Refuse = Callable[[RequestContext, Any, ErrorCode], Any]
"""Returns the response that refuses a whole request with an error, or the steps that make it."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The whole request needs an operation on the resource that `name` finds in it; None needs nothing."""

    kind: ResourceType
    operation: AclOperation
    name: Callable[[Any], str | None]
    refuse: Refuse

    def is_needed(self, broker: Broker) -> bool:
        return broker.acls is not None

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: Any) -> Any:
        name = self.name(req)
        if name is None or may(broker, ctx, self.operation, self.kind, name):
            return handle(ctx, req)
        return self.refuse(ctx, req, FAILED[self.kind])


def needs_cluster(operation: AclOperation, refuse: Refuse) -> Needs:
    return Needs(ResourceType.CLUSTER, operation, lambda _: CLUSTER_NAME, refuse)


@dataclass(frozen=True, slots=True)
class FromPeer:
    """The request comes from another broker. `sender` returns the id that the sender claims, if it names one.

    `applies` excludes versions of an API that clients send.
    """

    refuse: Refuse
    sender: Callable[[Any], int | None] = lambda _: None
    applies: Callable[[RequestContext], bool] = lambda _: True

    def is_needed(self, broker: Broker) -> bool:
        return broker.acls is not None or not broker.config.klamm_admit_unproven_peers

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: Any) -> Any:
        if not self.applies(ctx) or is_peer(broker, ctx, self.sender(req)):
            return handle(ctx, req)
        return self.refuse(ctx, req, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class All:
    """Several guards, in this order."""

    guards: tuple[Any, ...]

    def is_needed(self, broker: Broker) -> bool:
        return any(guard.is_needed(broker) for guard in self.guards)

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: Any) -> Any:
        for guard in self.guards[::-1]:
            if guard.is_needed(broker):
                handle = partial(guard, broker, handle)
        return handle(ctx, req)


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """Every element of the request needs an operation on the resource that it names.

    `asked` and `answers` are the arrays of request and response; `name` finds an element's resource. `refuse` returns
    the answer for an element or, with `rows`, for one row of it (a partition), and `gather` the element's answer.
    A response with an error of its own stays as it is. `on_refusal` is called once if anything is refused.
    """

    kind: ResourceType
    operation: AclOperation
    asked: str
    answers: str
    name: Callable[[Any], str]
    refuse: Callable[[Any, ErrorCode], Any]
    rows: Callable[[Any], Sequence[Any]] | None = None
    gather: Callable[[Any, Sequence[Any]], Any] | None = None
    on_refusal: Callable[[RequestContext, Any], None] | None = None

    def is_needed(self, broker: Broker) -> bool:
        return broker.acls is not None

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: Any) -> Any:
        elements = getattr(req, self.asked)
        if len(elements) == 1:
            if may(broker, ctx, self.operation, self.kind, self.name(elements[0])):
                return handle(ctx, req)
            return self.without(handle, ctx, req)
        if not elements:
            return handle(ctx, req)
        return begin(self._steps(handle, ctx, req, remembering(broker, ctx, self.operation, self.kind)))

    def without(self, handle: Handle, ctx: RequestContext, req: Any) -> Any:
        """Handle a request whose only resource was refused."""
        return begin(self._steps(handle, ctx, req, lambda _: False))

    def _steps(self, handle: Handle, ctx: RequestContext, req: Any, is_allowed: Callable[[str], bool]) -> Steps[Any]:
        allowed: list[Any] = []
        refused: list[Any] = []
        for count, element in enumerate(getattr(req, self.asked), 1):
            (allowed if is_allowed(self.name(element)) else refused).append(element)
            if not count % SLICE:
                yield
        if refused:
            req = copy(req)
            setattr(req, self.asked, allowed)
            if self.on_refusal is not None:
                self.on_refusal(ctx, req)
        answer = handle(ctx, req)
        if not refused:
            return answer
        return (yield from self._joined((yield from result_of(answer)), refused))

    def _joined(self, response: Any, refused: Sequence[Any]) -> Steps[Any]:
        if response is None or getattr(response, "error_code", False):
            return response
        error = FAILED[self.kind]
        if self.rows is None or self.gather is None:
            answers = yield from each(refused, lambda element: self.refuse(element, error))
        else:
            answers = yield from each_partition(refused, self.rows, lambda _, row: self.refuse(row, error), self.gather)
        setattr(response, self.answers, concatenated(getattr(response, self.answers), answers))
        return response


def each_topic(
    operation: AclOperation, refuse: Callable[[Any, ErrorCode], Any], topic_answer: Callable[..., Any]
) -> Each:
    """The guard of a request whose `topics` have `partitions`, if its response has the same shape.

    `refuse` returns the answer for a partition; `topic_answer` is the class of a topic in the response.
    """
    return Each(
        kind=ResourceType.TOPIC,
        operation=operation,
        asked="topics",
        answers="topics",
        name=lambda topic: topic.name,
        rows=lambda topic: topic.partitions,
        refuse=refuse,
        gather=lambda topic, rows: topic_answer(name=topic.name, partitions=rows),
    )
