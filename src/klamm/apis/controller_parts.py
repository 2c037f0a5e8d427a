"""Ask the controller for very many things in parts, one after the other, so that no event holds a loop (docs/adr/0016).

One event of 100,000 topics is copied, answered and visited by the garbage collector in single steps of several
milliseconds. `klamm.apis.parts` splits whole requests; this module serves handlers that have to look at all elements of
their request first, because they drop repeated ones or answer in another order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from klamm.apis.slices import Steps, begin, pause
from klamm.waiting import after

MOST: Final = 500
"""Elements of an event. The controller makes that many results in about half a millisecond."""

K = TypeVar("K")
R = TypeVar("R")


def ask_in_turn(
    keys: Sequence[K],
    ask: Callable[[Sequence[K]], asyncio.Future[R]],
    note: Callable[[Sequence[K], R], Steps[Any]],
    finish: Callable[[], Steps[Any]],
) -> Any:
    """Ask for a part of `keys`, pass it and its reply to `note`, and continue with the next part.

    The response to the request is the result of `note`, if it has one: an error of the controller ends the request with
    the part that met it. Otherwise it is the result of `finish` after the last part. The controller is asked at least
    once.
    """
    parts = _split(keys)

    def ask_next(part: Sequence[K]) -> Any:
        return after(ask(part), lambda reply: begin(on_reply(part, reply)))

    def on_reply(part: Sequence[K], reply: R) -> Steps[Any]:
        yield from pause(part)
        response = yield from note(part, reply)
        if response is not None:
            return response
        following = next(parts, None)
        if following is None:
            return (yield from finish())
        yield
        return ask_next(following)

    return ask_next(next(parts))


def _split(keys: Sequence[K]) -> Iterator[Sequence[K]]:
    for start in range(0, max(len(keys), 1), MOST):
        yield keys[start : start + MOST]
