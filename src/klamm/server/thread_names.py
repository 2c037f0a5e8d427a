"""Shows the names of threads to the system, so that `top -H` and `ps -L` print them. Python does this from 3.14 on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

_LONGEST: Final = 15
"""The number of bytes of a name that Linux keeps."""


def publish() -> None:
    """Pass the names of all threads to the system, except the main one, which has the name of the process."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.native_id is not None:
            try:
                Path(f"/proc/self/task/{thread.native_id}/comm").write_bytes(thread.name.encode()[:_LONGEST])
            except OSError:  # The thread has just ended, or the system is not Linux.
                continue
