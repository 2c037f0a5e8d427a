"""One API, one declaration: request, response, the versions the handler honours, the plane and the handler.

ApiVersions, dispatch, metrics and docs/reference/apis.md are derived from these declarations (`klamm.apis.ALL`).

A handler is a plain `def` and returns the response if it can. Otherwise it has one of three forms, whose files
`tests/tidy` lists:

1. `klamm.waiting`: the handler waits for a result of an append, a purgatory, the controller or a coordinator. It
   returns `after(result, step)`, or `promptly`, or continues with `all_results`. This is the usual form.
2. A generator (`klamm.apis.slices`): the work grows with the request or the cluster. The handler returns
   `begin(steps)`, whose steps leave the loop to others after each slice. A step may end with form 1
   (`after_in_slices`).
3. A coroutine in a task: the handler alternates between many reads or writes of ZooKeeper and decisions on their
   results. Only configurations, quotas, SCRAM credentials and ACLs do this; new handlers use the other forms.
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

__all__ = ["Api", "Broker", "Delayed", "Plane", "RequestContext", "Sliced", "at_once", "bind"]

Req = TypeVar("Req", bound=Message)
Resp = TypeVar("Resp", bound=Message)
A = TypeVar("A")
Delayed: TypeAlias = "asyncio.Future[Resp]"
Sliced: TypeAlias = "Generator[None, None, Resp | asyncio.Future[Resp] | None]"


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

    `metric_name` gives a request a second name in RequestMetrics (FetchConsumer). A request of an API with `is_read`
    changes nothing, so it is dropped if its connection ends before its turn. A handler whose work grows with the
    request or the cluster may be a generator: it yields between slices of at most a few milliseconds and returns the
    response or a future of it. A future may also end with such a generator. A handler that has to wait returns
    `after(...)` (klamm.waiting). `guard` authorizes the sender (klamm.apis.guards). `dispatch` is `handle` for one
    broker, behind the guard if the broker needs it; `bind` sets it.
    """

    request: type[Req]
    response: type[Resp]
    versions: tuple[int, int]
    plane: Plane
    handle: Callable[
        [Broker, RequestContext, Req], Resp | Delayed[Resp] | asyncio.Future[Resp | None] | Sliced[Resp] | None
    ]
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
    return handle if guard is None or not guard.is_needed(broker) else partial(guard, broker, handle)


def at_once(steps: Generator[None, None, A]) -> A:
    """Run small work to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: A = done.value
            return result
