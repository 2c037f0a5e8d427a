"""The garbage collector of a broker process: full collections visit only new objects.

A full collection visits every live object and holds the loop meanwhile. With large fetch sessions the loop stalled for
0.2 to 0.4 s. So the survivors of each full collection are frozen, and the next one visits only newer objects. Reference
counting frees frozen objects as before; only cycles of frozen objects stay. Therefore, if the process has grown,
everything is thawed and collected once.

A failover switches the collector off. The first pass after it would visit everything that the failover has allocated:
these objects are frozen without a visit, too.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from klamm.network.slice_passes import SlicePasses

THRESHOLDS: Final = (700, 1, 1)
"""A pass holds the loop, so each generation is small, and survivors are frozen soon.

A full pass visits at most about 3,000 new objects. With (700, 2, 1) it visited 4,000 in a millisecond, with (3,000, 2,
2) it took 4 to 7 ms while large requests were decoded, with (10,000, 3, 10) up to 41 ms. All passes together take as
long in each case.
"""
THAW_BYTES: Final = 1 << 30
"""Below this resident memory, frozen objects are not collected: requests in progress may account for most of it."""
UNVISITED: Final = 20_000
"""If more objects than this are new, the collector was switched off, and a pass would take more than 5 ms."""
_FULL: Final = 2


class FullCollections:
    """Callback of the collector. One per process, called by the thread that triggers a collection."""

    def __init__(self, resident_bytes: Callable[[], int], thaw_bytes: int = THAW_BYTES) -> None:
        self._resident_bytes = resident_bytes
        self._least_bytes = self._thaw_bytes = thaw_bytes
        self._is_thawed = False

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and gc.get_count()[0] > UNVISITED:
            gc.freeze()
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
    """Return the memory that the process has in RAM; without /proc, the most that it ever had."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def slice_passes() -> SlicePasses:
    """Return the passes between slices: none if `install` was not called, as a full pass would visit every object."""
    return SlicePasses(any(isinstance(callback, FullCollections) for callback in gc.callbacks))


def install() -> None:
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(FullCollections(resident_bytes))
