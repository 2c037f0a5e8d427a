"""The end of a broker: the steps that undo its start, in the reverse order."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

log = logging.getLogger(__name__)

Step: TypeAlias = Callable[[], Awaitable[None] | None]


class Ending:
    """A start adds a step for each part that it begins, so that `run` ends a broker however far its start got."""

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def add(self, step: Step) -> None:
        """`step` runs before all steps that were added earlier."""
        self._steps.append(step)

    async def run(self) -> None:
        """Run every step, also after one that failed; then raise the first failure."""
        failure: Exception | None = None
        while self._steps:
            step = self._steps.pop()
            try:
                rest = step()
                if rest is not None:
                    await rest
            except Exception as error:
                log.exception("step %s of the shutdown failed", _name(step))
                failure = failure or error
        if failure is not None:
            raise failure


def _name(step: Step) -> str:
    function = step.func if isinstance(step, partial) else step
    return getattr(function, "__qualname__", repr(function))
