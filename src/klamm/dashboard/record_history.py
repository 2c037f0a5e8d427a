"""The records that the viewer shows: a bounded past, and the records that arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

MAX_RECORDS: Final = 200_000
"""About an hour of a busy control plane; older records are forgotten."""


class RecordHistory:
    """Lives on the loop of the web server. A record is the bytes of a JSON object."""

    def __init__(self, capacity: int = MAX_RECORDS) -> None:
        self._records: deque[bytes] = deque(maxlen=capacity)
        self._count = 0
        self._arrived = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of records that ever arrived."""
        return self._count

    def add(self, records: list[bytes]) -> None:
        self._records.extend(records)
        self._count += len(records)
        self.wake()

    def wake(self) -> None:
        """End all waits, also without a new record."""
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    def after(self, position: int, limit: int) -> tuple[list[bytes], int]:
        """Return up to `limit` records after the first `position` ones, and the position behind them."""
        first = self._count - len(self._records)
        start = max(position, first) - first
        found = [self._records[i] for i in range(start, min(len(self._records), start + limit))]
        return found, first + start + len(found)

    async def wait(self, position: int, timeout_s: float) -> None:
        """Wait until there is a record after `position`, or until the time is over."""
        if position >= self._count:
            arrived = self._arrived
            try:
                async with asyncio.timeout(timeout_s):
                    await arrived.wait()
            except TimeoutError:
                pass
