"""The remaining time of a request that waits for the controller, for metadata or for an election."""

from __future__ import annotations

import asyncio


class Deadline:
    """The end of a request's time. It covers all waits of the request together."""

    __slots__ = ("_end", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        self._loop = loop
        self._end = loop.time() + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """The remaining time; 0 if it is over."""
        return max(0, round((self._end - self._loop.time()) * 1000))
