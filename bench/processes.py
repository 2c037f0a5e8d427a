"""The CPU time of other processes. Imports nothing of klamm: benches of earlier states use it too."""

from __future__ import annotations

import time
from typing import Final

_PROCESS_CLOCK: Final = 2
"""The kernel's number of the clock that counts the CPU time of all threads of a process."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of another process, to the nanosecond: a tick of /proc is as long as 200 requests."""
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
