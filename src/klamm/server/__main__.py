"""`python -m klamm.server --config FILE`: runs one broker until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.server.environment import Environment


def run(environment: Environment | None = None) -> int:
    """Exempt the objects of the imports from garbage collection: they live until the end."""
    gc.disable()
    from klamm import allocator
    from klamm.server import collector
    from klamm.server.main import main

    gc.freeze()
    allocator.install()
    collector.install()
    gc.enable()
    return main(environment)


if __name__ == "__main__":
    sys.exit(run())
