"""One API, one declaration: request, response, the versions the handler honours, the plane and the handler.

ApiVersions, dispatch, metrics and docs/reference/apis.md are derived from these declarations (`klamm.apis.ALL`).

A handler is a plain `def` and returns the response if it can. Otherwise it returns a future (`klamm.waiting`):

- `after(result, step)` or `promptly`, if it waits once: for an append, a purgatory, the controller, a coordinator or
  ZooKeeper.
- `begin(steps)`, if its work grows with the request or the cluster, or if it waits several times. The steps leave the
  loop to others after each slice (`klamm.apis.slices`) and wait by `yield from result_of(...)`.

`after` stays beside steps for handlers that wait once, because it costs less: 0.2 us instead of 0.8 us if the result is
available. `promptly` costs 3 us instead of 10 us and saves a turn of the loop if it is not:
Produce, EndTxn and AddPartitionsToTxn use it. Decision 0048 has the reasons for three forms.

There is no `async def` here. A change of ZooKeeper that takes several round trips is a coroutine below this layer
(`config_changes`, `quota_store`, `acl_changes`); a handler starts it as a task and waits for the task as for any other
future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from klamm.broker import Broker
from klamm.network.request_context import Dispatched, Plane, RequestContext
from klamm.protocol.wire import Message
from klamm.waiting import Slices

__all__ = ["Answer", "Api", "Broker", "Plane", "RequestContext", "at_once", "bind"]

Req = TypeVar("Req", bound=Message)
Resp = TypeVar("Resp", bound=Message)
A = TypeVar("A")
Answer: TypeAlias = "A | asyncio.Future[A] | Slices"
"""The response, now or later, or slices that make it."""


class Guard(Protocol):
    """Authorizes a request before its handler sees it, and refuses what is not allowed."""

    def is_needed(self, broker: Broker) -> bool: ...

    def __call__(
        self, broker: Broker, handle: Callable[[RequestContext, Any], Any], ctx: RequestContext, req: Any
    ) -> Any: ...


def _not_bound(ctx: RequestContext, req: Any) -> Dispatched:
    raise AssertionError("bind the API to a broker first")


@dataclass(frozen=True, slots=True)
class Api(Generic[Req, Resp]):
    """`versions` are the versions that the handler implements; the codec may know more.

    `handle` returns None if the request has no response. `metric_name` gives a request a second name in RequestMetrics
    (FetchConsumer). A request of an API with `is_read` changes nothing, so it is dropped if its connection ends before
    its turn. `guard` authorizes the sender (klamm.apis.guards). `dispatch` is `handle` for one broker, behind the guard
    if the broker needs it; `bind` sets it.
    """

    request: type[Req]
    response: type[Resp]
    versions: tuple[int, int]
    plane: Plane
    handle: Callable[[Broker, RequestContext, Req], Answer[Resp] | Answer[Resp | None]]
    metric_name: Callable[[Req], str] | None = None
    is_read: bool = False
    guard: Guard | None = None
    dispatch: Callable[[RequestContext, Any], Dispatched] = _not_bound

    @property
    def key(self) -> int:
        return self.request.KEY

    @property
    def name(self) -> str:
        return self.request.__name__.removesuffix("Request")


def bind(apis: Iterable[Api[Any, Any]], broker: Broker) -> tuple[Api[Any, Any], ...]:
    """Return the APIs as one broker serves them."""
    return tuple(replace(api, dispatch=_dispatch(api, broker)) for api in apis)


def _dispatch(api: Api[Any, Any], broker: Broker) -> Callable[[RequestContext, Any], Dispatched]:
    handle = partial(api.handle, broker)
    guard = api.guard
    if guard is None or not guard.is_needed(broker):
        return handle
    return partial(guard.__call__, broker, handle)  # the method: Python finds it once, and calls it faster


def at_once(steps: Generator[None, None, A]) -> A:
    """Run small work to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: A = done.value
            return result
