"""Notifies the controller of a failed log directory through a znode."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, Create
from klamm.zk.model.znodes import encode_log_dir_event

RETRY_S: Final = 0.1


async def leave_note(zk: ZkSession, broker_id: int) -> None:
    """Retry until the note is written. A second note does no harm; without a note the failure is not noticed.

    When the session is over, the controller sends this broker everything again in the next one, and
    learns of the failure then.
    """
    note = Create(paths.log_dir_event_path(), encode_log_dir_event(broker_id), sequential=True)
    while True:
        try:
            await zk.create(note)
        except ConnectionLoss:
            await asyncio.sleep(RETRY_S)
        else:
            return
