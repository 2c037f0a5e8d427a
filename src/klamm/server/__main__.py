"""`python -m klamm.server --config FILE`: runs one broker until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import sys


def run() -> int:
    """Exempt the objects of the imports from garbage collection: they live until the end."""
    gc.disable()
    from klamm.server import allocator, collector
    from klamm.server.main import main

    gc.freeze()
    allocator.install()
    collector.install()
    gc.enable()
    return main()


if __name__ == "__main__":
    sys.exit(run())
