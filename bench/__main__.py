"""`make bench`: one broker beside its ceiling, idle partitions, the control plane, Spark.

With `--peer kafka`: klamm beside Apache Kafka, transactions in a section of their own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Final

from bench import one_broker, peer, transactions

PROGRAMS: Final = ("bench.idle_partitions", "bench.control_plane", "bench.spark")
"""Run after the broker's own, each in a process of its own; one that fails does not keep the others from running."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--peer", choices=["kafka"], help="compare with Apache Kafka, which Maven fetches")
    parser.add_argument("--quick", action="store_true", help="one round, fewer records")
    parser.add_argument(
        "--only",
        choices=[*peer.PARTS, transactions.SECTION],
        help="with --peer: this part alone; RESULTS.md is not written",
    )
    args = parser.parse_args()
    if args.peer:
        is_all = args.only is None
        parts = peer.PARTS if is_all else tuple(part for part in peer.PARTS if part == args.only)
        failures = peer.run(args.quick, parts, write=is_all) if parts else 0
        if is_all or args.only == transactions.SECTION:
            failures += transactions.run(args.quick, write=is_all)
        sys.exit(1 if failures else 0)
    one_broker.run(args.quick)
    quick = ["--quick"] if args.quick else []
    codes = [subprocess.run([sys.executable, "-m", name, *quick], check=False).returncode for name in PROGRAMS]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
