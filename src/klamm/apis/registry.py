"""One API, one declaration: request, response, the versions the handler honours, the plane and the handler.

ApiVersions, dispatch, metrics and docs/reference/apis.md are derived from these declarations (`klamm.apis.ALL`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from klamm.broker import Broker
from klamm.network.request_context import Dispatched, Plane, RequestContext
from klamm.protocol.wire import Message

__all__ = ["Api", "BoundApi", "Broker", "Delayed", "Plane", "RequestContext", "Sliced", "at_once", "bind", "then"]

Req = TypeVar("Req", bound=Message)
Resp = TypeVar("Resp", bound=Message)
A = TypeVar("A")
B = TypeVar("B")
Delayed: TypeAlias = "asyncio.Future[Resp]"
Sliced: TypeAlias = "Generator[None, None, Resp | asyncio.Future[Resp] | None]"


@dataclass(frozen=True, slots=True)
class Api(Generic[Req, Resp]):
    """`versions` is what the handler honours, never what the codec could parse.

    `metric_name` names the request in RequestMetrics where the API's own name is not all (FetchConsumer).
    A request of an API with `is_read` changes nothing, so it is dropped if its connection ends before its turn.
    A handler whose work grows with the request or the cluster may be a generator: it yields between slices of at most a
    few milliseconds and returns the response or a future of it. A future may also end with such a generator.
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

    @property
    def key(self) -> int:
        return self.request.KEY

    @property
    def name(self) -> str:
        return self.request.__name__.removesuffix("Request")


class BoundApi:
    """An Api of one broker: what the network layer calls."""

    __slots__ = ("dispatch", "is_read", "key", "metric_name", "name", "plane", "request", "response", "versions")

    def __init__(self, api: Api[Any, Any], broker: Broker) -> None:
        self.key = api.key
        self.name = api.name
        self.request: type[Message] = api.request
        self.response: type[Message] = api.response
        self.versions = api.versions
        self.plane = api.plane
        self.metric_name: Callable[[Any], str] | None = api.metric_name
        self.is_read = api.is_read
        self.dispatch: Callable[[RequestContext, Any], Dispatched] = partial(api.handle, broker)


def bind(apis: Iterable[Api[Any, Any]], broker: Broker) -> tuple[BoundApi, ...]:
    return tuple(BoundApi(api, broker) for api in apis)


def at_once(steps: Generator[None, None, A]) -> A:
    """Run small work to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: A = done.value
            return result


def then(first: asyncio.Future[A], step: Callable[[A], B | asyncio.Future[B]]) -> asyncio.Future[B]:
    """A future of `step(result)`. A handler is a plain def; this is how it goes on after a wait."""
    outer: asyncio.Future[B] = first.get_loop().create_future()

    def finish(done: asyncio.Future[B]) -> None:
        _settle(done, outer, outer.set_result)

    def go_on(result: A) -> None:
        try:
            following = step(result)
        except Exception as failure:
            outer.set_exception(failure)
            return
        if isinstance(following, asyncio.Future):
            following.add_done_callback(finish)
        else:
            outer.set_result(following)

    first.add_done_callback(lambda done: _settle(done, outer, go_on))
    return outer


def _settle(done: asyncio.Future[Any], outer: asyncio.Future[Any], on_result: Callable[[Any], None]) -> None:
    if outer.done():
        return
    if done.cancelled():
        outer.cancel()
    elif (failure := done.exception()) is not None:
        outer.set_exception(failure)
    else:
        on_result(done.result())
