"""A broker's first registration. An id that is taken is refused, but what may be our own last run's is waited for."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from klamm.controller.events import Startup
from klamm.controller.replies import BrokerRegistration
from klamm.controller.runner import ControllerHandle
from klamm.errors import ErrorCode

log = logging.getLogger(__name__)

MARGIN_MS: Final = 10_000
"""ZooKeeper ends sessions by ticks, and counts anew when it was itself started again."""
RETRY_S: Final = 0.2


async def register(handle: ControllerHandle, wait_ms: int = 0) -> BrokerRegistration:
    """The controller's answer to `Startup`; while the id is taken it is asked again, for `wait_ms`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    registration: BrokerRegistration = await handle.submit(Startup())
    if registration.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION and wait_ms:
        log.warning(
            "%s. These directories were not left cleanly, so this broker waits for that session to end, for %d s",
            registration.message,
            wait_ms // 1000,
        )
    while registration.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION and loop.time() < deadline:
        await asyncio.sleep(RETRY_S)
        registration = await handle.submit(Startup())
    return registration
