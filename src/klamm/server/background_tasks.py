"""Tasks of a broker that nothing waits for: they end by themselves, or with the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TypeAlias

from klamm.errors import KlammError
from klamm.zk.model.ops import ZkError

log = logging.getLogger(__name__)

Spawn: TypeAlias = Callable[[Coroutine[object, object, None]], None]
"""Starts a task that nothing waits for."""


class BackgroundTasks:
    """Owns the tasks that it has spawned. Lives on the broker loop."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In start order: a set would cancel them in the order of memory addresses."""

    def spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        name = getattr(coroutine, "__qualname__", "background-task")
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, OSError | ZkError | KlammError):
            log.warning("background task %s failed: %s", task.get_name(), error)
        else:
            log.error("background task %s failed", task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """Cancel them: ZooKeeper or the controller, for which they wait, will not answer."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
