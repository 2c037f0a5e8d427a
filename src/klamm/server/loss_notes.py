"""Writes losses of acknowledged records to ZooKeeper, where they stay until an operator confirms them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from klamm.server.background_tasks import Spawn
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, Create, NodeExists, NoNode, SessionExpired, SetData, ZkError
from klamm.zk.model.znodes import LostRecords, encode_lost_records

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1


class LossNotes:
    """One znode per loss, one write after the other. Lives on the broker loop."""

    def __init__(self, zk: ZkSession, spawn: Spawn) -> None:
        self._zk = zk
        self._spawn = spawn
        self._waiting: deque[LostRecords] = deque()

    def add(self, lost: LostRecords) -> None:
        self._waiting.append(lost)
        if len(self._waiting) == 1:
            self._spawn(self._write_all())

    async def _write_all(self) -> None:
        while self._waiting:
            lost = self._waiting[0]
            try:
                await self._write(lost)
            except ZkError as error:
                # The broker's log names this loss. The following ones are still written.
                log.error("ZooKeeper refused the note of lost records of %s: %s", lost.topic_partition, error)
            except Exception:  # A bug. A task that ended here would leave all later losses unwritten.
                log.exception("writing the note of lost records of %s failed", lost.topic_partition)
            self._waiting.popleft()

    async def _write(self, lost: LostRecords) -> None:
        """Retry until the znode exists: the broker does not detect the same loss a second time."""
        while True:
            try:
                return await self._put(lost)
            except (ConnectionLoss, SessionExpired, NoNode):  # NoNode: an operator has just removed the older note.
                await asyncio.sleep(RETRY_S)

    async def _put(self, lost: LostRecords) -> None:
        path = paths.lost_records_path(*lost.topic_partition, lost.start_offset, lost.end_offset)
        data = encode_lost_records(lost)
        try:
            try:
                await self._zk.create(Create(path, data))
            except NoNode:
                await self._zk.ensure_paths([paths.LOST_RECORDS])
                await self._zk.create(Create(path, data))
        except NodeExists:  # The same loss, or the same offsets of a deleted topic with this name.
            await self._zk.set(SetData(path, data))
