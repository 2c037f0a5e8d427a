"""One API, one declaration: request, response, the versions the handler honours, the plane and the handler.

ApiVersions, dispatch, metrics and docs/reference/apis.md are derived from these declarations (`klamm.apis.ALL`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from klamm.broker import Broker
from klamm.network.request_context import Dispatched, Plane, RequestContext
from klamm.protocol.wire import Message

__all__ = ["Api", "Broker", "Delayed", "Plane", "RequestContext", "Sliced", "at_once", "bind"]

Req = TypeVar("Req", bound=Message)
Resp = TypeVar("Resp", bound=Message)
A = TypeVar("A")
Delayed: TypeAlias = "asyncio.Future[Resp]"
Sliced: TypeAlias = "Generator[None, None, Resp | asyncio.Future[Resp] | None]"


def _not_bound(ctx: RequestContext, req: Any) -> Dispatched:
    raise AssertionError("bind the API to a broker first")


@dataclass(frozen=True, slots=True)
class Api(Generic[Req, Resp]):
    """`versions` is what the handler honours, never what the codec could parse.

    `metric_name` names the request in RequestMetrics where the API's own name is not all (FetchConsumer).
    A request of an API with `is_read` changes nothing, so it is dropped if its connection ends before its turn.
    A handler whose work grows with the request or the cluster may be a generator: it yields between slices of at most a
    few milliseconds and returns the response or a future of it. A future may also end with such a generator. A handler
    that has to wait returns `after(...)` (klamm.waiting). `dispatch` is `handle` for one broker; `bind` sets it.
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
    dispatch: Callable[[RequestContext, Any], Dispatched] = _not_bound

    @property
    def key(self) -> int:
        return self.request.KEY

    @property
    def name(self) -> str:
        return self.request.__name__.removesuffix("Request")


def bind(apis: Iterable[Api[Any, Any]], broker: Broker) -> tuple[Api[Any, Any], ...]:
    """Return the APIs as one broker serves them."""
    return tuple(replace(api, dispatch=partial(api.handle, broker)) for api in apis)


def at_once(steps: Generator[None, None, A]) -> A:
    """Run small work to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: A = done.value
            return result
