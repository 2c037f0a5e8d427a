"""A run of level 2 that looks at the cluster and its clients while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from klamm.sim.checkers import Violation, require
from klamm.sim.cluster import SimCluster

PATIENCE_S: Final = 60.0
"""Maximum time to recover after the last fault."""
TASK_S: Final = 120.0
"""Maximum time of one task of the run: the faults, or a query of the cluster after the last fault."""
LOOK_S: Final = 0.2


class WatchedRun:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._clients: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        raise NotImplementedError

    def _look(self) -> None:
        self._cluster.check_so_far()
        for task in self._clients:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _while_watching(self, task: asyncio.Task[Any]) -> None:
        deadline = self._cluster.loop.time() + TASK_S
        while not task.done():
            require(self._cluster.loop.time() < deadline, f"a task takes more than {TASK_S:g} s: {_name(task)}")
            await asyncio.wait({task}, timeout=LOOK_S)
            self._look()
        task.result()

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = self._cluster.loop.time() + PATIENCE_S
        while not holds():
            require(self._cluster.loop.time() < deadline, f"after {PATIENCE_S:g} s it is not so that {what}")
            await asyncio.sleep(LOOK_S)
            self._look()

    async def _until_no_violation(self, check: Callable[[], None]) -> None:
        """Retry until the check holds; at the end, report its violation."""
        deadline = self._cluster.loop.time() + PATIENCE_S
        while True:
            self._look()
            try:
                check()
                return
            except Violation:
                if self._cluster.loop.time() >= deadline:
                    raise
            await asyncio.sleep(LOOK_S)


def _name(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task.get_name()))
