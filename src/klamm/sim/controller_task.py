"""The controller as a task on the broker loop, instead of a thread of its own."""

from __future__ import annotations

import asyncio

from klamm.controller.channel_manager import ControllerChannelManager
from klamm.controller.config import ControllerConfig
from klamm.controller.controller_runner import ControllerRunner
from klamm.controller.event_manager import ControllerEventManager


class ControllerTaskRunner(ControllerRunner):
    """No thread: `start` is called on the broker loop, which is the control loop too."""

    _task: asyncio.Task[None] | None = None

    def start(self, config: ControllerConfig) -> None:
        manager, channels = self._open(config)
        self._task = self._broker_loop.create_task(_serve(manager, channels), name="controller-event-loop")
        self.handle.open(self._put)

    async def stop(self) -> None:
        self.handle.close()
        if self._manager is not None and self._task is not None:
            self._manager.close()
            await self._task
            self.handle.is_active = False


async def _serve(manager: ControllerEventManager, channels: ControllerChannelManager) -> None:
    try:
        await manager.run()
    finally:
        await channels.shutdown()
