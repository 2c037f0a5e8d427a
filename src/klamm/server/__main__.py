"""`python -m klamm.server --config FILE`: runs one broker until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import sys


def run() -> int:
    """What the imports make stays for good: the collector does not look for garbage in it, now or later."""
    gc.disable()
    from klamm.server.main import main

    gc.freeze()
    # To look through the objects of all partitions takes long, so it is done seldom; the generation before is collected
    # often, because each of its passes holds the loop: 100,000 objects of a large request took 15 ms.
    gc.set_threshold(10_000, 3, 170)
    gc.enable()
    return main()


if __name__ == "__main__":
    sys.exit(run())
