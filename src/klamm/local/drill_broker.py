"""`python -m klamm.local.drill_broker DELAY_FILE ARGUMENT...`: a broker whose disk can be made slow, for fault drills.

Only LocalCluster starts it, with `drill=True`. The broker itself has no such switch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from klamm.local.drill_disk import SharedDelay, SlowFiles
from klamm.server.environment import Environment


def run() -> int:
    from klamm.server.__main__ import run as run_broker

    delay = SharedDelay(Path(sys.argv.pop(1)))
    return run_broker(Environment(files=SlowFiles(delay.wait)))


if __name__ == "__main__":
    sys.exit(run())
