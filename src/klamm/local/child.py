"""`python -m klamm.local.child MODULE ARGUMENT...`: runs a module in a process that ends with its parent.

On Linux the kernel ensures it, even while the process is stopped; elsewhere a thread watches the parent.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Final

PARENT_VARIABLE: Final = "KLAMM_PARENT_PID"
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        _watch_parent(parent)
    if os.getppid() != parent:
        os._exit(1)


def _watch_parent(parent: int) -> None:
    import threading
    import time

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is not None:
        die_with_parent(int(parent))
    del sys.argv[0]
    module = sys.argv[0]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
