"""Admin requests wait until this broker's own metadata shows what the controller did, so that their client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from klamm.apis.registry import Broker

R = TypeVar("R")


def await_topics(
    broker: Broker,
    names: Sequence[str],
    timeout_ms: int,
    is_done: Callable[[str], bool],
    respond: Callable[[set[str]], R],
) -> R | asyncio.Future[R]:
    """`respond` with the topics that are late: none once all are done, or those that are not when the time is over."""

    def try_complete() -> R | None:
        return respond(set()) if all(map(is_done, names)) else None

    def on_expire() -> R:
        return respond({name for name in names if not is_done(name)})

    return broker.topics.try_complete_else_watch(names, timeout_ms, try_complete, on_expire)
