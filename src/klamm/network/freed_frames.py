"""FreedFrames: very large frames that nobody decodes, returned to the system in steps (docs/adr/0016).

To free 100 MiB of pages in one step takes the system 7 to 9 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from mmap import mmap

from klamm.network.request import Steps
from klamm.protocol.chunked import Held, release
from klamm.protocol.frames import Frame


class FreedFrames:
    """Frames of closed connections and of dropped requests: one step per turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._frames: Held = []
        self._steps: Steps | None = None

    def add(self, frame: Frame) -> None:
        if not isinstance(frame, mmap):
            return
        self._frames.append(frame)
        if self._steps is None:
            self._steps = release(self._frames)
            self._loop.call_soon(self._step, self._steps)

    def take(self, frames: deque[Frame]) -> None:
        """Empty a queue of frames."""
        while frames:
            self.add(frames.popleft())

    def _step(self, steps: Steps) -> None:
        try:
            next(steps)
        except StopIteration:
            self._steps = None
        else:
            self._loop.call_soon(self._step, steps)
