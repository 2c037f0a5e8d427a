"""Admin requests wait until this broker's own metadata shows the change, so that their client sees it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from types import GeneratorType
from typing import Any, TypeVar

from klamm.apis.slices import each
from klamm.purgatory import DelayedOperationPurgatory
from klamm.waiting import Steps

K = TypeVar("K", bound=Hashable)


def await_all(
    purgatory: DelayedOperationPurgatory,
    keys: Iterable[K],
    timeout_ms: int,
    is_done: Callable[[K], bool],
    respond: Callable[[set[K]], Any],
) -> Steps[Any]:
    """Call `respond` with the keys that are not done: with none once all are done, or with the rest when the time is
    over.

    A change of one key checks that key alone: checking thousands of keys for each change would hold the loop for
    seconds. A key that was done once stays done.
    """
    left = dict.fromkeys(keys)

    def try_complete() -> Any:
        return None if left else respond(set())

    def on_key(key: K) -> Any:
        if key in left and is_done(key):
            del left[key]
        return try_complete()

    def on_expire() -> Any:
        return respond({key for key in left if not is_done(key)})

    # Watched first: a change between two slices is not missed.
    answer = purgatory.try_complete_else_watch(tuple(left), timeout_ms, try_complete, on_expire, on_key)
    if isinstance(answer, GeneratorType):
        return (yield from answer)
    yield from each(tuple(left), purgatory.check_and_complete)
    return answer
