"""SlicePasses: run the garbage collector between slices of large requests.

Python starts a pass when allocations exceed deallocations. If a large response replaces a large request, the counts
stay level. The next pass is then late and visits 100,000 objects: 5 to 7 ms. While a large request is decoded, a pass
comes in the middle of a slice, or two of them. So Python's own passes are held back during such work, and a full pass
is made between slices, in another turn of the loop.
"""

from __future__ import annotations

import gc
from typing import Final

PASS_SECONDS: Final = 0.0015
"""Work in slices between two passes. An empty pass takes 0.05 ms."""
PASS_OBJECTS: Final = 2_000
"""New objects after which a pass comes earlier: half a millisecond. Other work between the slices makes some, too."""


class SlicePasses:
    """The passes of one process. `is_enabled` is for processes in which a full pass visits only new objects."""

    def __init__(self, is_enabled: bool = False) -> None:
        self._is_enabled = is_enabled
        self._seconds = 0.0
        self.is_held_back = False

    @property
    def is_due(self) -> bool:
        return self._seconds >= PASS_SECONDS or (self.is_held_back and gc.get_count()[0] >= PASS_OBJECTS)

    def hold_back(self) -> None:
        """Keep Python from starting passes until the next call of `run`: a slice begins."""
        if self._is_enabled and not self.is_held_back and gc.isenabled():
            gc.disable()
            self.is_held_back = True

    def note_slice(self, seconds: float) -> None:
        if self._is_enabled:
            self._seconds += seconds

    def run(self) -> None:
        """Make a pass."""
        gc.collect()
        self.end()

    def end(self) -> None:
        """Let Python start passes again: the work is done, and another thread may continue with it."""
        self._seconds = 0.0
        if self.is_held_back:
            self.is_held_back = False
            gc.enable()
