"""A broker that may open only a few files: `few_files_broker.py LIMIT ARGUMENT...`."""

from __future__ import annotations

import resource
import sys

from klamm.server.__main__ import run

if __name__ == "__main__":
    limit = int(sys.argv.pop(1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    sys.exit(run())
