"""The garbage collector of a broker process: full collections visit only new objects.

A full collection visits every live object and holds the loop meanwhile. With large fetch sessions the loop stalled for
0.2 to 0.4 s. So the survivors of each full collection are frozen, and the next one visits only newer objects. Reference
counting frees frozen objects as before; only cycles of frozen objects stay. Therefore, if the process has grown,
everything is thawed and collected once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

THRESHOLDS: Final = (700, 2, 1)
"""A pass holds the loop, so each generation is small, and survivors are frozen soon.

A full pass visits about 4,000 objects in a millisecond. With (3,000, 2, 2) it took 4 to 7 ms while large requests were
decoded, with (10,000, 3, 10) up to 41 ms. All passes together take as long in each case.
"""
THAW_BYTES: Final = 1 << 30
"""Below this resident memory nothing is thawed. Requests and responses under way alone may hold most of it."""
SLICE_SECONDS: Final = 0.0015
"""Time between two passes for work in slices. An empty pass takes 0.05 ms."""
_FULL: Final = 2


class FullCollections:
    """Callback of the collector. One per process, called by the thread that triggers a collection."""

    def __init__(self, resident_bytes: Callable[[], int], thaw_bytes: int = THAW_BYTES) -> None:
        self._resident_bytes = resident_bytes
        self._least_bytes = self._thaw_bytes = thaw_bytes
        self._is_thawed = False

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            if self._resident_bytes() > self._thaw_bytes:
                self._is_thawed = True
                gc.unfreeze()
            return
        gc.freeze()
        if self._is_thawed:
            self._is_thawed = False
            self._thaw_bytes = max(self._least_bytes, 2 * self._resident_bytes())


def resident_bytes() -> int:
    """The resident memory of this process. 0 if the system does not report it; then nothing is thawed."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class SlicePasses:
    """A full pass after some milliseconds of work in slices: it visits the objects since the last full pass.

    Python starts a pass when allocations exceed deallocations. While a large response replaces a large request they do
    not, and the next pass comes late and visits 100,000 objects: 5 to 7 ms.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next_at = 0.0

    def __call__(self) -> None:
        if self._monotonic() >= self._next_at:
            gc.collect()
            self._next_at = self._monotonic() + SLICE_SECONDS


def slice_passes(monotonic: Callable[[], float]) -> SlicePasses | None:
    """None if `install` was not called: then a full pass visits every object of the process."""
    is_installed = any(isinstance(callback, FullCollections) for callback in gc.callbacks)
    return SlicePasses(monotonic) if is_installed else None


def install() -> None:
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(FullCollections(resident_bytes))
